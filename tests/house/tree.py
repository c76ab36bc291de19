# SPDX-License-Identifier: Apache-2.0
"""What the rules walk over: the files of a tree, and C++ text without comments and literals."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

# Folders that hold products, not sources. A rule never looks inside.
PRODUCT_FOLDERS = {
    ".git", ".venv", "build", "dist", "wheelhouse", "__pycache__", ".benchmarks", ".cache", ".hypothesis",
    ".mypy_cache", ".pytest_cache", ".ruff_cache",
}  # fmt: skip
PRODUCT_SUFFIXES = {".pyc", ".so", ".o", ".a"}

_COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


def files(root: Path, *suffixes: str) -> Iterator[Path]:
    """Yield the files of the tree in order, all or those whose name ends with one of `suffixes`."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in PRODUCT_FOLDERS and not f.startswith(".venv"))
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix in PRODUCT_SUFFIXES or path.is_symlink():
                continue
            if not suffixes or name.endswith(suffixes):
                yield path


def core_files(root: Path) -> Iterator[Path]:
    """Yield the C++ sources and headers under csrc."""
    yield from files(root / "csrc", ".h", ".cpp", ".cuh", ".cu")


def shown(root: Path, path: Path, line: int | None = None) -> str:
    """Return the path as findings print it."""
    name = path.relative_to(root).as_posix()
    return name if line is None else f"{name}:{line}"


def code_of(text: str) -> str:
    """Return C++ text with comments and the insides of literals blanked; lines and columns stay."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return _COMMENT_OR_LITERAL.sub(blank, text)
