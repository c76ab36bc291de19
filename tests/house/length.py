# SPDX-License-Identifier: Apache-2.0
"""The ratchet on length: files of at most 500 lines, functions of at most 70; exceptions only shrink."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from house.tree import code_of, files, shown

FILE_LINES = 500
FUNCTION_LINES = 70

# Exceptions: path -> exact number of lines, "path::function" -> exact number of lines. An entry goes when
# the limit is met, and its number follows the file down; there is no way up.
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}

_AS_THEY_CAME = "bench/limits"  # the limit programs are used unchanged
_SUFFIXES = (".h", ".hpp", ".cpp", ".cuh", ".cu", ".py")
_NOT_A_FUNCTION = re.compile(r"^\s*(template\s*<[^{]*>\s*)?(inline\s+)?(namespace|class|struct|union|enum|extern)\b")
_NAME = re.compile(r"([~\w:]+|operator\s*\S+)\s*\(")


def _measured(root: Path) -> list[Path]:
    return [path for path in files(root, *_SUFFIXES) if not path.is_relative_to(root / _AS_THEY_CAME)]


def file_lines(root: Path, exceptions: dict[str, int] | None = None) -> list[str]:
    """Find files that are too long, and exceptions whose number is not the file's."""
    exceptions = LONG_FILES if exceptions is None else exceptions
    sizes = {shown(root, path): len(path.read_text(encoding="utf-8").splitlines()) for path in _measured(root)}
    return _ratchet(sizes, exceptions, FILE_LINES)


def function_lines(root: Path, exceptions: dict[str, int] | None = None) -> list[str]:
    """Find functions that are too long, and exceptions whose number is not the function's."""
    exceptions = LONG_FUNCTIONS if exceptions is None else exceptions
    sizes: dict[str, int] = {}
    for path in _measured(root):
        text = path.read_text(encoding="utf-8")
        measured = python_functions(text) if path.suffix == ".py" else cpp_functions(text)
        for name, lines in measured:
            key = f"{shown(root, path)}::{name}"
            sizes[key] = max(lines, sizes.get(key, 0))
    return _ratchet(sizes, exceptions, FUNCTION_LINES)


def _ratchet(sizes: dict[str, int], exceptions: dict[str, int], limit: int) -> list[str]:
    found = [f"{k}: {n} lines, at most {limit}" for k, n in sizes.items() if n > limit and k not in exceptions]
    for key, allowed in exceptions.items():
        now = sizes.get(key)
        if now is None:
            found.append(f"{key}: listed as an exception but gone")
        elif now <= limit:
            found.append(f"{key}: {now} lines, no exception any more: take it off the list")
        elif now > allowed:
            found.append(f"{key}: {now} lines, an exception may only shrink from {allowed}")
        elif now < allowed:
            found.append(f"{key}: shrank to {now}, lower its number from {allowed}")
    return found


@functools.lru_cache(maxsize=4096)  # a seeded copy of the tree differs in one file
def python_functions(text: str) -> list[tuple[str, int]]:
    """Return (name, lines) of every function, docstring not counted."""
    measured = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            measured.append((node.name, lines))
    return measured


@functools.lru_cache(maxsize=4096)
def cpp_functions(text: str) -> list[tuple[str, int]]:
    """Return (name, lines) of every outermost function body: from its opening brace to its closing one.

    Braces are matched on text without comments, literals and preprocessor lines. What stands between the
    last ``;``, ``{`` or ``}`` and a brace is its head; a head with parentheses that declares no type or
    namespace opens a function.
    """
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group().count("\n"), code_of(text), flags=re.M)
    measured = []
    stack: list[tuple[str, str, int]] = []  # what the brace opened, its head, its line
    head, line, inside = "", 1, False
    for char in code:
        if char == "\n":
            line += 1
        if char == "{":
            what = "inner" if inside else _opened_by(head)
            stack.append((what, head, line))
            inside = inside or what == "function"
            head = ""
        elif char == "}" and stack:
            what, opened, first = stack.pop()
            head = opened + "{}" if what == "init" else ""
            if what == "function":
                inside = False
                name = _NAME.search(opened)
                measured.append((name.group(1) if name else "?", line - first + 1))
        elif char == ";" and not (stack and stack[-1][0] == "init"):
            head = "" if head.count("(") <= head.count(")") else head + char
        else:
            head += char
    return measured


def _opened_by(head: str) -> str:
    head = head.strip()
    if "(" not in head or _NOT_A_FUNCTION.match(head):
        return "scope"
    if "=" in head.split("(")[0] and "operator" not in head:
        return "scope"  # an initialiser that calls something
    if re.search(r"\)\s*:[^:]", head) and re.search(r"[\w>]$", head):
        return "init"  # a member initialised with braces; the body comes later
    return "function"
