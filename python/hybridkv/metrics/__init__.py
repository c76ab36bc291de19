# SPDX-License-Identifier: Apache-2.0
"""What a cache counts, for Python and for Prometheus, with a dashboard and alerts. ``docs/metrics.md`` is the guide.

:class:`Metrics` is one reading, of :meth:`HybridCache.metrics <hybridkv.HybridCache.metrics>`. :func:`prometheus` makes
a collector of a cache for ``prometheus_client``, which the extra ``metrics`` brings; nothing else here needs it.
"""

from __future__ import annotations

from hybridkv.metrics.alerts import alert_rules
from hybridkv.metrics.cache_series import SERIES
from hybridkv.metrics.canary_series import CANARY_SERIES, canary_families
from hybridkv.metrics.collector import Collector, Source, prometheus
from hybridkv.metrics.counts import Metrics, MovedCounts, PageCounts, StrandedPages
from hybridkv.metrics.dashboard import dashboard
from hybridkv.metrics.series import Family, Sample, Series

__all__ = [
    "CANARY_SERIES",
    "SERIES",
    "Collector",
    "Family",
    "Metrics",
    "MovedCounts",
    "PageCounts",
    "Sample",
    "Series",
    "Source",
    "StrandedPages",
    "alert_rules",
    "canary_families",
    "dashboard",
    "prometheus",
]
