# SPDX-License-Identifier: Apache-2.0
"""Settings of the whole suite: how long property tests run, and what is absent and hence skipped."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest

SOAK = os.environ.get("HYBRIDKV_SOAK") == "1"

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the property tests say so themselves
    pass
else:
    # Times on shared machines say nothing about an example, hence no deadline. The default run is the
    # same on every machine; a soak looks further with fresh seeds, which hypothesis prints on failure.
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=slow)
    settings.register_profile("soak", deadline=None, max_examples=20_000, derandomize=False, suppress_health_check=slow)
    settings.load_profile("soak" if SOAK else "default")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what this environment lacks."""
    lines = [f"soak: {'on' if SOAK else 'off (make soak)'}"]
    absent = [name for name in ("torch", "transformers", "matplotlib") if importlib.util.find_spec(name) is None]
    if absent:
        lines.append(f"{', '.join(absent)}: absent, tests that need them are skipped (make test TORCH=1 installs them)")
    return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip soak tests outside a soak."""
    if SOAK:
        return
    skip = pytest.mark.skip(reason="a soak test: make soak, or HYBRIDKV_SOAK=1")
    for item in items:
        if "soak" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Run torch on one thread wherever a test has loaded it: sums are then made in one order on every machine."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
