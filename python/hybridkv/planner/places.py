# SPDX-License-Identifier: Apache-2.0
"""Where kept prefixes rest below the pools: memory of the host, a disk. Declared numbers, no device is asked."""

from __future__ import annotations

from dataclasses import dataclass

from hybridkv.arguments import byte_count, positive_number
from hybridkv.cost import Bandwidth
from hybridkv.errors import ArgumentError

ENVELOPE_BYTES, PART_BYTES = 128, 32
"""What stands before the payload of a record, and more of it for each part (``docs/record-format.md``)."""

DISK_UNIT_BYTES = 4096
"""What a disk tier fills envelope and payload up to (``docs/disk-format.md``)."""

REGION_SHARE = (5, 8)
"""Part of a region of a disk tier that one record may take at most."""


@dataclass(frozen=True)
class Place:
    """Memory or a disk that keeps records of prefixes.

    Parameters
    ----------
    name : str
        "host", "disk"; what the answer calls it.
    capacity_bytes : int
        Of one host's.
    read : Bandwidth
        How fast one host reads from it.
    write_bytes_per_second : float, optional
        How fast one host writes to it. Default: not known, and nothing is said of writing.
    unit_bytes : int, optional
        Envelope and payload of a record are filled up to a multiple of it. Default: nothing is.

    Raises
    ------
    ArgumentError
        Naming the field.

    Examples
    --------
    >>> disk = Place("disk", 4 << 40, Bandwidth(3e9), unit_bytes=DISK_UNIT_BYTES)
    >>> disk.record_bytes(5000, 1)
    12288
    """

    name: str
    capacity_bytes: int
    read: Bandwidth
    write_bytes_per_second: float | None = None
    unit_bytes: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError("name", "the name of a place", self.name)
        if not isinstance(self.read, Bandwidth):
            raise ArgumentError("read", "a Bandwidth", type(self.read).__name__)
        for field in ("capacity_bytes", "unit_bytes"):
            object.__setattr__(self, field, byte_count(field, getattr(self, field)))
        if self.write_bytes_per_second is not None:
            written = positive_number("write_bytes_per_second", self.write_bytes_per_second)
            object.__setattr__(self, "write_bytes_per_second", written)

    def record_bytes(self, payload_bytes: int, parts: int) -> int:
        """Return what a record takes here, envelope and fills included."""
        return self._filled(ENVELOPE_BYTES + parts * PART_BYTES) + self._filled(payload_bytes)

    def _filled(self, size: int) -> int:
        return -(-size // self.unit_bytes) * self.unit_bytes


def least_region_bytes(record_bytes: int) -> int:
    """Return the least ``region_bytes`` of a disk tier that takes a record of so many bytes."""
    part, whole = REGION_SHARE
    least = -(-record_bytes * whole // part)
    return -(-least // DISK_UNIT_BYTES) * DISK_UNIT_BYTES
