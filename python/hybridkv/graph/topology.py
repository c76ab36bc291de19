# SPDX-License-Identifier: Apache-2.0
"""What a captured graph assumed, and whether a step may replay it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hybridkv.arguments import length, members
from hybridkv.errors import ArgumentError, HybridKVError
from hybridkv.formats import KvFormat
from hybridkv.graph.bound import SeenPool, seen_pools
from hybridkv.graph.buffers import BufferFacts, Recorded, changed, flattened, recorded
from hybridkv.graph.eager import Eager, EagerCounts, Replay
from hybridkv.graph.null_page import page_is_finite
from hybridkv.graph.padding import SKIP, padding_of
from hybridkv.graph.staged import moved_on, routed
from hybridkv.graph.step_shape import StepShape, step_shape
from hybridkv.graph.watched import Watched
from hybridkv.lease import Lease
from hybridkv.stream_capture import refuse_capture
from hybridkv.ticket import Ticket

if TYPE_CHECKING:
    from hybridkv.cache import HybridCache
    from hybridkv.graph.staging import Staging
    from hybridkv.spec import CacheSpec

Step = Lease | Ticket


class TopologyChanged(HybridKVError):
    """A graph was to be replayed although what it assumed is no longer so; nothing was run.

    Attributes
    ----------
    eager : Eager
        What has changed.
    """

    eager: Eager


class Topology:
    """What a captured graph assumed. Made by :meth:`capture`; one for all buckets that share their buffers.

    Attributes
    ----------
    shape : StepShape
        Groups, tables, buckets and tokens of a step.

    Notes
    -----
    :meth:`route` decides before anything is gathered, since a replay reads and writes fixed buffers and an eager step
    fresh ones; :meth:`check` asserts it again where the graph is replayed, and that the tables are those of the step.
    Any thread may call, a check that of its staging; that nothing changes between check and replay is the caller's to
    see to.

    It keeps every buffer that it recorded alive, as the graph needs them, until :meth:`release`.
    """

    __slots__ = (
        "__weakref__",
        "_buffers",
        "_counts",
        "_formats",
        "_names",
        "_poisoned",
        "_pools",
        "_released",
        "_staged",
        "_staging",
        "_watched",
        "shape",
    )

    def __init__(
        self,
        shape: StepShape,
        buffers: list[Recorded],
        pools: list[SeenPool],
        staging: Staging | None,
        watched: Watched,
    ) -> None:
        self.shape = shape
        self._buffers = buffers
        self._pools = pools
        self._staging = staging
        self._names = frozenset(buffer.name for buffer in buffers)
        self._staged = frozenset() if staging is None else frozenset(staging.buffers())
        self._watched = watched
        self._formats = {group.name: group.fingerprint for group in shape.spec.groups if group.name in shape.groups}
        self._counts = EagerCounts()
        self._poisoned: Eager | None = None
        self._released = False

    @classmethod
    def capture(
        cls,
        buffers: Mapping[str, Any],
        spec: CacheSpec,
        *,
        max_blocks: int | Mapping[str, int] | None = None,
        padding: object = None,
        buckets: Iterable[int] = (1,),
        step_tokens: int = 1,
        compact: Collection[str] = (),
        groups: Collection[str] | None = None,
        staging: Staging | None = None,
        cache: HybridCache | None = None,
        pages: Iterable[Step] = (),
    ) -> Topology:
        """Record what a graph that was captured, or is about to be, takes for granted.

        Parameters
        ----------
        buffers : mapping of str to array or list of arrays
            Everything that the graph reads or writes, by name: numpy, torch, DLPack or an array interface, on any
            device. Under the name of a group: its pool, as its kernels see it, and nothing else. The buffers of
            `staging` are added.
        spec : CacheSpec
            Of the cache whose requests will be routed.
        max_blocks : int or mapping of str to int
            Width of the captured block tables, in own blocks, by group; groups with a live page have none.
        padding : Padding or int, or mapping of str to these
            What the tables hold where there is no page: -1, the null page, or a
            :class:`~hybridkv.graph.Padding`; by group, and by kernel within it where several kernels read tables of
            one group (``{"kv": {"attention": -1, "indexer": 64}}``).
        buckets : iterable of int
            Batches that graphs were captured for.
        step_tokens : int
            Most new tokens of a request in a step.
        compact : collection of str
            Groups of windows whose tables begin at the first block that the step reads;
            :func:`~hybridkv.graph.window_width` says how wide they are at worst.
        groups : collection of str, optional
            Groups that the graph reads. Default: all of the spec.
        staging : Staging, optional
            Instead of the six above: the tables, which say all that.
        cache : HybridCache, optional
            Then its pools are watched too: bound anew, reset, closed; and what is eager is counted in its metrics. A
            buffer under the name of a group that it is bound to must have the cache's pages where the cache has them.
        pages : iterable of Lease or Ticket
            Whose pages the graph addresses itself instead of by a table: with their hand-out counts.

        Returns
        -------
        Topology

        Raises
        ------
        ArgumentError
            Naming the field: no array, a width or sentinel missing, a null page that the cache may hand out, a pool of
            fewer pages than the cache hands out or that is not the one it is bound to, a staging of another spec.
        CaptureError
            A stream captures: do it before or after.
        """
        refuse_capture("topology", "the reading of buffers")
        if staging is not None:
            if any(given is not None for given in (max_blocks, padding, groups)) or compact or step_tokens != 1:
                raise ArgumentError("staging", "None, or the widths and sentinels of the staging alone", "both")
            if not staging.shape.spec.same_pages(spec):
                raise ArgumentError("staging", "tables for this spec", staging)
            shape, tables = staging.shape, staging.buffers()
        else:
            if max_blocks is None or padding is None:
                missing = "max_blocks" if max_blocks is None else "padding"
                raise ArgumentError(missing, "what the graph was captured with, or staging=", None)
            shape, tables = step_shape(spec, max_blocks, padding, buckets, step_tokens, compact, groups), {}
        flat = flattened(buffers)
        if twice := sorted(flat.keys() & tables.keys()):
            raise ArgumentError("buffers", "names apart from those of the staging", twice)
        flat.update(flattened(tables))
        known = {group.name for group in spec.groups}
        made = [recorded(name, entry if entry in known else "", item) for name, (entry, item) in flat.items()]
        watched = Watched.of(cache, spec, shape, pages)
        topology = cls(shape, made, seen_pools(shape.tables, made, cache), staging, watched)
        if cache is not None:
            cache._topologies.add(topology)
        return topology

    # -- asking ------------------------------------------------------------------------------------

    def route(
        self,
        batch: Step | Iterable[Step],
        *,
        buffers: Mapping[str, Any] | None = None,
        formats: Mapping[str, KvFormat] | None = None,
        padding: Mapping[str, object] | None = None,
        more_tokens: int = 0,
    ) -> Replay | Eager:
        """Decide, before anything is gathered, whether a step may replay a captured graph.

        Parameters
        ----------
        batch : Lease or Ticket, or iterable of these
            The requests of the step, as they are grown for it.
        buffers : mapping, optional
            What the step is going to use, as in :meth:`capture`. Default: the captured objects, read anew.
        formats : mapping of str to KvFormat, optional
            What the kernels of the step read, by group. Default: what they read at capture.
        padding : mapping of str to sentinel, optional
            What the kernels of the step take for padding, by table (``staging.shape.tables``). Default: as captured.
        more_tokens : int
            Tokens that each request has yet to grow for the step.

        Returns
        -------
        Replay or Eager
            Eager is counted, here (:attr:`counts`) and in ``cache.metrics().eager`` where a cache was given; there
            "width" of a group that the cache knows (``set_graph_widths``) counts at the growth alone, in the core.

        Raises
        ------
        LeaseExpired, Closed
            A lease or ticket has ended.
        ArgumentError
            Something else than leases and tickets, a group or table that is not known.
        CaptureError
            A stream captures.
        """
        refuse_capture("route", "a decision by data")
        more = length("more_tokens", more_tokens)
        steps = [batch] if isinstance(batch, (Lease, Ticket)) else members("batch", batch, "leases and tickets")
        eager = (
            self._look(buffers)
            or self._watched.step_change(steps, self.shape, self._formats, more)
            or self._format_change(formats)
            or self._padding_change(padding)
        )
        if eager is None:
            bucket = self.shape.bucket_for(len(steps))
            if bucket is not None:
                return Replay(bucket, len(steps), [routed(step, more) for step in steps])
            eager = Eager("batch", width=self.shape.buckets[-1], needed=len(steps))
        self._count(eager)
        return eager

    def check(self, buffers: Mapping[str, Any] | None = None, *, route: Replay | None = None) -> None:
        """Assert, where the graph is replayed, that all it assumed is still so, and that its tables are the step's.

        Of the step: since the last ``staging.update`` none of its requests has ended or moved on, and no page that the
        tables name was taken back or handed out again. What the caller must see to is in ``docs/graphs.md``.

        Parameters
        ----------
        buffers : mapping, optional
            As in :meth:`route`.
        route : Replay, optional
            What :meth:`route` said of this step. Then the last update must be of the same requests at the same lengths,
            for this bucket or a larger one.

        Raises
        ------
        TopologyChanged
            With ``eager``, counted as by :meth:`route`: do not replay. The step may run eager.
        ArgumentError
            Something that is no array; a route that is no Replay.
        """
        if route is not None and not isinstance(route, Replay):
            raise ArgumentError("route", "the Replay that route said of this step", route)
        eager = self._look(buffers) or self._step_change(route)
        if eager is not None:
            self._count(eager)
            raise TopologyChanged(eager.field or eager.reason, eager.expected, eager.got, eager=eager)

    @property
    def counts(self) -> dict[str, int]:
        """How often :meth:`route` and :meth:`check` gave each reason."""
        return self._counts.read()

    @property
    def released(self) -> bool:
        """Whether it guards nothing any more."""
        return self._released

    @property
    def buffers(self) -> dict[str, BufferFacts]:
        """What was recorded of each buffer."""
        return {buffer.name: buffer.facts for buffer in self._buffers}

    # -- the null page -----------------------------------------------------------------------------

    def inspect_null_pages(self, *, dtypes: Mapping[str, str] | None = None) -> list[str]:
        """Look whether the pages that padding points to are finite; while one is not, every step is eager.

        Not for the hot path: it reads the pages, and of a device it waits for them.

        Parameters
        ----------
        dtypes : mapping of str to str, optional
            What bytes are read as, by group, where the pool's own dtype is no float: "float16", "bfloat16", "float32",
            "float64", "float8_e4m3fn", "float8_e5m2".

        Returns
        -------
        list of str
            Buffers whose null page holds a NaN or an infinity: write zeros there, and inspect again.

        Raises
        ------
        ArgumentError
            A pool of bytes without a dtype, device memory that is not torch's, or a group that is not known.
        CaptureError
            A stream captures.
        """
        refuse_capture("null_page", "a look at data")
        read_as = self._by_group("dtypes", dtypes)
        found = []
        for pool in self._null_pages():
            buffer, page = pool.buffer, pool.table.padding.page
            if not page_is_finite(buffer.name, buffer.item, pool.null_rows, read_as.get(buffer.group)):
                found.append(buffer.name)
                self._poisoned = Eager("null_page", buffer.group, field=buffer.name, expected="finite", got=page)
        if not found:
            self._poisoned = None
        return found

    def release(self) -> None:
        """Let go of all buffers, when the graph is gone. Every later route is eager, every check is refused."""
        self._released = True
        self._buffers = []
        self._pools = []
        self._staging = None
        self._watched = Watched.of(None, self.shape.spec, self.shape, ())

    # -- what has changed --------------------------------------------------------------------------

    def _look(self, buffers: Mapping[str, Any] | None) -> Eager | None:
        """Return the first thing that is not as it was captured; of the step itself nothing."""
        if self._released:
            return Eager("released", field="topology", expected="one that was not released", got="released")
        if buffers is None:
            found = next((eager for one in self._buffers if (eager := changed(one, one.item))), None)
        else:
            found = self._differing(flattened(buffers))
        return self._watched.change() or found or self._poisoned

    def _differing(self, flat: dict[str, tuple[str, Any]]) -> Eager | None:
        missing = self._names - self._staged - flat.keys()
        if missing or flat.keys() - self._names:
            return Eager("buffers", field="buffers", expected=sorted(self._names), got=sorted(flat))
        for buffer in self._buffers:
            item = flat[buffer.name][1] if buffer.name in flat else buffer.item
            eager = changed(buffer, item)
            if eager is not None and buffer.name in self._staged:
                return Eager("staging", field=eager.field, expected=eager.expected, got=eager.got)
            if eager is not None:
                return eager
        return None

    def _format_change(self, formats: Mapping[str, KvFormat] | None) -> Eager | None:
        for name, fmt in self._by_group("formats", formats).items():
            if not isinstance(fmt, KvFormat):
                raise ArgumentError(f"formats[{name}]", "a KvFormat", type(fmt).__name__)
            captured = self._formats.get(name)
            if captured is not None and fmt.fingerprint != captured:
                return Eager("format", name, field=name, expected=captured.hex(), got=fmt.fingerprint.hex())
        return None

    def _padding_change(self, padding: Mapping[str, object] | None) -> Eager | None:
        if padding is None:
            return None
        if not isinstance(padding, Mapping):
            raise ArgumentError("padding", "a mapping of tables to sentinels", padding)
        tables = {table.name: table for table in self.shape.tables}
        for name, value in padding.items():
            if name not in tables:
                raise ArgumentError("padding", f"tables of {list(tables)}", name)
            now, captured = padding_of(f"padding[{name}]", value), tables[name].padding
            if now != captured:
                return Eager("padding", tables[name].group.name, field=name, expected=captured, got=now)
        return None

    def _count(self, eager: Eager) -> None:
        self._counts.add(eager.reason)
        self._watched.count(eager)

    def _by_group(self, field: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Take what is said by group; a name that no group has is a mistake, not nothing."""
        known = [group.name for group in self.shape.spec.groups]
        if given is not None and not isinstance(given, Mapping):
            raise ArgumentError(field, f"a mapping of groups of {known}", given)
        for name in given or ():
            if name not in known:
                raise ArgumentError(field, f"groups of {known}", name)
        return given or {}

    def _step_change(self, route: Replay | None) -> Eager | None:
        """Return why the tables are not those of a step that may be replayed; of foreign tables nothing is known."""
        if self._staging is None:
            return None if route is None else moved_on(route._requests)
        step = self._staging._step
        if step is None:
            return Eager("restaged", field="staging", expected="an update that was made", got="one that broke off")
        return step.change(route)

    def _null_pages(self) -> list[SeenPool]:
        found = {(p.table.padding.page, p.buffer.name): p for p in self._pools if p.table.padding.kind != SKIP}
        return list(found.values())

    def __repr__(self) -> str:
        return f"Topology(buckets={list(self.shape.buckets)}, buffers={len(self._buffers)})"
