# SPDX-License-Identifier: Apache-2.0
"""The disk tier: records in a directory of the local file system, verified and crash-safe."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from hybridkv import _core
from hybridkv.arguments import byte_count, count, flag
from hybridkv.coverage import real_number
from hybridkv.errors import ArgumentError
from hybridkv.formats.manifest import Manifest
from hybridkv.texts import encodable, path_text
from hybridkv.tiers.tier import Tier, limits, windows_policy
from hybridkv.tiers.writers_file import KeptWriters, WritersFile
from hybridkv.windows import ApproximateWindows, KeepWindows

ENGINES = ("auto", "uring", "threads")
ADMISSIONS = ("always", "second_touch", "budget")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening a store found.

    Attributes
    ----------
    regions, records, bytes : int
        Region files; records that can be asked for, and their bytes.
    scanned_regions : int
        Regions that a crash left without a footer: read record by record.
    torn, stale, orphans, removed : int
        Records left out: not whole; of a former life of their region; without the block that they stand on; removed
        before.
    unknown_files : int
        Files in the directory that are not the store's; they are left alone.
    seconds : float
        How long it took.
    """

    regions: int
    records: int
    bytes: int
    scanned_regions: int
    torn: int
    stale: int
    orphans: int
    removed: int
    unknown_files: int
    seconds: float


class DiskTier(Tier):
    """Records in region files of one directory, with their index in memory.

    A put is OK once it will be found; with ``durable=True``, or after :meth:`flush`, once it survives a power cut.
    What comes back was verified to the byte; what is damaged is dropped and counted. When it is full, the oldest region
    makes room, but for what was used since or is pinned.

    Who wrote into it is kept beside the records, in the file ``writers`` (``docs/disk-format.md``), so that a cache
    whose records are other ones is told why after a restart too. Records are told apart without it.

    Parameters
    ----------
    path : path-like
        A directory of this store alone, made for this user alone if it is not there. Another opener is refused while it
        is open.
    capacity_bytes : int
        Of all region files; at least four regions.
    windows : KeepWindows, optional
        Which boundaries a cache stores here with their states. Default: all that it has.
    region_bytes : int, optional
        Of a new store's files; an old one keeps its own. Each is open all the time. A record is at most 5/8 of it.
        Default: 64 MiB, doubled until there are no more than 512 of them, at most 4 GiB.
    engine : {"auto", "uring", "threads"}
        How it reads and writes: io_uring where the kernel gives it, or threads.
    direct : bool
        Around the page cache, where the file system can.
    depth : int
        Reads and writes at the device at a time.
    admission : {"always", "second_touch", "budget"}
        What is written: every put; only what is put a second time (at least the last 262,144 records put are
        remembered, 16 to 32 bytes each); or so many bytes a second. What is left out is DECLINED and counted; pinned
        records never are.
    budget_bytes_per_second, budget_burst_bytes : int, optional
        Of ``admission="budget"``.
    keep_share : float
        Of a region, at most 0.25: how much of it is written again when it makes room, because it was used or is pinned.
    reclaim_when_full : bool
        Where the file system is full before the capacity is used. False: puts are NO_SPACE until there is room, and
        what is stored stays. True: the oldest region makes room, as if the capacity were what there is.
    most_items, breaker_after, breaker_seconds
        As of :class:`MemoryTier`.

    Attributes
    ----------
    recovered : Recovered
        What opening found.
    engine : str
        "io_uring" or "threads".

    Raises
    ------
    TierError
        The directory cannot be had, is open elsewhere, is no store, or one of a newer version; or the capacity is below
        four regions. Nothing there has changed, but a directory that was not there is left behind, empty.
    ArgumentError
        An argument out of range.

    Examples
    --------
    >>> import tempfile
    >>> import hybridkv as hk
    >>> with tempfile.TemporaryDirectory() as path, hk.DiskTier(path, 16 << 20, region_bytes=4 << 20) as tier:
    ...     tier.recovered.records, tier.durable
    (0, True)
    """

    recovered: Recovered
    name = "disk"

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity_bytes: int,
        *,
        windows: KeepWindows | ApproximateWindows | None = None,
        region_bytes: int | None = None,
        engine: str = "auto",
        direct: bool = True,
        depth: int = 16,
        admission: str = "always",
        budget_bytes_per_second: int | None = None,
        budget_burst_bytes: int | None = None,
        keep_share: float = 0.25,
        reclaim_when_full: bool = False,
        most_items: int = 4096,
        breaker_after: int = 3,
        breaker_seconds: tuple[float, float] = (1.0, 30.0),
    ) -> None:
        common = limits(most_items, breaker_after, breaker_seconds)
        policy = None if windows is None else windows_policy(windows)
        sizes = (
            byte_count("capacity_bytes", capacity_bytes),
            0 if region_bytes is None else byte_count("region_bytes", region_bytes),
            *_budget(admission, budget_bytes_per_second, budget_burst_bytes),
        )
        core, recovered, self.engine, formats = _core.open_disk_tier(
            directory_path(path),
            sizes,
            _share(keep_share),
            index_of("engine", ENGINES, engine),
            flag("direct", direct),
            count("depth", depth),
            index_of("admission", ADMISSIONS, admission),
            flag("reclaim_when_full", reclaim_when_full),
            common,
        )
        super().__init__(core, most_items)
        self.path = os.fspath(path)
        self.recovered = Recovered(**recovered)
        if policy is not None:
            self.windows = policy
        self._writers_file = WritersFile(self.path)
        self._manifests = self._writers_file.read(formats)

    @property
    def writers(self) -> KeptWriters:
        """How it goes with the file in which the store keeps the manifests of who wrote into it."""
        return self._writers_file.kept

    def know(self, manifest: Manifest) -> None:
        """Tell who wrote records that lie here, for this process and those after it; see :meth:`Tier.know`.

        Where the store's own file cannot be written, :attr:`writers` says so, and nothing is raised.
        """
        self._core.here()  # before the lock, which a fork may have copied while somebody held it
        super().know(manifest)

    def _learn(self, manifests: Iterable[Manifest]) -> None:
        self._core.here()  # behind a fork the store is the parent's
        super()._learn(manifests)
        self._writers_file.write(self._manifests)

    def _is_kept(self) -> bool:
        return self._writers_file.is_saved

    def _stop_keeping(self) -> None:
        self._core.here()
        with self._writers_lock:
            self._writers_file.close()


def directory_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a store as text. Raises ArgumentError where it is none."""
    return encodable("path", path_text("path", path), ArgumentError)  # the core takes it as UTF-8


def index_of(field: str, names: tuple[str, ...], name: str) -> int:
    """Return the place of a name among those that are allowed. Raises ArgumentError where it is none of them."""
    if not isinstance(name, str) or name not in names:
        raise ArgumentError(field, f"one of {list(names)}", name)
    return names.index(name)


def _share(value: float) -> float:
    share = real_number(value)
    if share is None or not 0 <= share <= 0.25:
        raise ArgumentError("keep_share", "a share from 0 to 0.25", value)
    return float(share)


def _budget(admission: str, rate: int | None, burst: int | None) -> tuple[int, int]:
    if admission != "budget":
        if rate is not None or burst is not None:
            raise ArgumentError("budget_bytes_per_second", "None unless admission is 'budget'", rate)
        return 0, 0
    if rate is None:
        raise ArgumentError("budget_bytes_per_second", "a number of bytes", None)
    per_second = byte_count("budget_bytes_per_second", rate)
    return per_second, per_second if burst is None else byte_count("budget_burst_bytes", burst)
