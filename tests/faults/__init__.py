# SPDX-License-Identifier: Apache-2.0
"""Ways of breaking the state of a sequence, for tests that show that a cache refuses each of them (``README.md``)."""

from __future__ import annotations

from .contents import (
    HISTORY_FAULTS,
    INDEXER_FAULTS,
    RECURRENT_FAULTS,
    STORAGE_FAULTS,
    TAIL_FAULTS,
    WINDOW_FAULTS,
)
from .fault import Context, Fault, State, Way, same
from .formats import FORMAT_FAULTS, MEMORY_FAULTS
from .structure import COUNT_FAULTS, DROP_FAULTS, GROUP_FAULTS

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        *DROP_FAULTS,
        *COUNT_FAULTS,
        *GROUP_FAULTS,
        *WINDOW_FAULTS,
        *TAIL_FAULTS,
        *INDEXER_FAULTS,
        *HISTORY_FAULTS,
        *RECURRENT_FAULTS,
        *FORMAT_FAULTS,
        *MEMORY_FAULTS,
        *STORAGE_FAULTS,
    )
}
"""Every fault, by name."""

__all__ = ["FAULTS", "Context", "Fault", "State", "Way", "same"]
