# SPDX-License-Identifier: Apache-2.0
"""Documents: every path of the repository that a document names exists; code in them runs, or says that it does not."""

from __future__ import annotations

import re
from pathlib import Path

from house.includes import RANKS
from house.tree import files, shown

_QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
_PATH = re.compile(r"^\.?[\w\-*]+(?:[./][\w\-*]+)*/?$")
_OURS = {"csrc", "python", "tests", "bench", "docs", ".ci"}
_PRODUCTS = (".venv", "build/", "dist/")
_SOURCE_NAME = re.compile(r"^[\w\-]+\.(?:h|cpp|pyi?|md|toml)$")
_HISTORY = {"CHANGELOG.md"}  # may name what is gone
_PYTHON = re.compile(r"^\s*```+\s*\{?\.?(?:py|i?python|pycon|doctest)", re.IGNORECASE)

NOT_RUN = "not-run"
"""Mark of a block of Python that wants what a test has not: a model, memory of an engine."""


def paths(root: Path) -> list[str]:
    """Find paths in backticks and links of Markdown files that do not exist."""
    names = {path.name for path in files(root)}
    found = []
    for document in files(root, ".md"):
        if document.name in _HISTORY:
            continue
        fenced = False
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if fenced:
                continue
            for token in (*_QUOTED.findall(line), *_LINK.findall(line)):
                if not _exists(root, document, token, names):
                    found.append(f"{shown(root, document, number)}: {token} does not exist")
    return found


def _exists(root: Path, document: Path, token: str, names: set[str]) -> bool:
    """Say whether `token` exists, or is no path of the repository at all."""
    if not _PATH.match(token) or token.startswith(_PRODUCTS):
        return True
    if "/" not in token:
        return not _SOURCE_NAME.match(token) or token in names
    first = token.split("/")[0]
    bases = [root, document.parent, root / "python"]
    if first in RANKS:
        bases.append(root / "csrc")
    elif first not in _OURS and first != "hybridkv":
        return True
    return any(next(iter(base.glob(token.rstrip("/"))), None) is not None for base in bases)


def code_blocks(document: Path, mark: str = "") -> list[tuple[int, str]]:
    """Return (line, code) of the ```python blocks of a document that run, or of those that bear the mark."""
    text = document.read_text(encoding="utf-8")
    opening = "```python" + (f" {mark}" if mark else "")
    blocks = re.finditer(rf"^{opening}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, m.start(1)) + 1, m.group(1)) for m in blocks]


def unmarked(root: Path) -> list[str]:
    """Find blocks of Python in README and docs that neither run in a test nor say that they do not."""
    found = []
    for document in files(root, ".md"):
        if document.parent not in (root, root / "docs"):
            continue
        fenced = False
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
            if not line.lstrip().startswith("```"):
                continue
            fenced = not fenced
            if fenced and _PYTHON.match(line) and line not in ("```python", f"```python {NOT_RUN}"):
                found.append(f"{shown(root, document, number)}: {line.strip()}, not ```python or ```python {NOT_RUN}")
    return found
