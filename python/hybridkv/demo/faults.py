# SPDX-License-Identifier: Apache-2.0
"""The fault kit of the clone, found and run: one state broken at a time, and which check refuses it.

The kit is ``tests/faults``, which is no part of the installed package.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hybridkv.errors import ArgumentError
from hybridkv.printed import page

_NAME = "hybridkv_fault_kit"


def find_kit(starts: Sequence[Path] | None = None) -> Path:
    """Find the fault kit that comes with a clone.

    Parameters
    ----------
    starts : sequence of Path, optional
        Folders from which to look upwards; default: the working directory, then the folder of this package.

    Returns
    -------
    Path
        The folder of the kit.

    Raises
    ------
    ArgumentError
        There is no clone around.
    """
    for start in starts or (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            kit = folder / "tests" / "faults"
            if (folder / "pyproject.toml").is_file() and (kit / "show.py").is_file():
                return kit
    raise ArgumentError("faults", "tests/faults of a clone above the working directory", "none")


def run_faults(kit: Path, model: str = "deepseek_v4") -> list[Any]:
    """Break one state of a model at a time.

    Parameters
    ----------
    kit : Path
        Of :func:`find_kit`.
    model : str
        As the kit names architectures.

    Returns
    -------
    list
        What became of each fault: objects with ``name``, ``kind``, ``broken``, ``in_pages``, ``in_image``,
        ``changed_by``, ``raised`` and ``is_refused``, as the kit documents them.
    """
    shown: list[Any] = _load(kit, "show").show(model)
    return shown


def as_json(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Make plain types of faults: ``{name, kind, broken, in_pages, in_image, changed_by, raised, refused}``.

    ``in_pages`` and ``in_image`` are ``CHECK/code``, null where it was accepted, "-" where pages cannot hold such a
    thing. ``changed_by`` is the largest change of a logit with all checks off, null where it is no number.
    """
    return [
        {
            "name": row.name,
            "kind": row.kind,
            "broken": row.broken,
            "in_pages": row.in_pages or None,
            "in_image": row.in_image or None,
            "changed_by": row.changed_by if math.isfinite(row.changed_by) else None,
            "raised": row.raised,
            "refused": row.is_refused,
        }
        for row in rows
    ]


def as_text(rows: Sequence[Any]) -> str:
    """Make a table of faults.

    Parameters
    ----------
    rows : sequence
        Of :func:`run_faults`.

    Returns
    -------
    str
        A line for each fault, and what they come to.
    """
    lines = [
        "One state of a tiny DeepSeek-V4 broken at a time: what refuses it where it lies in pages of the cache, what",
        "refuses it in an image of the whole state, and how far the next logits move where nothing is checked.",
        "",
        f"{'fault':<52} {'state':<10} {'in pages':<17} {'in an image':<17} {'unchecked':>9}",
    ]
    for row in rows:
        moved = "raises" if row.raised else f"{row.changed_by:.3g}"
        in_pages, in_image = row.in_pages or "ACCEPTED", row.in_image or "ACCEPTED"
        lines.append(f"{row.name:<52} {row.kind:<10} {in_pages:<17} {in_image:<17} {moved:>9}")
    refused, silent = sum(row.is_refused for row in rows), sum(not row.raised for row in rows)
    return page([*lines, "", f"{len(rows)} faults, {refused} refused; unchecked, {silent} of them raise nothing."])


def _load(kit: Path, name: str) -> ModuleType:
    """Import a module of the kit under a name of its own, so that no folder called tests gets in the way."""
    held = sys.modules.get(_NAME)
    if held is None or Path(str(held.__file__)).parent != kit:
        spec = importlib.util.spec_from_file_location(_NAME, kit / "__init__.py", submodule_search_locations=[str(kit)])
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{_NAME}.{name}")
