# SPDX-License-Identifier: Apache-2.0
"""Include ranks: a folder of csrc includes its own files and lower ranks, never a neighbour of its rank."""

from __future__ import annotations

import re
from pathlib import Path

from house.tree import core_files, shown

RANKS = {
    "base": 0,
    "layout": 1,
    "kernels": 2,
    "tier": 2,
    "block": 2,
    "reuse": 3,
    "alloc": 3,
    "cache": 4,
    "bindings": 5,
}

# The one header that does not lie under csrc: the model checker's atomic, behind HKV_RELACY.
OUTSIDE = {("csrc/base/atomic.h", "relacy_atomic.h")}

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
_PYTHON = re.compile(r"^(Python\.h|pybind11/|numpy/|torch/|ATen/|c10/)")


def _includes(path: Path) -> list[tuple[int, str, str]]:
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(1)) + 1, m.group(1), m.group(2)) for m in _INCLUDE.finditer(text)]


def ranks(root: Path) -> list[str]:
    """Find includes that go up, sideways or nowhere, and folders without a rank."""
    found = []
    for path in core_files(root):
        folder = path.relative_to(root / "csrc").parts[0]
        if folder not in RANKS:
            found.append(f"{shown(root, path)}: folder {folder!r} has no rank")
            continue
        for line, bracket, name in _includes(path):
            target = name.split("/")[0]
            where = shown(root, path, line)
            if bracket == "<":
                if target in RANKS and (root / "csrc" / name).exists():
                    found.append(f"{where}: <{name}> is ours, write it in quotes")
            elif "/" not in name:
                if (shown(root, path), name) not in OUTSIDE:
                    found.append(f'{where}: "{name}" does not start at csrc')
            elif target not in RANKS or not (root / "csrc" / name).exists():
                found.append(f'{where}: "{name}" is not a file under csrc')
            elif target != folder and RANKS[target] >= RANKS[folder]:
                found.append(f"{where}: {folder} (rank {RANKS[folder]}) includes {target} (rank {RANKS[target]})")
    return found


def no_python(root: Path) -> list[str]:
    """Find Python and torch headers in the core: only the bindings may know them."""
    return [
        f"{shown(root, path, line)}: <{name}> outside csrc/bindings"
        for path in core_files(root)
        if path.relative_to(root / "csrc").parts[0] != "bindings"
        for line, _, name in _includes(path)
        if _PYTHON.match(name)
    ]
