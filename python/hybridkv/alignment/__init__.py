# SPDX-License-Identifier: Apache-2.0
"""Byte alignment: what kernels need of a pool, what it provides, and which pages serve them.

A group that names no kernel is checked against its own declaration alone. Facts of a group and its pool change only
when a pool is bound, so they are compared then, and a match tells what was found. `docs/alignment.md` is the guide.
"""

from hybridkv.alignment.checks import (
    NOT_LOADED,
    ArrayPlace,
    PoolFacts,
    Violation,
    check,
    check_addresses,
    pool_facts,
)
from hybridkv.alignment.choice import PageChoice, Suggestion, suggest
from hybridkv.alignment.needs import KERNELS, REFUSED, SLOWER, KernelNeeds, direct_io

__all__ = [
    "KERNELS",
    "NOT_LOADED",
    "REFUSED",
    "SLOWER",
    "ArrayPlace",
    "KernelNeeds",
    "PageChoice",
    "PoolFacts",
    "Suggestion",
    "Violation",
    "check",
    "check_addresses",
    "direct_io",
    "pool_facts",
    "suggest",
]
