# SPDX-License-Identifier: Apache-2.0
"""Bytes are never run, and keys come out of one function."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from house.tree import code_of, core_files, files, shown

PACKAGE = ("python", "hybridkv")

# Modules that make objects, and with them calls, out of bytes.
RUNNERS = {"cloudpickle", "copyreg", "dill", "jsonpickle", "joblib", "marshal", "pickle", "shelve", "_pickle", "yaml"}
_CALLS = {"eval", "exec", "__import__"}
_LOADS = {"torch": "load", "np": "load", "numpy": "load"}

# What computes keys: in Python one function, in the core one folder. Everybody else is given keys.
KEY_MAKERS = ("python/hybridkv/keys.py",)
SALT_READERS = ("python/hybridkv/identity.py", "python/hybridkv/keys.py")
_CORE_MAKERS = ("csrc/base/", "csrc/layout/")
_CORE_DOOR = "csrc/bindings/keys.cpp"
_CORE_NAMES = re.compile(
    r"\b(identity_root|KeyChain::build|KeyChain::from_hashes|sha256_\w+|Sha256\w*|(?:unit|root|tip|tips|hashes)_tag)\b"
)
_DIRECTORY = "directory_key"  # of tips, from a key that is there: csrc/cache looks tips up by it


def nothing_runs(root: Path) -> list[str]:
    """Find imports and calls that could run what is in bytes."""
    found = []
    for path in files(root.joinpath(*PACKAGE), ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _runs(node):
                found.append(f"{shown(root, path, getattr(node, 'lineno', 0))}: {name} makes more than data of bytes")
    return found


def _runs(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in RUNNERS)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
        if node.module.partition(".")[0] in RUNNERS:
            yield node.module
        yield from (alias.name for alias in node.names if alias.name in RUNNERS)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[str]:
    if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        yield node.func.id
    elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        owner = node.func.value.id
        if _LOADS.get(owner) == node.func.attr:
            yield f"{owner}.{node.func.attr}"
        if owner == "importlib" and node.func.attr == "import_module" and not _names_a_module(node):
            yield "importlib.import_module"
    if any(word.arg == "allow_pickle" for word in node.keywords):
        yield "allow_pickle"


def _names_a_module(node: ast.Call) -> bool:
    """Whether an import is of a module that the text names, at least its first part."""
    return bool(node.args) and isinstance(node.args[0], (ast.Constant, ast.JoinedStr))


def one_key_function(root: Path) -> list[str]:
    """Find whatever else than the one function could compute a key, or reads the parts that keys are made of."""
    found = []
    for path in files(root.joinpath(*PACKAGE), ".py"):
        name = shown(root, path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                made = ast.unparse(node)
                if made.endswith(("KeyChain.build", "KeyChain.from_hashes", "_core.sha256")) and name not in KEY_MAKERS:
                    found.append(f"{shown(root, path, node.lineno)}: {made}: keys are made by block_keys alone")
                if node.attr == "salt" and name not in SALT_READERS:
                    found.append(
                        f"{shown(root, path, node.lineno)}: {made}: the salt is read where keys are made alone"
                    )
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "BlockKeys"
                and name not in KEY_MAKERS
            ):
                found.append(f"{shown(root, path, node.lineno)}: BlockKeys(): keys are made by block_keys alone")
    for path in core_files(root):
        name = shown(root, path)
        if name.startswith(_CORE_MAKERS) or name == _CORE_DOOR:
            continue
        text = code_of(path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), start=1):
            found += [
                f"{shown(root, path, number)}: {match.group()}: keys are made in csrc/layout alone"
                for match in _CORE_NAMES.finditer(line)
            ]
            if "key_message::" in line and f"key_message::{_DIRECTORY}" not in line:
                found.append(f"{shown(root, path, number)}: key_message: keys are made in csrc/layout alone")
    return found
