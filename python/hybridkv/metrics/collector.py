# SPDX-License-Identifier: Apache-2.0
"""Metrics of caches, and of whatever watches them, for ``prometheus_client``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from hybridkv import extras
from hybridkv.arguments import flag
from hybridkv.errors import ArgumentError
from hybridkv.metrics.cache_series import SERIES, cache_families, read_cache
from hybridkv.metrics.series import BASE_LABELS, Family, Series

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from hybridkv.cache_view import CacheView


@runtime_checkable
class Source(Protocol):
    """Whatever has metrics of its own, such as a canary."""

    def families(self) -> Iterable[Family]:
        """Return what there is now, each metric once: one reading."""


class _OfCache:
    """The metrics of a cache, which it does not keep alive."""

    def __init__(self, cache: CacheView, stranded: bool) -> None:
        self._cache = weakref.ref(cache)
        self._stranded = stranded

    def families(self) -> Iterable[Family]:
        cache = self._cache()
        return () if cache is None else tuple(cache_families(read_cache(cache, stranded=self._stranded)))

    def is_of(self, source: object) -> bool:
        return self._cache() is source

    @property
    def gone(self) -> bool:
        return self._cache() is None

    @property
    def ended(self) -> bool:
        cache = self._cache()
        return cache is None or cache._closed


@dataclass(frozen=True)
class _Watched:
    source: Source
    labels: tuple[str, str]

    def is_of(self, source: object) -> bool:
        return self.source.is_of(source) if isinstance(self.source, _OfCache) else self.source is source

    def holds_labels(self) -> bool:
        """Whether nobody else may have them: a cache that has ended gives them up."""
        return not (isinstance(self.source, _OfCache) and self.source.ended)


class Collector:
    """What a registry of ``prometheus_client`` asks for metrics; :func:`prometheus` makes one.

    One collector for all caches of a registry: two with the same metrics it refuses, rightly, since an exposition has
    each metric once.

    Notes
    -----
    Thread safety: any thread. Each source is read once in a scrape, so that the numbers of a cache belong together.

    A cache is not kept alive. Once it is closed, what it has counted stays, with ``hybridkv_open`` 0, until it is
    garbage collected, taken out (:meth:`remove`), or another takes its labels. Counters of a cache never go down,
    ``reset`` included.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._made = 0

    def add(
        self, source: CacheView | Source, *, model: str | None = None, name: str | None = None, stranded: bool = True
    ) -> Self:
        """Take in another cache, or whatever else has metrics.

        Parameters
        ----------
        source : HybridCache or Source
            A Source is kept alive, and must not raise.
        model : str, optional
            Label "model". Default: ``spec.identity.model`` of a cache, else empty.
        name : str, optional
            Label "cache": of a Source that of the cache it watches. Default: a number, 0 for the first.
        stranded : bool, optional
            Look for stranded pages of a cache in each scrape: see :meth:`HybridCache.stranded
            <hybridkv.HybridCache.stranded>` for the cost.

        Returns
        -------
        Collector
            This one.

        Raises
        ------
        ArgumentError
            Neither of the two, there already, or the same metrics with the labels of another that has not ended; a
            metric that is known under the same name with other labels.
        """
        from hybridkv.cache_view import CacheView

        flag("stranded", stranded)
        if isinstance(source, CacheView):
            made: Source = _OfCache(source, stranded)
            model = source.spec.identity.model if model is None else model
        elif isinstance(source, Source):
            made = source
        else:
            raise ArgumentError("source", "a HybridCache, or an object with families()", type(source).__name__)
        for field, text in (("model", model), ("name", name)):
            if text is not None and not isinstance(text, str):
                raise ArgumentError(field, "a str", text)
        told = {family.series for family in made.families()}
        with self._lock:
            if any(watched.is_of(source) for watched in self._watched):
                raise ArgumentError("source", "one that is not there yet", "the same again")
            new = _Watched(made, (model or "", str(self._made) if name is None else name))
            kept = [watched for watched in self._watched if not _gives_way(watched, new)]
            _check_series(kept, new, told)
            self._watched = [*kept, new]
            self._made += 1
        return self

    def remove(self, source: CacheView | Source) -> None:
        """Take a source out; one that is not there is let be."""
        with self._lock:
            self._watched = [watched for watched in self._watched if not watched.is_of(source)]

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without numbers: what a registry compares with those that it has."""
        known = {series.name: series for series in SERIES}
        for _, family in self._read():
            known.setdefault(family.series.name, family.series)
        return (_metric(series) for series in known.values())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of every source, each source read once."""
        made: dict[str, Metric] = {}
        for labels, family in self._read():
            series = family.series
            metric = made.get(series.name)
            if metric is None:
                metric = made[series.name] = _metric(series)
            for sample in family.samples:
                metric.add_metric((*labels, *sample.labels), sample.value)
        return iter(made.values())

    def _read(self) -> Iterator[tuple[tuple[str, str], Family]]:
        with self._lock:
            self._watched = [w for w in self._watched if not (isinstance(w.source, _OfCache) and w.source.gone)]
            watched = list(self._watched)
        for one in watched:
            for family in one.source.families():
                yield one.labels, family


def prometheus(
    cache: CacheView, *, model: str | None = None, name: str | None = None, stranded: bool = True
) -> Collector:
    """Make a collector for ``prometheus_client`` of a cache.

    Parameters
    ----------
    cache : HybridCache
        The first; :meth:`Collector.add` takes further ones, and canaries.
    model, name, stranded
        As in :meth:`Collector.add`.

    Returns
    -------
    Collector
        For ``registry.register``.

    Raises
    ------
    ImportError
        ``prometheus_client`` is not installed: it names the extra.
    ArgumentError
        As :meth:`Collector.add`.

    Examples
    --------
    >>> import hybridkv as hk
    >>> from prometheus_client import CollectorRegistry
    >>> cache = hk.HybridCache(hk.CacheSpec.homogeneous(layers=2, page_bytes=64), blocks=128)
    >>> verdict = cache.match(hk.block_keys(range(100), 16))
    >>> registry = CollectorRegistry()
    >>> registry.register(hk.metrics.prometheus(cache, model="tiny"))
    >>> registry.get_sample_value("hybridkv_misses_tokens_total", {"model": "tiny", "cache": "0"})
    100.0
    """
    with extras.importing("hybridkv.metrics.prometheus", extras.METRICS):
        import prometheus_client  # noqa: F401
    return Collector().add(cache, model=model, name=name, stranded=stranded)


def _gives_way(old: _Watched, new: _Watched) -> bool:
    return old.labels == new.labels and not old.holds_labels()


def _check_series(watched: Iterable[_Watched], new: _Watched, told: set[Series]) -> None:
    """Refuse what no exposition can hold: a metric with two sets of labels, or two numbers with the same ones."""
    known = {series.name: series for series in SERIES}
    for one in watched:
        theirs = {family.series for family in one.source.families()}
        known |= {series.name: series for series in theirs}
        if one.labels == new.labels and theirs & told:
            raise ArgumentError("name", "labels that no other source of the same metrics has", new.labels)
    for series in told:
        if known.get(series.name, series) != series:
            raise ArgumentError("source", f"{known[series.name]}", series)


def _metric(series: Series) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = (*BASE_LABELS, *series.labels)
    if series.kind == "counter":
        return CounterMetricFamily(series.name.removesuffix("_total"), series.meaning, labels=labels)
    return GaugeMetricFamily(series.name, series.meaning, labels=labels)
