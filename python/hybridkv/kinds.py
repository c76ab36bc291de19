# SPDX-License-Identifier: Apache-2.0
"""The closed sets of the contract: kinds of state, checks, outcomes and remedies.

The values are part of the contract; they are the same in the C++ core and never change.
"""

from __future__ import annotations

from enum import IntEnum


class StateKind(IntEnum):
    """What a cache group keeps.

    Examples
    --------
    >>> [kind.name for kind in StateKind]
    ['COMPRESSED', 'TAIL', 'WINDOW', 'INDEXER', 'DISK']
    """

    COMPRESSED = 0
    """History: compressed entries, or plain full-attention keys and values."""
    TAIL = 1
    """Tokens or rolling state not yet compressed: compressor rows, overlap rows, recurrent state."""
    WINDOW = 2
    """Rows of a sliding window or of the current chunk."""
    INDEXER = 3
    """Keys of the sparse router, in step with the group that they index."""
    DISK = 4
    """A place, not a kind of group: what rests in a colder tier and must be restored before use."""


class Check(IntEnum):
    """The check that a hit failed, in the order in which checks are applied."""

    COMPLETE = 0
    """A page of a ``Prefix`` group is missing, or holds only a part."""
    ABI = 1
    """The bytes were written in another format."""
    GROUPS = 2
    """Some groups could resume there and others could not."""
    ALIGNED = 3
    """Base address, page stride, row stride or footer offset does not fit the kernel."""
    RACED = 4
    """It changed between check and pin, and the retries are spent."""
    INTEGRITY = 5
    """Content or a load failed verification."""


class Outcome(IntEnum):
    """What a look-up came to."""

    MISS = 0
    FALSE_HIT = 1
    REUSABLE = 2


class Remedy(IntEnum):
    """What the caller can do about what was lost."""

    NONE = 0
    RECOMPUTE = 1
    RESTORE = 2
    CONVERT = 3
    WAIT = 4


REFUSALS = ("none", "requests", "combinations", "watermark", "pages", "never", "lease")
"""Why admission refuses, in the order of the core's numbers."""
