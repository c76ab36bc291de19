# SPDX-License-Identifier: Apache-2.0
"""API reference = docstrings: each page of ``docs/api`` is what the public names of one module say of themselves.

``python tests/house/api_reference.py`` prints what differs, ``--write`` rewrites the pages.
"""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = "docs/api"
MODULES = (
    "hybridkv", "alignment", "canary", "digests", "explain", "formats", "graph", "metrics", "ops", "planner", "probe",
    "rollout", "tiers",
)  # fmt: skip
HEAD = "<!-- Written by tests/house/api_reference.py from the docstrings; do not edit. -->\n"

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`<]*?)(?:\s*<[^`]*>)?`")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_QUOTED = re.compile(r"(: |-> )'([^']*)'|ForwardRef\('([^']*)'\)")
_OWNER = re.compile(r"^\((?:self|cls)(?:, )?")


def pages() -> dict[str, str]:
    """Return the pages by their file names, the list of them among these."""
    found = {}
    lines = ["# API reference", "", "Every public name, from its docstring.", ""]
    for name in MODULES:
        module = importlib.import_module("hybridkv" if name == "hybridkv" else f"hybridkv.{name}")
        found[f"{name}.md"] = HEAD + "\n".join(_page(module)) + "\n"
        lines.append(f"- [`{module.__name__}`]({name}.md): {_first(module)}")
    found["README.md"] = HEAD + "\n".join(lines) + "\n"
    return found


def differences(root: Path) -> list[str]:
    """Find lines in which the committed pages are not what the docstrings say."""
    found = []
    expected = pages()
    here = {path.name for path in (root / FOLDER).glob("*.md")}
    found += [f"{FOLDER}/{name}: of no module" for name in sorted(here - expected.keys())]
    for name, text in expected.items():
        path = root / FOLDER / name
        committed = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = difflib.unified_diff(committed.splitlines(), text.splitlines(), n=0, lineterm="")
        found += [f"{FOLDER}/{name}: {line}" for line in lines if not line.startswith(("---", "+++", "@@"))]
    return found


def _page(module: ModuleType) -> Iterator[str]:
    yield f"# {module.__name__}"
    yield ""
    yield from _text(module)
    yield ", ".join(f"[{name}](#{name.lower()})" for name, _ in _public(module))
    yield ""
    for name, item in _public(module):
        yield f"## {name}"
        yield ""
        if callable(item):
            yield from _signature(name, item)
        yield from _text(item)
        for member, value in _members(item):
            yield f"### {name}.{member}"
            yield ""
            if callable(value):
                yield from _signature(member, value)
            yield from _text(value)


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield what a module offers and documents, but for other modules."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in sorted(names):
        item = getattr(module, name)
        if isinstance(item, ModuleType) or not (inspect.isclass(item) or callable(item)):
            continue
        if getattr(item, "__module__", "").startswith("hybridkv"):
            yield name, item


def _members(item: Any) -> Iterator[tuple[str, Any]]:
    """Yield methods and properties with a docstring of their own, those of base classes of ours first."""
    if not inspect.isclass(item):
        return
    seen: dict[str, Any] = {}
    for owner in reversed(item.__mro__):
        if owner.__module__.startswith("hybridkv"):
            for name, value in vars(owner).items():
                plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                documented = inspect.isfunction(plain) or isinstance(plain, property)
                if not name.startswith("_") and documented and plain.__doc__:
                    seen[name] = plain
    yield from seen.items()


def _signature(name: str, item: Any) -> Iterator[str]:
    if inspect.isclass(item) and issubclass(item, enum.Enum | BaseException):
        return
    try:
        told = _OWNER.sub("(", _ADDRESS.sub("", str(inspect.signature(item))))
    except (TypeError, ValueError):  # the core tells none
        return
    yield "```text"
    yield name + _QUOTED.sub(lambda m: f"{m[1] or ''}{m[2] or m[3]}", told)
    yield "```"
    yield ""


def _first(item: Any) -> str:
    return _marked(inspect.cleandoc(item.__doc__ or "").split("\n\n")[0].replace("\n", " "))


def _text(item: Any) -> Iterator[str]:
    """Yield a docstring as Markdown: sections of NumPy style as lists, examples as they are."""
    parts = _SECTION.split(inspect.cleandoc(item.__doc__ or ""))
    yield from _prose(parts[0])
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        yield f"**{title}**"
        yield ""
        if title == "Examples":
            yield from ("```text", body.strip("\n"), "```", "")
        elif title in ("Notes", "See Also", "References"):
            yield from _prose(body)
        else:
            yield from _list(body)


def _prose(text: str) -> Iterator[str]:
    if text.strip():
        yield _marked(text.strip("\n"))
        yield ""


def _list(body: str) -> Iterator[str]:
    """Yield entries: an unindented line that names, and indented ones that say what it is."""
    for entry in re.split(r"\n(?=\S)", body.strip("\n")):
        named, *told = entry.split("\n")
        name, _, kind = named.partition(" : ")
        said = _marked(" ".join(line.strip() for line in told if line.strip()))
        yield f"- `{name.strip()}`" + (f" ({_marked(kind)})" if kind else "") + (f": {said}" if said else "")
    yield ""


def _marked(text: str) -> str:
    """Return text with quotes of reStructuredText as those of Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def main(arguments: list[str]) -> int:
    """Print or repair the difference; return 1 where there is one left."""
    root = Path(__file__).resolve().parents[2]
    if arguments == ["--write"]:
        (root / FOLDER).mkdir(exist_ok=True)
        for name, text in pages().items():
            (root / FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    found = differences(root)
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
