# SPDX-License-Identifier: Apache-2.0
"""Who wrote what lies in a tier, as far as it is known: manifests of caches before, beside or elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from hybridkv.errors import ArgumentError
from hybridkv.formats.manifest import Manifest
from hybridkv.formats.manifest_file import MOST_MANIFESTS, read_manifests, write_manifests
from hybridkv.handles import Uncopied
from hybridkv.texts import path_of


class KnownWriters(Uncopied):
    """The part of :class:`~hybridkv.Tier` that knows writers. Any thread may call; asks never wait for it."""

    def __init__(self) -> None:
        self._writers_lock = threading.Lock()  # held while the file is written
        self._manifest_file: Path | None = None
        self._manifests: tuple[Manifest, ...] = ()  # in the order in which they came; replaced, never changed

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Manifests of those who wrote here, as far as they are known: caches of this process, and :meth:`know`.

        A :class:`~hybridkv.DiskTier` knows those of before it was opened too.
        """
        return self._manifests

    def know(self, manifest: Manifest) -> None:
        """Tell who wrote records that lie here: a process before this one, or another host.

        Then a cache whose spec cannot read them says why (``metrics().tier_skew``, ``tier_skew="refuse"``). Records are
        told apart without it.

        Parameters
        ----------
        manifest : Manifest
            Such as :meth:`Manifest.from_bytes <hybridkv.formats.Manifest.from_bytes>` of what the writer kept of
            ``cache.manifest``. At most 64 are known at a time; the one that came first goes.

        Raises
        ------
        ArgumentError
            No Manifest.
        TierError
            The file of :meth:`keep_manifests` cannot be read or written; nothing has changed.
        """
        if not isinstance(manifest, Manifest):
            raise ArgumentError("manifest", "a Manifest", type(manifest).__name__)
        with self._writers_lock:
            if manifest not in self._manifests or not self._is_kept():
                self._learn((manifest,))

    def keep_manifests(self, path: str | os.PathLike[str]) -> None:
        """Keep what :attr:`manifests` has in a file, so that it is known again after a restart.

        A :class:`~hybridkv.DiskTier` does so by itself, in its own directory. What the file has is known at once, and
        from now on it has all that is known. Give the same file whenever the store is opened, before a cache is made
        with it. Several tiers may keep one file: what others wrote into it is known after the next write. Of two that
        write at one instant, one may be missing until it learns again.

        Parameters
        ----------
        path : path-like
            In a folder that is there; the file is made, readable by this user alone.

        Raises
        ------
        TierError
            It cannot be read or written, or is no file of manifests: nothing has changed.
        ArgumentError
            No path.
        """
        file = path_of("path", path)
        with self._writers_lock:
            before = self._manifest_file
            self._manifest_file = file
            try:
                self._learn(())
            except BaseException:
                self._manifest_file = before
                raise

    def _learn(self, manifests: Iterable[Manifest]) -> None:
        """Add to what is known, under the lock; in the file, where there is one, before anybody can see it."""
        file = self._manifest_file
        others = () if file is None else read_manifests(file)  # another tier, or process, may have written since
        known = tuple(dict.fromkeys((*others, *self._manifests, *manifests)))[-MOST_MANIFESTS:]
        if file is not None:
            write_manifests(file, known)
        self._manifests = known

    def _is_kept(self) -> bool:
        """Whether what is known would be known again, where it is kept at all."""
        return True

    def _stop_keeping(self) -> None:
        """Write nothing into the store any more: it is about to be another's."""
