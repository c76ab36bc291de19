# SPDX-License-Identifier: Apache-2.0
"""What the tests of the probe share: a service that is probed within few requests, over HTTP or by plain calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from hybridkv.probe import EndpointError, ProbeOptions, ProbeReport, probe
from hybridkv.probe.endpoint import Endpoint
from probe_models import HashHit, Toy
from probe_server import Engine, Service, serving

SHORT: dict[str, Any] = {
    "windows": (16,), "vocabulary": (0, 256), "samples": 1, "far_tokens": 24, "controls": 4, "longest": 256, "seed": 11,
}  # fmt: skip

_NUMBERS = itertools.count()


def toy(fault: Any = None, *, seed: int = 0, rounding: float = 0.0, **arguments: Any) -> HashHit:
    """Return a manager over a toy."""
    return HashHit(Toy(seed, rounding=rounding), fault=fault, **arguments)


class _Called(Endpoint):
    """An endpoint without a wire: requests are calls of a service of this process."""

    services: dict[str, Service]

    def _once(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        service = self.services[self.shown]
        if body is None:
            return {"data": [{"id": name} for name in service.adapters]}
        headers = {"Authorization": f"Bearer {self._key()}"}
        status, document = service.answer(path, json.loads(body), headers)
        if status != 200:
            raise EndpointError("status", 200, status, status=status, refused=status == 400)
        return document


_Called.services = {}


@contextmanager
def called(service: Service) -> Iterator[str]:
    """Let probes call a service. Yields: the address that stands for it."""
    url = f"http://service-{next(_NUMBERS)}/v1"
    _Called.services[url] = service
    with mock.patch("hybridkv.probe.run.Endpoint", _Called):
        yield url
    del _Called.services[url]


def probed(
    engine: Engine | None = None, *, service: dict[str, Any] | None = None, http: bool = False, **options: Any
) -> ProbeReport:
    """Probe an engine: by calls, which take a fifth of the time, or over HTTP."""
    made = Service(toy() if engine is None else engine, **(service or {}))
    with (serving if http else called)(made) as url:
        return probe(url, ProbeOptions(**{**SHORT, **options}))
