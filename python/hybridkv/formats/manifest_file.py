# SPDX-License-Identifier: Apache-2.0
"""A file of manifests: one on each line, so that who opens a store after a restart knows who wrote into it.

It is written anew as a whole: beside the old one, to the disk, then under its name. It is data, and read within bounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hybridkv.errors import SpecError, TierError
from hybridkv.formats.manifest import MOST_BYTES, Manifest
from hybridkv.regular_file import read_regular

MOST_MANIFESTS = 64
"""Of a file, and that a tier knows."""

MOST_FILE_BYTES = MOST_MANIFESTS * (MOST_BYTES + 1)
"""Of a file that is read: as many as the longest that is written."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def read_manifests(path: Path) -> tuple[Manifest, ...]:
    """Return the manifests of a file; none where there is no file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    tuple of Manifest
        In the order of the lines.

    Raises
    ------
    TierError
        It cannot be read, is a link or no file, is too long, or has a line that is no manifest. It stays as it is.
    """
    try:
        data = read_regular(path, MOST_FILE_BYTES, follow=False)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as why:  # ValueError: a NUL in the name
        raise TierError("manifests", f"a file of at most {MOST_FILE_BYTES} bytes that can be read", why) from why
    found, wrong = manifests_of(data)
    for line, why_not in wrong[:1]:
        raise TierError("manifests", f"a manifest on line {line}", str(why_not)) from why_not
    return found


def manifests_of(data: bytes) -> tuple[tuple[Manifest, ...], list[tuple[int, SpecError]]]:
    """Return the manifests of the lines, and by number the lines that are none with what is wrong with them.

    What follows behind :data:`MOST_MANIFESTS` lines is not looked at, and counts as one that is none.
    """
    found: list[Manifest] = []
    wrong: list[tuple[int, SpecError]] = []
    *lines, rest = data.split(b"\n", MOST_MANIFESTS)
    for number, line in enumerate(lines, 1):
        try:
            found.append(Manifest.from_bytes(line))
        except SpecError as why:
            wrong.append((number, why))
    if rest:
        wrong.append((len(lines) + 1, SpecError("manifests", f"at most {MOST_MANIFESTS} whole lines", "more")))
    return tuple(found), wrong


def write_manifests(path: Path, manifests: Iterable[Manifest]) -> None:
    """Replace a file by one of these manifests, so that a crash leaves the old one or the new one.

    Parameters
    ----------
    path : Path
    manifests : iterable of Manifest

    Raises
    ------
    TierError
        It cannot be written, or one of them is longer than may be read; what was there is there still.
    """
    listed = tuple(manifests)
    longest = max((len(manifest.to_bytes()) for manifest in listed), default=0)
    if longest > MOST_BYTES:
        raise TierError("manifests", f"manifests of at most {MOST_BYTES} bytes", f"one of {longest}")
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            replace_file(folder, path.name, f"{path.name}.{os.getpid()}.draft", listed)
        finally:
            os.close(folder)
    except OSError as why:
        raise TierError("manifests", "a file that can be written", why) from why


def replace_file(folder: int, name: str, draft: str, manifests: Iterable[Manifest]) -> None:
    """Write manifests under the name of a draft, to the disk, and give it the file's name.

    Raises
    ------
    OSError
        Something of it cannot be done. The draft is gone, and what was there is there still.
    """
    try:
        with os.fdopen(os.open(draft, _NEW, 0o600, dir_fd=folder), "wb") as file:
            file.writelines(manifest.to_bytes() + b"\n" for manifest in manifests)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError:
        if draft in os.listdir(folder):
            os.unlink(draft, dir_fd=folder)
        raise
