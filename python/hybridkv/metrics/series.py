# SPDX-License-Identifier: Apache-2.0
"""A metric as Prometheus knows it: what it is, and what was read of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hybridkv.errors import ArgumentError

BASE_LABELS = ("model", "cache")
"""Labels that the collector puts before those of every metric: which cache it is, of which model."""

SERVER_LABELS = ("job", "instance")
"""Labels that a Prometheus server puts to whatever it scrapes."""

_NAME = re.compile(r"hybridkv_[a-z][a-z0-9_]*[a-z]")


@dataclass(frozen=True, slots=True)
class Series:
    """One metric.

    Parameters
    ----------
    name : str
        As in an exposition; of a counter with ``_total``.
    kind : {"counter", "gauge"}
    unit : str
        What is counted.
    labels : tuple of str
        Beyond :data:`BASE_LABELS`.
    meaning : str
        A sentence.

    Raises
    ------
    ArgumentError
        A name, or a label, that breaks the conventions.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    labels: tuple[str, ...]
    meaning: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.endswith("_total") != (self.kind == "counter"):
            raise ArgumentError("name", "hybridkv_..., with _total exactly where it is a counter", self.name)
        taken = {*BASE_LABELS, *SERVER_LABELS}
        if taken & set(self.labels) or len(set(self.labels)) != len(self.labels):
            raise ArgumentError("labels", f"each once, and none of {sorted(taken)}", self.labels)


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a metric.

    Parameters
    ----------
    value : float
        What was read.
    labels : tuple of str
        Values of the labels of its metric, in their order.
    """

    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """All numbers of one metric that one source has.

    Parameters
    ----------
    series : Series
        The metric.
    samples : sequence of Sample
        Each with other labels.

    Raises
    ------
    ArgumentError
        A sample with more or fewer labels than the metric, or two of the same.
    """

    series: Series
    samples: Sequence[Sample]

    def __post_init__(self) -> None:
        names = self.series.labels
        for sample in self.samples:
            if len(sample.labels) != len(names):
                raise ArgumentError("samples", f"values of {names} of {self.series.name}", sample.labels)
        if len({sample.labels for sample in self.samples}) != len(self.samples):
            raise ArgumentError("samples", f"one of {self.series.name} for each set of labels", "two of one")
