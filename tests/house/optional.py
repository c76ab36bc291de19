# SPDX-License-Identifier: Apache-2.0
"""Packages that an extra brings are imported where they are used, never when a module of the library is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from house.tree import files, shown

OPTIONAL = {"matplotlib", "prometheus_client", "rich", "safetensors", "torch", "transformers", "vllm"}

# Rooms that may import them at once: their doors say which extra is missing (python/hybridkv/extras.py).
ROOMS = ("adapters", "demo")

_FOR_CHECKERS = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
_PACKAGE = ("python", "hybridkv")


def lazily(root: Path) -> list[str]:
    """Find imports of optional packages that run when a module outside the rooms is imported."""
    found = []
    for path in files(root.joinpath(*_PACKAGE), ".py"):
        if path.relative_to(root.joinpath(*_PACKAGE)).parts[0] in ROOMS:
            continue
        for line, name in _imported(ast.parse(path.read_text(encoding="utf-8")).body):
            if name.partition(".")[0] in OPTIONAL:
                found.append(f"{shown(root, path, line)}: {name} is imported with the module: an extra brings it")
    return found


def _imported(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of imports that run with the statements: not those in functions, or for a type checker."""
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from ((statement.lineno, alias.name) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            if not statement.level and statement.module is not None:
                yield statement.lineno, statement.module
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) in _FOR_CHECKERS:
            yield from _imported(statement.orelse)
        else:
            for _, value in ast.iter_fields(statement):
                inner = value if isinstance(value, list) else []
                yield from _imported([one for one in inner if isinstance(one, ast.stmt)])
                for handler in (one for one in inner if isinstance(one, (ast.ExceptHandler, ast.match_case))):
                    yield from _imported(handler.body)
