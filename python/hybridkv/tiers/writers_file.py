# SPDX-License-Identifier: Apache-2.0
"""The file ``writers`` of a store on disk: manifests of those who wrote into it.

It explains records and decides nothing: whatever is wrong with it, the store opens and no record is touched.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection
from dataclasses import dataclass

from hybridkv import _core
from hybridkv.formats.manifest import Manifest
from hybridkv.formats.manifest_file import MOST_FILE_BYTES, manifests_of, replace_file
from hybridkv.regular_file import read_regular

WRITERS, DRAFT, DAMAGED = _core.writers_files
"""Names in a store's directory: the file, the next one while it is written, and one that could not be read."""


@dataclass(frozen=True, slots=True)
class WritersFound:
    """What a look at the file found.

    Attributes
    ----------
    manifests : tuple of Manifest
        Of the lines that are sound, those that came first first.
    damaged : int
        Lines that are no manifest; 1 for a file that cannot be read, or is too long.
    error : str
        What is wrong first; empty where nothing is.
    """

    manifests: tuple[Manifest, ...]
    damaged: int
    error: str


@dataclass(frozen=True, slots=True)
class KeptWriters:
    """How it went with a store's file of writers since the store was opened.

    Attributes
    ----------
    read : int
        Manifests that opening found.
    gone : int
        Of them those that were dropped, since the store has no record of their formats any more.
    damaged : int
        Lines that were no manifest, or 1 for a file that could not be read: it was set aside as ``writers.damaged``.
    unsaved : int
        How often the file could not be written, as where the file system is full: after a restart records of those
        writers count under "unknown writer".
    error : str
        What went wrong last; empty where nothing has.
    """

    read: int = 0
    gone: int = 0
    damaged: int = 0
    unsaved: int = 0
    error: str = ""


def read_writers(folder: int) -> WritersFound:
    """Look at the file of a directory, which stays as it is.

    Parameters
    ----------
    folder : int
        Descriptor of the directory.

    Returns
    -------
    WritersFound
        Empty where there is no file.
    """
    try:
        data = read_regular(WRITERS, MOST_FILE_BYTES, follow=False, folder=folder)
    except FileNotFoundError:
        return WritersFound((), 0, "")
    except OSError as why:
        return WritersFound((), 1, f"{WRITERS}: {why.strerror or why}")
    found, wrong = manifests_of(data)
    return WritersFound(found, len(wrong), "; ".join(f"{WRITERS}, line {line}: {why}" for line, why in wrong[:1]))


def writers_at(path: str) -> WritersFound:
    """Look at the file of the store of a path, which stays as it is; see :func:`read_writers`."""
    try:
        folder = _opened(path)
    except OSError as why:
        return WritersFound((), 1, f"{path}: {why.strerror}")
    try:
        return read_writers(folder)
    finally:
        os.close(folder)


class WritersFile:
    """The file of a store that is open here, so that nobody else writes it. Nothing here raises.

    Thread safety: one call at a time.

    Parameters
    ----------
    path : str
        Of the store. The directory is kept open, so that it is the same one whatever becomes of its name.
    """

    def __init__(self, path: str) -> None:
        self.kept = KeptWriters()
        self._close: weakref.finalize[[int], WritersFile] | None = None
        self._folder = -1
        self.is_saved = True
        try:
            self._folder = _opened(path)
        except OSError as why:
            self._tell(unsaved=0, error=f"{path}: {why.strerror}")
        else:
            self._close = weakref.finalize(self, os.close, self._folder)

    def read(self, formats: Collection[bytes]) -> tuple[Manifest, ...]:
        """Return the writers of whom there may be records; set the file aside where it is damaged.

        Parameters
        ----------
        formats : collection of bytes
            Fingerprints of the records that are there.
        """
        if self._close is None:
            return ()
        found = read_writers(self._folder)
        known = dict.fromkeys(found.manifests)
        used = tuple(manifest for manifest in known if not set(manifest.records).isdisjoint(formats))
        read = len(known)
        self.kept = KeptWriters(read, read - len(used), found.damaged, 0, found.error)
        if found.damaged:
            self._set_aside(used)
        return used

    def write(self, manifests: Collection[Manifest]) -> None:
        """Replace the file by one of these; where that cannot be, the old one stays, and :attr:`kept` says so."""
        if self._close is None:
            return
        try:
            replace_file(self._folder, WRITERS, DRAFT, manifests)
            self.is_saved = True
        except OSError as why:
            self.is_saved = False
            self._tell(self.kept.unsaved + 1, f"{WRITERS} not written: {why.strerror or why}")

    def close(self) -> None:
        """Write nothing any more. Idempotent."""
        if self._close is not None:
            self._close()
            self._close = None

    def _set_aside(self, sound: Collection[Manifest]) -> None:
        """Keep what cannot be read under another name, and what can in a new file; only the newest is kept."""
        try:
            os.replace(WRITERS, DAMAGED, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as why:
            self._tell(self.kept.unsaved, f"{self.kept.error}; not set aside: {why.strerror}")
            self.close()  # it would be overwritten
            return
        self._tell(self.kept.unsaved, f"{self.kept.error}; set aside as {DAMAGED}")
        if sound:
            self.write(sound)

    def _tell(self, unsaved: int, error: str) -> None:
        self.kept = KeptWriters(self.kept.read, self.kept.gone, self.kept.damaged, unsaved, error)


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
