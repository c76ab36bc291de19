# SPDX-License-Identifier: Apache-2.0
"""Formats as documents: what is written is read, older schemas are migrated, everything else is a typed error."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkv.errors import SpecError
from hybridkv.formats import DOCUMENT_SCHEMA, REGISTRY, KvFormat, from_document, to_document
from hybridkv.formats.documents import STEPS, Step, migrated
from test_formats import FIRST, FULL

FORMATS = [FIRST, FULL, replace(FULL, schema=2), *(entry.format for entry in REGISTRY.values())]


@pytest.mark.parametrize("made", FORMATS, ids=range(len(FORMATS)))
def test_a_document_is_read_as_it_was_written(made: KvFormat) -> None:
    document = json.loads(json.dumps(to_document(made), allow_nan=False))
    again = from_document(document)
    assert again == made and again.fingerprint == made.fingerprint
    assert to_document(again) == document and document["schema"] == DOCUMENT_SCHEMA == 2


def first_schema(made: KvFormat) -> dict[str, Any]:
    """The document of schema 1, as images of caches carry it: fields beside the number."""
    return {**made.declared(), "schema": 1}


def test_schema_1_is_read_with_its_fingerprint() -> None:
    again = from_document(first_schema(FIRST))
    assert again == FIRST and again.fingerprint.hex() == "dda9a1df8e7912f160a77a0bb05c0272"
    assert from_document(to_document(again)) == FIRST


def test_schema_1_has_no_field_that_came_later() -> None:
    later = [f.name for f in fields(KvFormat) if f.metadata["since"] == 2]
    assert len(later) == 24
    for name in later:
        document = first_schema(FIRST) | {name: getattr(FULL, name)}
        with pytest.raises(SpecError, match=name) as caught:
            from_document(document)
        assert "schema 1" in str(caught.value)


def test_steps_are_data_and_follow_one_another() -> None:
    known = frozenset({"name", "scale"})
    steps = {
        1: Step(known, {"name": "layout"}, {"scale": {"fp32": "float32"}}),
        2: Step(frozenset({"layout", "scale"}), {}, {}, nested="fields"),
    }
    old = {"schema": 1, "name": "rows", "scale": "fp32"}
    assert migrated(old, steps, 3) == {"schema": 3, "fields": {"layout": "rows", "scale": "float32"}}
    assert migrated({"schema": 2, "layout": "rows"}, steps, 3) == {"schema": 3, "fields": {"layout": "rows"}}
    with pytest.raises(SpecError, match="migrated to 4"):
        migrated(old, steps, 4)
    assert set(STEPS) == set(range(1, DOCUMENT_SCHEMA)), "every older schema has its step"


GOOD = to_document(FULL)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (None, "format"),
        ([], "format"),
        ({}, "format.schema"),
        (GOOD | {"schema": 3}, "format.schema"),
        (GOOD | {"schema": 0}, "format.schema"),
        (GOOD | {"schema": True}, "format.schema"),
        (GOOD | {"schema": "2"}, "format.schema"),
        (GOOD | {"fields": []}, "format.fields"),
        (GOOD | {"fields": {}}, "format.fields"),
        (GOOD | {"fields": {"layout": "a"}}, "format.fields"),
        (GOOD | {"fields": GOOD["fields"] | {"luck": 1}}, "format.fields"),
        (GOOD | {"fields": GOOD["fields"] | {"tile": None}}, "format.fields"),
        (GOOD | {"fields": GOOD["fields"] | {"tile": "64"}}, "format.tile"),
        (GOOD | {"fields": GOOD["fields"] | {"tile": 128}}, "format.fingerprint"),
        (GOOD | {"fingerprint": "00"}, "format.fingerprint"),
        (GOOD | {"more": 1}, "format"),
        ({"schema": 2} | {f"f{i}": i for i in range(300)}, "format"),
        ({1: 2}, "format"),
    ],
)
def test_anything_else_is_a_typed_error(document: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_document(document)
    assert caught.value.field == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, *GOOD["fields"], "x"]), inner),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, *list(GOOD["fields"])[:6]]), JSON, max_size=4), st.booleans())
def test_no_document_raises_anything_else(changes: dict[str, Any], inside: bool) -> None:
    document = GOOD | {"fields": GOOD["fields"] | changes} if inside else GOOD | changes
    try:
        made = from_document(document)
    except SpecError:
        return
    assert isinstance(made, KvFormat)
