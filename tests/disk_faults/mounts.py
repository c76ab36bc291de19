# SPDX-License-Identifier: Apache-2.0
"""File systems of a run: small ones of its own, that can be full, cut off and frozen."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from functools import lru_cache
from pathlib import Path

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
_FREEZE, _THAW = 0xC0045877, 0xC0045878
_NO_LOG_FLUSH = 2
MIB = 1 << 20

MAKERS = {
    "ext4": (["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0"], 24),
    "ext2": (["mkfs.ext2", "-q", "-F"], 24),  # cannot preallocate
    "xfs": (["mkfs.xfs", "-q", "-f"], 320),
}


def call(*command: str | Path) -> None:
    """Run a program; its words are the error's."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()}")


class Mount:
    """A file system of a kind in a file (or tmpfs), mounted in a folder; in a ``with`` block, gone at its end."""

    def __init__(self, kind: str, folder: Path, mebibytes: int | None = None, options: str = "") -> None:
        self.kind, self.options = kind, options
        self.image, self.path = folder / f"{kind}.image", folder / kind
        self.path.mkdir()
        self.size = mebibytes
        if kind != "tmpfs":
            command, usual = MAKERS[kind]
            with self.image.open("wb") as file:
                file.truncate((mebibytes or usual) * MIB)
            call(*command, self.image)
        self.mount()

    def mount(self) -> None:
        """Mount it, as it is after a cut too: its journal is replayed."""
        if self.kind == "tmpfs":
            call("mount", "-t", "tmpfs", "-o", f"size={self.size}m,mode=700", "tmpfs", self.path)
        else:
            call("mount", "-o", "loop" + self.options, self.image, self.path)
        self.path.chmod(0o700)

    def unmount(self) -> None:
        """Unmount it, once the last process that had files there is gone."""
        for attempt in range(100):
            try:
                return call("umount", self.path)
            except OSError:
                if attempt == 99:
                    raise
                time.sleep(0.05)

    def cut(self) -> None:
        """Stop everything from reaching the image from now on, the journal's log too."""
        self._control(_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))

    def freeze(self) -> None:
        """Let every write wait until `thaw`."""
        self._control(_FREEZE, struct.pack("i", 0))

    def thaw(self) -> None:
        """Let them go on."""
        self._control(_THAW, struct.pack("i", 0))

    def fill(self, but: int) -> Path:
        """Take all room but so many bytes; return the file that has it."""
        path = self.path / "ballast"
        with path.open("wb") as file:
            while (left := _free(self.path) - but) > 0:
                try:
                    file.write(bytes(min(left, MIB // 4)))
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    break
        return path

    def _control(self, request: int, argument: bytes) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, request, argument)
        finally:
            os.close(descriptor)

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, *exception: object) -> None:
        self.unmount()
        self.image.unlink(missing_ok=True)


def _free(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


@lru_cache
def cannot_mount(kind: str) -> str:
    """Say why file systems of a kind cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "mounts need root"
    if kind != "tmpfs":
        maker = MAKERS[kind][0][0]
        if shutil.which(maker, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
            return f"{maker} is absent"
    with tempfile.TemporaryDirectory() as folder:
        try:
            Mount(kind, Path(folder), 4 if kind == "tmpfs" else None).unmount()
        except OSError as error:  # root of a container that may not mount
            return str(error)
    return ""
