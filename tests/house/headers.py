# SPDX-License-Identifier: Apache-2.0
"""What every file must and must not carry: its licence line; nothing of the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

from house.tree import files, shown

_SOURCES = (".h", ".hpp", ".cpp", ".cu", ".cuh", ".py", ".pyi", ".sh", ".toml", ".yaml", ".yml", ".txt")
_NAMED_SOURCES = {"Makefile", "run", ".clang-format", ".gitignore"}
_LICENCE = re.compile(r"^(//|#) SPDX-License-Identifier: Apache-2\.0$")

# Files of others, whose licence is in NOTICE, and the limit programs, which are used unchanged.
_AS_THEY_CAME = ("tests/data/", "tests/golden/", "bench/limits/")
_TEXTS = (*_SOURCES, ".md", ".json", "LICENSE", "NOTICE", *sorted(_NAMED_SOURCES))
# Bracketed letters, so that this file does not find itself.
_MACHINE = re.compile(r"(?<![\w.~*$})/])/(?:[w]ork|[r]oot|[t]mp|[h]ome|[f]arm)/")
_HOSTS = re.compile(r"[p]ypi\.org|[p]ythonhosted\.org")


def licences(root: Path) -> list[str]:
    """Find sources whose first line (after ``#!``) is not the SPDX line."""
    found = []
    for path in files(root):
        name = shown(root, path)
        if not (name.endswith(_SOURCES) or path.name in _NAMED_SOURCES) or name.startswith(_AS_THEY_CAME):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines and lines[0].startswith("#!"):
            lines = lines[1:]
        if lines and not _LICENCE.match(lines[0]):
            found.append(f"{name}:1: no SPDX-License-Identifier: Apache-2.0")
    return found


def machine_paths(root: Path) -> list[str]:
    """Find absolute paths of somebody's machine and names of hosts."""
    found = []
    for path in files(root):
        name = shown(root, path)
        if not name.endswith(_TEXTS) or name.startswith(_AS_THEY_CAME):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in (*_MACHINE.finditer(line), *_HOSTS.finditer(line)):
                found.append(f"{name}:{number}: {match.group()}")
    return found
