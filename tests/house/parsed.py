# SPDX-License-Identifier: Apache-2.0
"""What reads bytes or documents is read by a fuzz run, or says why what it reads is not of others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from house.parser_table import OF_OURS, READ_BY
from house.tree import code_of, files, shown

# Calls that make numbers, text or arrays of bytes, or get bytes from a file; by their last name.
_NAMES = {
    "from_bytes", "frombuffer", "fromfile", "fromhex", "fromstring", "from_buffer", "from_buffer_copy", "from_dlpack",
    "iter_unpack", "literal_eval", "load", "loads", "memmap", "open", "open_regular", "raw_decode", "read_bytes",
    "read_regular", "read_text", "safe_open", "unpack", "unpack_from",
}  # fmt: skip
_INTERFACES = {"__array_interface__", "__cuda_array_interface__", "__dlpack__"}
# The same in the core, where bytes of a tier or of the system come in.
_CORE = re.compile(r"\b(get_le<|take<|memcpy\(&|sscanf\(|from_chars\(|strto\w+\(|span<const std::byte> \w+[,)])")
_CORE_ROOMS = ("csrc/bindings/", "csrc/cache/", "csrc/tier/")


def covered(root: Path) -> list[str]:
    """Find modules that parse and stand in neither table, and entries of modules that do not."""
    signs = dict(_signs(root))
    found = [
        f"{where}: {name} reads bytes or a document: name the fuzz parsers that do, or why it is nobody else's, in "
        "tests/house/parser_table.py"
        for path, (where, name) in signs.items()
        if path not in READ_BY and path not in OF_OURS
    ]
    for path in [*READ_BY, *OF_OURS]:
        if path not in signs:
            found.append(f"tests/house/parser_table.py: {path} reads nothing any more, or is gone")
    return found + [f"tests/house/parser_table.py: {path} is in both tables" for path in READ_BY.keys() & OF_OURS]


def _signs(root: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield every file that parses, with the place and the name of the first thing that does."""
    for path in files(root / "python" / "hybridkv", ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if name := _name_of(node):
                yield shown(root, path), (shown(root, path, getattr(node, "lineno", 0)), name)
                break
    for path in files(root / "csrc", ".h", ".cpp"):
        if shown(root, path).startswith(_CORE_ROOMS):
            text = code_of(path.read_text(encoding="utf-8"))
            if match := _CORE.search(text):
                line = text[: match.start()].count("\n") + 1
                yield shown(root, path), (shown(root, path, line), match.group())


def _name_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        return name if name in _NAMES else None
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _INTERFACES:
        return node.attr
    if isinstance(node, ast.Constant) and node.value in _INTERFACES:  # asked for with getattr
        return str(node.value)
    return None
