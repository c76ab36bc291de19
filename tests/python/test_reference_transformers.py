# SPDX-License-Identifier: Apache-2.0
"""The reference against the modules of transformers: random weights, every layer, within a derived bound.

The modules compute in float32 from projections that are taken from them, so that what differs is pooling, norm and
rotation alone: at most ``float32_bound``. Each control breaks one thing and has to leave the bound far behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.deepseek_v4")

from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4  # noqa: E402

import hybridkv.reference as ref  # noqa: E402
from deepseek_v4_taps import (  # noqa: E402
    TOKENS,
    YARN,
    Compressed,
    Tapped,
    compressor_of,
    doubles,
    model_with,
    rope_of,
    tap,
)
from hybridkv.reference import Compressor, Rope, Yarn, published  # noqa: E402
from hybridkv.reference.bounds import FLOAT32_ROUNDOFF, rotation_bound, score_bound  # noqa: E402
from hybridkv.reference.compressor import Slots  # noqa: E402

Array = np.ndarray[Any, Any]

CLEAR = 100.0
"""Times the bound that every control exceeds somewhere."""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "yarn"])
def tapped(request: pytest.FixtureRequest) -> Tapped:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, TOKENS)))
    return tap(model_with(request.param), ids)


def share(ours: Array, theirs: Array, bound: Array) -> float:
    """The largest difference in units of the bound."""
    assert ours.shape == theirs.shape == bound.shape and ours.size
    return float((np.abs(ours - theirs) / bound).max())


def entries_and_bound(seen: Compressed, compressor: Compressor | None = None) -> tuple[Array, Array]:
    c = compressor or seen.compressor
    slots = seen.compressor.slots(seen.kv, seen.score, 0, None)
    return c.entries(slots), ref.float32_bound(seen.compressor, slots)


def all_compressed(tapped: Tapped) -> Iterator[Compressed]:
    yield from tapped.entries.values()
    yield from tapped.indexers.values()


def test_every_kind_of_layer_is_looked_at(tapped: Tapped) -> None:
    ratios = {seen.compressor.ratio for seen in tapped.entries.values()}
    assert ratios == {4, 128} and len(tapped.windows) == 5 and len(tapped.indexers) == 2
    assert {len(seen.entries) for seen in all_compressed(tapped)} == {TOKENS // 4, TOKENS // 128}
    yarn = {seen.compressor.rope.yarn is not None for seen in all_compressed(tapped) if seen.compressor.rope}
    assert len(yarn) == 1


def test_compressed_entries_of_every_layer(tapped: Tapped) -> None:
    for seen in all_compressed(tapped):
        ours, bound = entries_and_bound(seen)
        assert 1e-4 < share(ours, seen.entries, bound) <= 1.0
        assert bound.max() < 1e-2  # small against entries of size 1


def test_window_rows_of_every_layer(tapped: Tapped) -> None:
    """The rows that a cache keeps: the last window less one token, at their own positions."""
    for seen in tapped.windows.values():
        ours, bound = entries_and_bound(seen)
        kept = len(seen.entries)
        assert kept == 15 and 1e-4 < share(ours[-kept:], seen.entries, bound[-kept:]) <= 1.0


def test_scores_of_the_indexer_and_what_it_chooses(tapped: Tapped) -> None:
    at_all = np.arange(TOKENS)
    for layer, seen in tapped.indexers.items():
        queries, query_bound = rotated_queries(tapped, layer)
        keys, key_bound = entries_and_bound(seen)
        weights = tapped.weights[layer]
        ours = ref.index_scores(queries, keys, weights, at_all, ratio=4)
        bound = score_bound(queries, keys, weights, query_bound, key_bound)
        closed = np.isfinite(ours)
        assert (closed.sum(axis=1) == (at_all + 1) // 4).all()
        assert 1e-4 < share(ours[closed], tapped.scores[layer][closed], bound[closed]) <= 1.0
        count = tapped.config.index_topk
        chosen = ref.choose_entries(ours, count)
        decided = 0
        for p in range(TOKENS):
            last, next_one = np.sort(ours[p])[::-1][count - 1 : count + 1]
            if np.isneginf(next_one) or last - next_one > 2 * bound[p].max():  # else float32 may see it otherwise
                decided += 1
                assert sorted(chosen[p]) == sorted(tapped.chosen[layer][p])
        assert decided > 0.95 * TOKENS


def rotated_queries(tapped: Tapped, layer: int) -> tuple[Array, Array]:
    rope, queries = rope_of(tapped.config, "compress"), tapped.queries[layer]
    heads = queries.shape[1]
    flat = queries.reshape(-1, queries.shape[2])
    at = Slots(flat[:, None], flat[:, None], np.repeat(np.arange(len(queries)), heads))
    bound = rotation_bound(flat, np.zeros_like(flat), rope, at)
    return rope.rotate(queries, np.arange(len(queries))[:, None]), bound.reshape(queries.shape)


def test_a_carry_is_the_state_that_a_cache_keeps() -> None:
    """At 150 tokens: an open window of 2 at ratio 4 and of 22 at 128, and the overlap, bit for bit."""
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (1, 150)))
    tapped = tap(model_with(yarn=False), ids)
    members = [("compressor", at, seen) for at, seen in tapped.entries.items()]
    members += [("indexer", at, seen) for at, seen in tapped.indexers.items()]
    for name, at, seen in members:
        c, held = seen.compressor, tapped.cache.layers[at]
        ring = carried(seen, 150)
        assert len(ring) == c.ring_rows
        opened = 150 - 150 % c.ratio
        rows = ring[np.arange(opened, 150) % c.ring_rows]
        assert rows.shape[0] == {4: 2, 128: 22}[c.ratio]
        assert (rows[:, : c.row_width] == doubles(held.buffer_kv[name])[0]).all()
        assert (rows[:, c.row_width :] == seen.score[opened:150]).all()
        assert (rows[:, c.row_width :] != doubles(held.buffer_gate[name])[0]).any()  # theirs has no bias yet
        if c.overlap:
            rows = ring[np.arange(opened - c.ratio, opened) % c.ring_rows]
            assert (rows[:, : c.width] == doubles(held.overlap_kv[name])[0]).all()
            assert (rows[:, c.row_width :][:, : c.width] == doubles(held.overlap_gate[name])[0]).all()
        assert np.isnan(ring).any() == (c.overlap or c.ratio == 128)  # what is not live was left alone


def carried(seen: Compressed, tokens: int) -> Array:
    """The new carry of a call with the first tokens."""
    c = seen.compressor
    row = published.plain("float32", c.width)
    ring = np.full((1, c.ring_rows, 2 * c.row_width), np.nan, np.float32)
    ref.compress_tail(
        seen.kv[:tokens], seen.score[:tokens], np.zeros((1, row.page_stride), np.uint8), ratio=c.ratio,
        overlap=c.overlap, norm_weight=c.norm_weight, eps=c.eps, rope=c.rope, row_format=row, new_carry=ring,
        starts=np.array([0, tokens], np.int32), positions=np.zeros(1, np.int32),
    )  # fmt: skip
    return ring[0].astype(np.float64)


def test_bytes_in_published_formats_are_the_same_but_for_rare_ties() -> None:
    """Published widths: entries of 512 and indexer keys of 128, quantised from theirs and from ours."""
    for module, config, seen in modules_of_published_widths():
        ours, bound = entries_and_bound(seen)
        assert share(ours, seen.entries, bound) <= 1.0, type(module)
        rows = [published.FP8_DS_MLA, published.V41_FP8, published.V41_FP4, published.BFLOAT16_ROWS]
        if ours.shape[1] == config.index_head_dim:
            rows = [published.INDEXER_FP8, published.INDEXER_MXFP4]
        for row in rows:
            bytes_of = [ref.encode_rows(entries, row) for entries in (ours, seen.entries)]
            assert np.mean(bytes_of[0] == bytes_of[1]) >= 0.999, row.name


def modules_of_published_widths() -> Iterator[tuple[Any, Any, Compressed]]:
    config = v4.DeepseekV4Config(
        hidden_size=64, num_attention_heads=4, q_lora_rank=32, num_hidden_layers=2, compress_ratios=None,
        layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
        rope_parameters={"rope_type": "yarn", **YARN},
    )  # fmt: skip
    assert (config.head_dim, config.index_head_dim, config.index_n_heads) == (512, 128, 64)
    torch.manual_seed(0)
    for kind, overlap in ((v4.DeepseekV4CSACompressor, True), (v4.DeepseekV4HCACompressor, False)):
        module = kind(config)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_(0, 0.3 if parameter.ndim > 1 else 1.0)
            hidden = torch.randn(1, 512, 64)
            cache = v4.DynamicCache(config=config)
            module(hidden, torch.randn(1, 512, 32), torch.arange(512)[None], cache, int(not overlap))
            for name, member in (("compressor", module), ("indexer", getattr(module, "indexer", None))):
                if member is None:
                    continue
                bias = member.position_bias.repeat(512 // member.compress_rate, 1)
                kv, score = member.kv_proj(hidden)[0], member.gate_proj(hidden)[0] + bias
                entries = cache.layers[int(not overlap)].compressed_kv[name][0]
                compressor = compressor_of(member, config, overlap=overlap)
                yield module, config, Compressed(compressor, doubles(kv), doubles(score), doubles(entries))


@pytest.mark.parametrize("yarn", [False, True])
def test_frequencies_and_rotations_are_those_of_the_modules(yarn: bool) -> None:
    """Published sizes, positions up to 100,000; theirs are in float32, so that the angle decides how near."""
    config = v4.DeepseekV4Config(rope_parameters={"rope_type": "yarn", **YARN} if yarn else None)
    module = v4.DeepseekV4RotaryEmbedding(config)
    for label, theta in (("main", 10_000.0), ("compress", 160_000.0)):
        rope = rope_of(config, label)
        assert rope == Rope(64, theta, Yarn(16.0, 65536) if yarn and label == "compress" else None)
        theirs = doubles(getattr(module, f"{label}_inv_freq"))
        np.testing.assert_allclose(rope.frequencies(), theirs, rtol=10 * FLOAT32_ROUNDOFF)
        positions = torch.tensor([[0, 1, 77, 4095, 65536, 100_000]])
        rows = torch.randn(1, 1, 6, 512, generator=torch.Generator().manual_seed(1))
        turned = v4.apply_rotary_pos_emb(rows, *module(rows, positions, layer_type=label))
        flat, at = doubles(rows)[0, 0], positions[0].numpy()
        bound = rotation_bound(flat, np.full_like(flat, 2.0**-40), rope, Slots(flat[:, None], flat[:, None], at))
        assert share(rope.rotate(flat, at), doubles(turned)[0, 0], bound) <= 1.0


def control(tapped: Tapped, change: Any) -> list[float]:
    """Shares of the bound that a changed reference reaches, for each compressor."""
    reached = []
    for seen in all_compressed(tapped):
        _, bound = entries_and_bound(seen)
        ours = change(seen)
        if ours is not None:
            reached.append(share(ours, seen.entries, bound))
    return reached


def with_rope(rope: Any) -> Any:
    def change(seen: Compressed) -> Array:
        c = seen.compressor
        changed = Compressor(c.ratio, c.overlap, c.norm_weight, c.eps, rope(c.rope))
        return changed.batch(seen.kv, seen.score)

    return change


def missing_overlap(seen: Compressed) -> Array | None:
    """Every window pooled as if it were the first."""
    c = seen.compressor
    if not c.overlap:
        return None
    slots = c.slots(seen.kv, seen.score, 0, None)
    scores = slots.scores.copy()
    scores[:, : c.ratio] = -np.inf
    return c.entries(replace(slots, scores=scores))


def overlap_of_another_cut(seen: Compressed) -> Array | None:
    """Resume at 128 with the overlap of the window before the right one."""
    c = seen.compressor
    if not c.overlap:
        return None
    head = c.batch(seen.kv[:128], seen.score[:128])
    stale = seen.kv[120:124, : c.width], seen.score[120:124, : c.width]
    return np.concatenate([head, c.entries(c.slots(seen.kv[128:], seen.score[128:], 128, stale))])


def swapped_halves(seen: Compressed) -> Array | None:
    c = seen.compressor
    if not c.overlap:
        return None
    swap = np.r_[c.width : 2 * c.width, : c.width]
    return c.batch(np.ascontiguousarray(seen.kv[:, swap]), np.ascontiguousarray(seen.score[:, swap]))


def without_bias(seen: Compressed) -> Array:
    """The mean bias of each place in the window taken away again: a score that does not carry it."""
    c = seen.compressor
    whole = len(seen.score) // c.ratio * c.ratio
    places = seen.score[:whole].reshape(-1, c.ratio, seen.score.shape[1])
    bias = np.tile(places.mean(axis=0), (len(places) + 1, 1))[: len(seen.score)]
    return c.batch(seen.kv, seen.score - bias)


def rotated_at_the_last_token(seen: Compressed) -> Array:
    c = seen.compressor
    slots = c.slots(seen.kv, seen.score, 0, None)
    return c.entries(replace(slots, positions=slots.positions + c.ratio - 1))


def with_eps(seen: Compressed) -> Array:
    c = seen.compressor
    return Compressor(c.ratio, c.overlap, c.norm_weight, 1e-2, c.rope).batch(seen.kv, seen.score)


def one_softmax_for_all_channels(seen: Compressed) -> Array:
    c = seen.compressor
    slots = c.slots(seen.kv, seen.score, 0, None)
    return c.entries(replace(slots, scores=np.broadcast_to(slots.scores.mean(axis=2)[..., None], slots.scores.shape)))


CONTROLS = {
    "missing overlap": missing_overlap,
    "overlap of another cut": overlap_of_another_cut,
    "wrong theta": with_rope(lambda rope: replace(rope, theta=10_000.0)),
    "pairs read as halves": with_rope(lambda rope: replace(rope, interleaved=False)),
    "not rotated": with_rope(lambda rope: None),
    "YaRN where there is none, or none where it is": with_rope(
        lambda rope: replace(rope, yarn=None if rope.yarn else Yarn(16.0, 65536))
    ),
    "swapped halves": swapped_halves,
    "no position bias": without_bias,
    "rotated at the last token": rotated_at_the_last_token,
    "another eps": with_eps,
    "one softmax for all channels": one_softmax_for_all_channels,
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_broken_reference_leaves_the_bound_behind(name: str, tapped: Tapped) -> None:
    reached = control(tapped, CONTROLS[name])
    assert reached and min(reached) > CLEAR, reached


def test_a_control_that_changes_nothing_stays_within_the_bound(tapped: Tapped) -> None:
    assert max(control(tapped, with_rope(lambda rope: rope))) <= 1.0


def test_a_window_row_with_the_theta_of_the_other_layers_is_noticed(tapped: Tapped) -> None:
    for seen in tapped.windows.values():
        _, bound = entries_and_bound(seen)
        c = seen.compressor
        assert c.rope is not None
        theta = 170_000.0 - c.rope.theta
        other = Compressor(1, False, c.norm_weight, c.eps, replace(c.rope, theta=theta)).batch(seen.kv, seen.score)
        kept = len(seen.entries)
        assert share(other[-kept:], seen.entries, bound[-kept:]) > CLEAR


def test_one_side_rotated_by_hadamard_is_noticed_and_both_sides_are_not(tapped: Tapped) -> None:
    at_all = np.arange(TOKENS)
    for layer, seen in tapped.indexers.items():
        queries, query_bound = rotated_queries(tapped, layer)
        keys, key_bound = entries_and_bound(seen)
        bound = score_bound(queries, keys, tapped.weights[layer], query_bound, key_bound)
        shares = []
        for q, k in ((True, True), (True, False), (False, True)):
            turned = ref.rotate_hadamard(queries) if q else queries, ref.rotate_hadamard(keys) if k else keys
            ours = ref.index_scores(*turned, tapped.weights[layer], at_all, ratio=4)
            closed = np.isfinite(ours)
            shares.append(share(ours[closed], tapped.scores[layer][closed], bound[closed]))
        assert shares[0] <= 1.0 and min(shares[1:]) > CLEAR


def test_wrong_scale_encodings_of_real_rows_are_noticed() -> None:
    """Scales of another kind, rounded down instead of up, or of the neighbouring tile."""
    *_, seen = next(modules_of_published_widths())
    row = published.FP8_DS_MLA
    ours, bound = entries_and_bound(seen)
    right = ref.encode_rows(ours, row)
    half_step = np.abs(ref.decode_rows(right, row) - ours) + bound
    assert (np.abs(ref.decode_rows(ref.encode_rows(seen.entries, row), row) - ours) <= 2 * half_step + 0.07).all()
    lower, neighbour = right.copy(), right.copy()
    lower[:, 576:583] -= 1
    neighbour[:, 576:583] = np.roll(right[:, 576:583], 1, axis=1)
    for wrong in (lower, neighbour):
        far = np.abs(ref.decode_rows(wrong, row) - ours)[:, :448]
        assert (far.max(axis=1) > 0.4 * np.abs(ours[:, :448]).max(axis=1)).mean() > 0.5
    rule = replace(published.INDEXER_FP8.parts[0].scale, power_of_two=False)  # type: ignore[type-var]
    exact = replace(published.INDEXER_FP8, parts=(replace(published.INDEXER_FP8.parts[0], scale=rule),))
    keys = [entries for _, config, s in modules_of_published_widths() if len(entries := s.entries[0]) == 128 and config]
    bytes_of = [ref.encode_rows(np.array(keys), kind) for kind in (published.INDEXER_FP8, exact)]
    assert np.mean(bytes_of[0] == bytes_of[1]) < 0.5
