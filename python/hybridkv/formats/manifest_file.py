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

MOST_FILE_BYTES = 8 * MOST_BYTES


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
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            found.append(Manifest.from_bytes(line))
        except SpecError as why:
            raise TierError("manifests", f"a manifest on line {number}", str(why)) from why
    return tuple(found)


def write_manifests(path: Path, manifests: Iterable[Manifest]) -> None:
    """Replace a file by one of these manifests, so that a crash leaves the old one or the new one.

    Parameters
    ----------
    path : Path
    manifests : iterable of Manifest

    Raises
    ------
    TierError
        It cannot be written; what was there is there still.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(manifest.to_bytes() + b"\n" for manifest in manifests)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as why:
        draft.unlink(missing_ok=True)
        raise TierError("manifests", "a file that can be written", why) from why
