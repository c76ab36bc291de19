# SPDX-License-Identifier: Apache-2.0
"""What was stored and what was gathered, by content: fingerprints of pages, taken at publish and compared later."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hybridkv import ops
from hybridkv.arguments import count
from hybridkv.errors import ArgumentError

if TYPE_CHECKING:
    from hybridkv.cache import HybridCache
    from hybridkv.lease import Lease

_MOST_PAGES = 1 << 20


class StoredContent:
    """Fingerprints of published pages, by group, page and hand-out count.

    It tells what the cache's own verification cannot see: that a kernel gathered other pages, or other bytes, than
    those that the lease names. Bytes that were wrong when they were stored have a right fingerprint.

    Parameters
    ----------
    cache : HybridCache
    pools : mapping of str to array or sequence of arrays
        Each group's pool, as it was bound: what :func:`hybridkv.ops.fingerprint` takes.
    most_pages : int, optional
        Pages that are remembered; beyond, those noted longest ago are forgotten, and are not compared.

    Raises
    ------
    ArgumentError
        No cache, no number, a group without a pool, or none of that name.

    Notes
    -----
    Thread safety: any thread may call. Pages are hashed on the thread that calls, at about the speed of memory; of
    pools on a device the caller synchronises. A page that its owner writes further rows into after publish (behind its
    own tip) is to be noted again.
    """

    def __init__(self, cache: HybridCache, pools: Mapping[str, Any], *, most_pages: int = _MOST_PAGES) -> None:
        from hybridkv.cache import HybridCache

        if not isinstance(cache, HybridCache):
            raise ArgumentError("cache", "a HybridCache", type(cache).__name__)
        names = [group.name for group in cache.spec.groups]
        if not isinstance(pools, Mapping) or set(pools) != set(names):
            got = ", ".join(map(str, pools)) if isinstance(pools, Mapping) else type(pools).__name__
            raise ArgumentError("pools", f"those of {', '.join(names)}", got)
        self._cache, self._pools = cache, {name: pools[name] for name in names}
        self._most = count("most_pages", most_pages)
        self._known: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def note(self, lease: Lease) -> int:
        """Remember the content of every page of a lease, taken right after they were published.

        Parameters
        ----------
        lease : Lease

        Returns
        -------
        int
            Pages.

        Raises
        ------
        KernelContract
            A pool that the fingerprint does not take.
        LeaseExpired
            The lease is not valid.
        """
        noted = 0
        for group in self._pools:
            names, pages = self._pages(lease, group)
            prints = self._of_pool(group, pages)
            with self._lock:
                for name, content in zip(names, prints, strict=True):
                    self._known[name] = content
                    self._known.move_to_end(name)
                    noted += 1
                while len(self._known) > self._most:
                    self._known.popitem(last=False)
        return noted

    def differing(self, lease: Lease, gathered: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Return the groups of which a page is not what was stored.

        Parameters
        ----------
        lease : Lease
            Of the hit.
        gathered : mapping of str to array, optional
            What a kernel gathered: uint8 [[pages, page_bytes]] by group, the pages that the lease holds in the order of
            their blocks, as :func:`hybridkv.ops.gather` writes them. Default, and of groups that are not named: the
            pages in the pool as they are now.

        Returns
        -------
        tuple of str
            In the order of the spec. Pages that were never noted are not compared.

        Raises
        ------
        ArgumentError
            An unknown group, an array of other pages.
        KernelContract
            A pool, or an array, that the fingerprint does not take.
        LeaseExpired
            The lease is not valid.
        """
        given = dict(gathered or {})
        for name in given:
            self._cache._group_index(name)
        found = []
        for group in self._pools:
            names, pages = self._pages(lease, group)
            prints = self._of_array(group, given[group], len(pages)) if group in given else self._of_pool(group, pages)
            with self._lock:
                known = [self._known.get(name) for name in names]
            if any(was is not None and was != now for was, now in zip(known, prints, strict=True)):
                found.append(group)
        return tuple(found)

    def _pages(self, lease: Lease, group: str) -> tuple[list[tuple[str, int, int]], npt.NDArray[np.int32]]:
        """Return what names the pages that a lease holds of a group, and their ids [[pages]]."""
        ids, handouts = lease.page_ids(group), lease.handouts(group)
        held = ids >= 0
        pages = np.ascontiguousarray(ids[held])
        return [(group, int(p), int(h)) for p, h in zip(pages, handouts[held], strict=True)], pages

    def _of_pool(self, group: str, pages: npt.NDArray[np.int32]) -> list[bytes]:
        pool = self._pools[group]
        return _prints(list(pool) if isinstance(pool, (list, tuple)) else [pool], pages)

    def _of_array(self, group: str, array: Any, pages: int) -> list[bytes]:
        shape = getattr(array, "shape", None)
        if shape is None or len(shape) != 2 or int(shape[0]) != pages:
            raise ArgumentError(f"gathered[{group!r}]", f"[[{pages} pages, page_bytes]]", shape)
        return _prints([array], np.arange(pages, dtype=np.int32))


def _prints(arrays: list[Any], pages: npt.NDArray[np.int32]) -> list[bytes]:
    """Return the fingerprints of pages, those of all their layers behind each other."""
    if not len(pages):
        return []
    out = np.zeros((len(arrays), len(pages)), np.uint64)
    for row, array in zip(out, arrays, strict=True):
        ops.fingerprint(array, pages, row)
    return [column.tobytes() for column in out.T]
