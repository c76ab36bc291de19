# SPDX-License-Identifier: Apache-2.0
"""What parts of this package need beyond numpy, and what to install where it is absent.

Nothing here imports any of it. ``pyproject.toml`` declares the extras.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """One package.

    Attributes
    ----------
    module : str
        What has to be importable.
    name : str
        Of the package, for people.
    extra : str
        The extra of hybridkv that brings it.
    """

    module: str
    name: str
    extra: str


MODELS = (
    Need("torch", "torch", "transformers"),
    Need("transformers.models.deepseek_v4", "transformers (5.8 or newer)", "transformers"),
)
"""Of the models of the demo."""

TRANSFORMERS = (
    Need("torch", "torch", "transformers"),
    Need("transformers.cache_utils", "transformers", "transformers"),
)
"""Of the adapter for transformers."""

TORCH = (Need("torch", "torch", "torch"),)
"""Of the ops of torch."""

PICTURE = (Need("matplotlib", "matplotlib", "plots"),)
"""Of the picture of the demo."""

METRICS = (Need("prometheus_client", "prometheus_client", "metrics"),)
"""Of the collector for Prometheus."""


def absent(needs: Sequence[Need]) -> str | None:
    """Say what is missing and how to get it.

    Parameters
    ----------
    needs : sequence of Need
        In order: what comes later may need what comes earlier.

    Returns
    -------
    str or None
        A sentence; None where nothing is missing.
    """
    missing = [need for need in needs if not _there(need.module)]
    if not missing:
        return None
    names = " and ".join(need.name for need in missing)
    extras = ",".join(dict.fromkeys(need.extra for need in missing))
    return f"{names} not installed: pip install '.[{extras}]' in a clone of hybridkv"


@contextmanager
def importing(name: str, needs: Sequence[Need]) -> Iterator[None]:
    """Say which extra is missing where imports in the body fail for lack of one.

    Parameters
    ----------
    name : str
        What is imported, for people.
    needs : sequence of Need
        As in :func:`absent`.

    Raises
    ------
    ImportError
        With a sentence that names the extra; one that has another cause passes as it is.
    """
    try:
        yield
    except ImportError as error:
        reason = absent(needs)
        if reason is None:
            raise
        raise ImportError(f"{name}: {reason}") from error


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the package around it is absent, or lacks something itself
        return False
