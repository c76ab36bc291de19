# SPDX-License-Identifier: Apache-2.0
"""The registry as tables of Markdown: fields, entries, and what can be read as what. ``docs/formats.md`` holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from hybridkv.formats.conversions import Relation, relation
from hybridkv.formats.format_entry import APPLIES
from hybridkv.formats.kv_format import KvFormat
from hybridkv.formats.registry import REGISTRY
from hybridkv.formats.severity import Compatibility


def field_table() -> str:
    """Return the fields of a format: what a difference means, the schema of documents that has it, where it varies."""
    rows = [
        (f"`{f.name}`", f.metadata["severity"], str(f.metadata["since"]), f.metadata["source"])
        for f in fields(KvFormat)
    ]
    return _table(("field", "a difference is", "since schema", "seen in"), rows)


def entry_table() -> str:
    """Return the entries: what each is, who writes it, and whether the kernels have a name for its rows."""
    rows = [
        (
            f"`{entry.name}`",
            entry.kind,
            entry.format.dtype,
            str(entry.format.row_bytes or "-"),
            entry.says,
            ", ".join(entry.used_by),
            "yes" if entry.row_format() is not None else "no",
            f"`{entry.format.fingerprint.hex()[:8]}`",
        )
        for entry in REGISTRY.values()
    ]
    return _table(
        ("name", "kind", "dtype", "row bytes", "what it is", "written by", "`RowFormat`", "fingerprint"), rows
    )


def matrix(kind: str) -> str:
    """Return what a reader (a row) can make of what a writer (a column) wrote, for the entries of one kind.

    ``=`` EXACT; ``C`` CONVERTIBLE, with the steps of the conversion, ``?`` where the bytes decide, too; ``c``
    CONVERTIBLE by nothing that is here, with the first field that nothing converts; else INCOMPATIBLE, with the first
    field that makes it so.
    """
    entries = [entry for entry in REGISTRY.values() if entry.kind == kind]
    rows = [
        (f"{number} `{reader.name}`", *(_cell(relation(reader.format, writer.format)) for writer in entries))
        for number, reader in enumerate(entries, 1)
    ]
    return _table(("reader \\ writer", *map(str, range(1, len(entries) + 1))), rows)


def sections() -> dict[str, str]:
    """Return every generated section of the document by name."""
    found = {"fields": field_table(), "entries": entry_table()}
    return found | {f"matrix {kind}": matrix(kind) for kind in APPLIES}


def written_into(document: str) -> str:
    """Return a document with the text between each pair of its marks made anew.

    Parameters
    ----------
    document : str
        With ``<!-- generated: NAME -->`` and ``<!-- end -->`` around each section.

    Raises
    ------
    KeyError
        A section that there is not.
    """
    made_now = sections()
    pieces = document.split("<!-- generated: ")
    made = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split(" -->\n", 1)
        made.append(f"{name} -->\n\n{made_now[name]}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}")
    return "<!-- generated: ".join(made)


def _cell(told: Relation) -> str:
    decisive = told.decisive
    if told.compatibility is Compatibility.EXACT or decisive is None:
        return "="
    if told.plan is not None:
        return f"C{'?' if told.plan.checked else ''} {', '.join(step.name for step in told.plan.steps)}"
    return f"c {decisive.field}" if told.compatibility is Compatibility.CONVERTIBLE else decisive.field


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
