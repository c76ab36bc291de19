# SPDX-License-Identifier: Apache-2.0
"""Bugs in running requests: tickets, admission, eviction."""

from __future__ import annotations

from seeded_bugs import Bug

BUGS: list[Bug] = []
