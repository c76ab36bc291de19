# SPDX-License-Identifier: Apache-2.0
"""What the demo needs beyond numpy, and what to install where it is absent."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """One package.

    Attributes
    ----------
    module : str
        What has to be importable.
    name : str
        Of the package, for people.
    extra : str
        The extra of hybridkv that brings it.
    """

    module: str
    name: str
    extra: str


MODELS = (
    Need("torch", "torch", "torch"),
    Need("transformers.models.deepseek_v4", "transformers (5.8 or newer)", "transformers"),
)
"""Of the model part."""

PICTURE = (Need("matplotlib", "matplotlib", "plots"),)
"""Of the picture."""


def absent(needs: Sequence[Need]) -> str | None:
    """Say what is missing and how to get it.

    Parameters
    ----------
    needs : sequence of Need
        In order: what comes later may need what comes earlier.

    Returns
    -------
    str or None
        A sentence; None where nothing is missing.
    """
    missing = [need for need in needs if not _there(need.module)]
    if not missing:
        return None
    names, extras = " and ".join(need.name for need in missing), ",".join(need.extra for need in missing)
    return f"{names} not installed: pip install 'hybridkv[{extras}]'"


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False
