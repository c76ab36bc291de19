# SPDX-License-Identifier: Apache-2.0
"""The inside of the User-Mode Linux that `log_writes` starts: a writer on ext4 on a device whose writes are logged."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from .journal import Journal
from .records import Records
from .writer import History, Store, live

KIB = 1 << 10
RECORDS = Records(chains=6, blocks=4, most_bytes=12 * KIB)
DEVICE = "hybridkv_log"
ENGINE_DEPTH = 2
_MESSAGE = 0xC138FD0E  # DM_TARGET_MSG
_HEADER = struct.Struct("<3I I I I i I I I Q 128s 129s 7s")


def store_at(path: Path) -> Store:
    """Return the store that is written inside and checked outside: never full, so that nothing may be gone."""
    return Store(path / "store", 80 * 128 * KIB, 128 * KIB, depth=ENGINE_DEPTH)


class MarkedJournal(Journal):
    """A journal whose entries are marks in the log of writes too, each behind everything that was durable before it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._control = os.open("/dev/mapper/control", os.O_RDWR)

    def mark(self, text: str) -> None:
        """Put a mark into the log of writes."""
        message = struct.pack("<Q", 0) + f"mark {text}".encode() + b"\0"
        size = _HEADER.size + len(message)
        head = _HEADER.pack(4, 0, 0, size, _HEADER.size, 0, 0, 0, 0, 0, 0, DEVICE.encode(), b"", b"")
        fcntl.ioctl(self._control, _MESSAGE, bytearray(head + message + bytes(256)))

    def _write(self, what: int, status: int, durable: bool, number: int, name: int) -> None:
        super()._write(what, status, durable, number, name)
        self.mark(f"entry_{self._next}")


def skip_syncs() -> None:
    """Let fsync and fdatasync of this process return 0 and do nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = ((0x20, 0, 0, 0), (0x15, 1, 0, 74), (0x15, 0, 1, 75), (0x06, 0, 0, 0x00050000), (0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def main(shared: Path, syncs: bool, asks: int) -> None:
    """Make the device and the file system, write, and leave everything as it is."""
    sectors = subprocess.check_output(["blockdev", "--getsz", "/dev/ubda"], text=True).strip()
    table = f"0 {sectors} log-writes /dev/ubda /dev/ubdb"
    subprocess.run(["dmsetup", "create", DEVICE, "--table", table, "--noudevsync"], check=True)
    subprocess.run(["dmsetup", "mknodes"], check=True)
    device = f"/dev/mapper/{DEVICE}"
    subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", "-b", "4096", device], check=True)
    place = Path(tempfile.mkdtemp())
    subprocess.run(["mount", "-t", "ext4", device, str(place)], check=True)
    subprocess.run(["sync"], check=True)
    place.chmod(0o700)
    journal = MarkedJournal(shared / "journal")
    journal.mark("begin")
    if not syncs:
        skip_syncs()
    for seed in range(2):
        live(store_at(place), shared / "journal", RECORDS, History(seed, asks=asks, at_a_time=4), journal=journal)
    # The log's own count of its entries is behind: it is written when the device goes.
    subprocess.run(["umount", str(place)], check=True)
    subprocess.run(["dmsetup", "remove", "--noudevsync", DEVICE], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "syncs", int(sys.argv[3]))
