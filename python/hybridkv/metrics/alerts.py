# SPDX-License-Identifier: Apache-2.0
"""The rules that alert, as a file for a Prometheus server."""

from __future__ import annotations

from importlib import resources


def alert_rules() -> str:
    """Return the alert rules.

    Returns
    -------
    str
        YAML, for ``rule_files:`` of a Prometheus server.
    """
    return resources.files("hybridkv.metrics").joinpath("alerts.yaml").read_text(encoding="utf-8")
