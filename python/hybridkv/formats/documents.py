# SPDX-License-Identifier: Apache-2.0
"""A format as a document: an object of JSON that says its schema, written one way and read across versions.

Schema 2, the current one::

    {"schema": 2, "fields": {"layout": ..., "dtype": ..., ...}, "fingerprint": "32 hex digits"}

``fields`` has what is declared and nothing else; the fingerprint is that of the fields, so that a reader whose
canonical encoding differs notices. Schema 1 had the fields beside the number, and no fingerprint::

    {"schema": 1, "layout": ..., "dtype": ..., ...}

It is what images of caches carry. A document of an older schema goes through the steps of :data:`STEPS` one by one;
each is data. No step changes a fingerprint: bytes that were written under it are still what they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hybridkv.errors import SpecError
from hybridkv.formats.kv_format import KvFormat
from hybridkv.frozen_mapping import as_json

DOCUMENT_SCHEMA = 2
"""Of what :func:`to_document` writes. It counts up when a document is laid out anew, or a field is new."""

_MOST_FIELDS = 256

Json = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """What makes a document of one schema one of the next, as data. Applied in the order of the attributes.

    Parameters
    ----------
    known : frozenset of str
        Names that the older schema has; another one is refused.
    renamed : mapping of str to str, optional
        Old names and new ones.
    spelled : mapping of str to mapping, optional
        By new name: old values and how they are spelled now.
    nested : str, optional
        Name of the object that everything but ``schema`` goes into.
    """

    known: frozenset[str]
    renamed: Mapping[str, str]
    spelled: Mapping[str, Mapping[object, object]]
    nested: str | None = None

    def apply(self, document: Mapping[str, Any]) -> Json:
        """Return the document in the next schema, its number left to the caller.

        Raises
        ------
        SpecError
            A name that the older schema does not have.
        """
        body = {name: value for name, value in document.items() if name != "schema"}
        for name in body:
            if name not in self.known:
                raise SpecError("format", f"fields of schema {document['schema']}", name)
        moved = {self.renamed.get(name, name): value for name, value in body.items()}
        for name, words in self.spelled.items():
            if name in moved and isinstance(moved[name], str):
                moved[name] = words.get(moved[name], moved[name])
        return {self.nested: moved} if self.nested is not None else moved


_FIRST = frozenset(f.name for f in fields(KvFormat) if f.metadata["since"] == 1 and f.name != "schema")

STEPS: Mapping[int, Step] = {1: Step(known=_FIRST, renamed={}, spelled={}, nested="fields")}
"""By the schema that a step starts from."""


def to_document(made: KvFormat) -> Json:
    """Return a format as a document of the current schema.

    Parameters
    ----------
    made : KvFormat

    Returns
    -------
    dict
        Of JSON: what :func:`from_document` reads back as an equal format.
    """
    declared = {name: as_json(value) for name, value in made.declared().items()}
    if declared["schema"] == 1:
        del declared["schema"]  # the default, as every undeclared field
    return {"schema": DOCUMENT_SCHEMA, "fields": declared, "fingerprint": made.fingerprint.hex()}


def from_document(document: object) -> KvFormat:
    """Return the format of a document of this schema or of an older one.

    Parameters
    ----------
    document : object
        What a JSON parser gave; any object is taken and checked.

    Returns
    -------
    KvFormat

    Raises
    ------
    SpecError
        No document; of a newer schema; with a field that its schema does not have, or a value that the field does not
        take; whose fingerprint is not that of its fields.

    Examples
    --------
    >>> old = {"schema": 1, "layout": "kv_heads", "dtype": "bfloat16"}
    >>> from_document(old).fingerprint == KvFormat("kv_heads", "bfloat16").fingerprint
    True
    >>> to_document(from_document(old))["schema"]
    2
    """
    current = migrated(document, STEPS, DOCUMENT_SCHEMA)
    extra = sorted(current.keys() - {"schema", "fields", "fingerprint"})
    if extra:
        raise SpecError("format", "fields, fingerprint", ", ".join(extra))
    declared = _object("format.fields", current.get("fields"))
    known = {f.name for f in fields(KvFormat)}
    if unknown := sorted(declared.keys() - known):
        raise SpecError("format.fields", "fields of a format", ", ".join(unknown))
    if not {"layout", "dtype"} <= declared.keys():
        raise SpecError("format.fields", "layout and dtype", ", ".join(sorted(declared)))
    if None in declared.values():
        raise SpecError("format.fields", "a value, or no field", next(k for k, v in declared.items() if v is None))
    made = KvFormat(**declared)
    told = current.get("fingerprint")
    if told is not None and told != made.fingerprint.hex():
        raise SpecError("format.fingerprint", made.fingerprint.hex(), told)
    return made


def migrated(document: object, steps: Mapping[int, Step], newest: int) -> Json:
    """Return a document in the newest schema, taken there step by step.

    Parameters
    ----------
    document : object
        What a JSON parser gave.
    steps : mapping of int to Step
        By the schema that each starts from.
    newest : int
        The schema to reach.

    Raises
    ------
    SpecError
        No object, no schema, a newer one, or one that no step starts from.
    """
    current = dict(_object("format", document))
    schema = current.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= newest:
        raise SpecError("format.schema", f"an int, 1 to {newest}, the newest that this version reads", schema)
    for number in range(schema, newest):
        if number not in steps:
            raise SpecError("format.schema", f"a schema that can be migrated to {newest}", number)
        current = {"schema": number + 1, **steps[number].apply(current)}
    return current


def _object(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > _MOST_FIELDS or not all(isinstance(name, str) for name in value):
        got = f"{len(value)} names" if isinstance(value, dict) else type(value).__name__
        raise SpecError(where, f"an object of at most {_MOST_FIELDS} names", got)
    return value
