# SPDX-License-Identifier: Apache-2.0
"""Breaks of the kernel ABI that change no size: told apart, refused with the field by its name, and wrong unchecked."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason="transformers is absent: the breaks act on states of its models")

import torch

import hybridkv as hk
from fault_cases import live_model
from faults import FAULTS, Fault
from test_faults_pages import settled, stored_prefix

MODEL = "deepseek_v4"

BREAKS = {
    "float32 scale against UE8M0": ("indexer: float32 scale read as UE8M0", "scale", 79),
    "UE8M0 scales against float32": ("indexer: UE8M0 scales read as float32", "scale", 79),
    "rotated indexer against unrotated": ("indexer: rows rotated by Hadamard read as they are", "hadamard", 79),
    "pages by eights, indexer": ("indexer: pages by eights read row by row", "row_order", 79),
    "pages by eights, history": ("history: pages by eights read row by row", "row_order", 79),
    "padded rows read packed, history": ("history: CSA rows padded, read packed", "row_stride", 79),
    "padded rows read packed, window": ("window: rows padded, read packed", "row_stride", 79),
    "padded rows read packed, indexer": ("indexer: rows padded, read packed", "row_stride", 79),
    "packed rows read padded": ("history: rows packed, read padded", "row_stride", 79),
    "pairs against halves, history": ("history: rotated pairs read as halves", "position_convention", 79),
    "pairs against halves, window": ("window: rotated pairs read as halves", "position_convention", 79),
    "pairs against halves, indexer": ("indexer: rotated pairs read as halves", "position_convention", 79),
    "bias in the stored gate": ("tail: gate with its position bias", "bias_added", 79),
    "no bias in the stored gate": ("overlap: gate without its position bias", "bias_added", 79),
    "[nope | rope] against [rope | nope]": (
        "history: [plain | rotated] read as [rotated | plain]",
        "channel_order",
        79,
    ),
    "order of the ring's rows": ("overlap: ring p mod 8 read in reference order", "state_format", 64),
    "length of the ring": ("overlap: ring of 16 rows read as one of 8", "ring_rows", 79),
    "dtype of the overlap's gate": ("overlap: gate in another dtype", "gate_dtype", 79),
}
"""By what is mixed up: the fault, the field that tells, and a position at which it acts."""


def declared(fault: Fault, tokens: int) -> dict[str, hk.KvFormat]:
    """Formats of a writer of such bytes, by group."""
    stored, _ = stored_prefix(MODEL, 0, tokens)
    groups = stored.measured.layout.groups
    mine = [groups[name] for name in fault.groups if name in groups]
    return {g.name: replace(g.format, **fault.declares) for g in mine if g.format is not None}


@pytest.mark.parametrize("name", BREAKS)
def test_it_is_told_apart_by_its_fingerprint_at_equal_size(name: str) -> None:
    fault_name, field, tokens = BREAKS[name]
    stored, _ = stored_prefix(MODEL, 0, tokens)
    formats = declared(FAULTS[fault_name], tokens)
    assert formats
    for group, writer in formats.items():
        reader = stored.measured.layout.groups[group].format
        assert reader is not None
        assert [d.field for d in reader.diff(writer)] == [field]
        assert reader.fingerprint != writer.fingerprint
        assert (reader.dtype, reader.row_bytes) == (writer.dtype, writer.row_bytes)


@pytest.mark.parametrize("name", BREAKS)
def test_it_is_refused_with_the_field_by_its_name(name: str) -> None:
    fault_name, field, tokens = BREAKS[name]
    stored, _ = stored_prefix(MODEL, 0, tokens)
    formats = declared(FAULTS[fault_name], tokens)
    refused = settled(stored.opened(formats=formats).match_at(tokens))
    why = refused.why
    assert why is not None
    assert (refused.usable_tokens, why.check, why.code) == (0, hk.Check.ABI, "format")
    assert why.group in formats
    (difference,) = refused.differences
    reader, writer = stored.measured.layout.groups[why.group].format, formats[why.group]
    assert (difference.group, difference.field) == (why.group, f"format.{field}")
    assert (difference.ours, difference.theirs) == (getattr(reader, field), getattr(writer, field))
    assert f"groups[{why.group!r}].format.{field}: ours {difference.ours!r}" in why.detail
    assert f"theirs {difference.theirs!r}" in why.detail
    accepted = settled(stored.opened(formats=formats).match_at(tokens, formats=formats))
    assert (accepted.usable_tokens, accepted.differences) == (tokens, ())


@pytest.mark.parametrize("name", BREAKS)
def test_with_the_check_off_the_output_is_wrong(name: str) -> None:
    """Off is a writer that declares nothing of it: pages of the same fingerprint hold what such a kernel reads."""
    fault_name, _, tokens = BREAKS[name]
    stored, context = stored_prefix(MODEL, 0, tokens)
    live = live_model(MODEL)
    broken = FAULTS[fault_name].apply(stored.state, context)
    assert broken is not None
    opened = stored.opened()
    assert opened.overwrite(stored.state, broken)
    read = opened.state()
    assert read is not None
    right = live.restored(stored.state, tokens)
    benign = float((live.uninterrupted(tokens) - right).abs().max())  # states that were made in other steps
    wrong = float((live.restored(read, tokens) - right).abs().nan_to_num(torch.inf).max())
    assert benign < 1e-4
    assert wrong > 10 * benign
