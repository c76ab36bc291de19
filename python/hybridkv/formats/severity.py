# SPDX-License-Identifier: Apache-2.0
"""What a difference between two formats means to who reads the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

INCOMPATIBLE = "incompatible"
CONVERTIBLE = "convertible"
COSMETIC = "cosmetic"

SEVERITIES = (INCOMPATIBLE, CONVERTIBLE, COSMETIC)
"""From the worst down."""


class Compatibility(IntEnum):
    """What a reader can do with the bytes of a writer."""

    EXACT = 0
    """Byte-exact: the bytes can be read as they are."""
    CONVERTIBLE = 1
    """The same information in another arrangement: a false hit with the remedy CONVERT."""
    INCOMPATIBLE = 2
    """The bytes mean something else."""


@dataclass(frozen=True)
class FieldDiff:
    """One field in which two formats differ.

    Parameters
    ----------
    field : str
        Name of the field of :class:`KvFormat`.
    ours, theirs : object
        The two values; None where a format does not declare the field.
    severity : str
        ``"incompatible"``, ``"convertible"`` or ``"cosmetic"``.
    """

    field: str
    ours: object
    theirs: object
    severity: str
