# SPDX-License-Identifier: Apache-2.0
"""Static checks: what a configuration can never do, held against what a cache of it does."""

from __future__ import annotations

import pytest

import hybridkv as hk

UNIT = 16


def _spec(state_block: int = 4 * UNIT, window: int = 33) -> hk.CacheSpec:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    swa = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(window), page_bytes=64)
    tail = hk.CacheGroup("tail", hk.StateKind.TAIL, hk.Checkpoint(), page_bytes=64, block_tokens=state_block)
    return hk.CacheSpec(UNIT, [kv, swa, tail])


def _longest_hit(spec: hk.CacheSpec, pages: dict[str, int], tokens: int) -> int:
    """Insert what fits of a prompt, longest first, and match it."""
    keys = hk.block_keys(range(tokens), UNIT)
    for length in range((tokens - 1) // spec.boundary_tokens * spec.boundary_tokens, 0, -spec.boundary_tokens):
        cache = hk.HybridCache(spec, blocks=256, pages={"kv": 256, "swa": 256, "tail": 256, **pages})
        needed = {name: need.blocks for name, need in spec.requirements(length).items()}
        try:
            cache.insert(keys[: length // UNIT], {name: list(blocks) for name, blocks in needed.items()})
        except hk.OutOfPages:
            continue
        verdict = cache.match(keys)
        if verdict.lease is not None:
            verdict.lease.release()
            return verdict.usable_tokens
    return 0


@pytest.mark.parametrize(
    "pages", [{"kv": 3}, {"kv": 4}, {"kv": 7}, {"kv": 9}, {"swa": 1}, {"swa": 2}, {"tail": 1}, {}], ids=str
)
def test_no_hit_is_shorter_or_longer_than_the_checks_say(pages: dict[str, int]) -> None:
    spec = _spec()
    found = hk.static_checks(spec, pages=pages, prompt_tokens=[300])
    longest = min([g.longest_tokens for g in found.groups if g.longest_tokens is not None], default=288 // 64 * 64)
    hit = _longest_hit(spec, pages, 300)
    assert hit == longest
    assert (hit == 0) == any(finding.never for finding in found.findings)
    assert bool(found.findings) == (hit < 256)


def test_the_sentence_names_the_group_that_makes_the_step() -> None:
    found = hk.static_checks(_spec())
    assert found.sentence == "this configuration cannot hit below 64 tokens because of group 'tail', but for tips"
    assert (found.least_tokens, found.stride_tokens, found.findings) == (64, 64, ())
    assert hk.static_checks(hk.CacheSpec.homogeneous(1, 64)).because_of == "kv"


def test_prompts_at_or_below_the_step_never_hit() -> None:
    found = hk.static_checks(_spec(), prompt_tokens=[64, 65, 10])
    (finding,) = found.findings
    assert (finding.kind, finding.group, finding.below_tokens, finding.affected, finding.never) == (
        "step",
        "tail",
        64,
        2,
        False,
    )
    assert hk.static_checks(_spec(), prompt_tokens=[64]).findings[0].never
    assert hk.static_checks(_spec(), prompt_tokens=[65]).findings == ()


def test_states_further_apart_than_prompts_are_long() -> None:
    every = hk.CheckpointPolicy(every=1000)
    found = hk.static_checks(_spec(), prompt_tokens=[500, 5000], checkpoints=every)
    assert found.stride_tokens == 1024
    assert [(f.kind, f.affected, f.setting) for f in found.findings] == [("states", 1, "CheckpointPolicy(every=64)")]
    stepped = hk.static_checks(_spec(), prompt_tokens=[150], step_tokens=48)
    assert stepped.stride_tokens == 192 and "not every 48" in stepped.findings[0].setting
    assert hk.static_checks(_spec(), checkpoints=hk.CheckpointPolicy()).stride_tokens is None
    assert hk.static_checks(hk.CacheSpec.homogeneous(1, 64), step_tokens=48).stride_tokens == 16


def test_a_table_that_has_not_the_keys_of_one_prompt() -> None:
    found = hk.static_checks(_spec(), blocks=3, prompt_tokens=[200])
    assert found.findings[0].kind == "keys" and found.findings[0].never
    assert hk.static_checks(_spec(), blocks=12, prompt_tokens=[200]).findings == ()


def test_text_and_json() -> None:
    found = hk.static_checks(_spec(), pages={"kv": 3}, prompt_tokens=[100])
    assert str(found).splitlines()[0].startswith("This configuration cannot hit below 64 tokens")
    assert "NEVER: 'kv' has 3 pages" in str(found) and "pages={'kv': 4}" in str(found)
    assert found.to_json()["findings"][0]["group"] == "kv"


def test_refusals() -> None:
    for field, wrong in (
        ("spec", {"spec": "no"}),
        ("pages", {"pages": {"kv": 0}}),
        ("pages", {"pages": {"nobody": 1}}),
        ("blocks", {"blocks": 0}),
        ("prompt_tokens", {"prompt_tokens": [-1]}),
        ("checkpoints", {"checkpoints": 3}),
        ("step_tokens", {"step_tokens": 0}),
    ):
        with pytest.raises(hk.ArgumentError) as refused:
            hk.static_checks(**{"spec": _spec(), **wrong})  # type: ignore[arg-type]
        assert refused.value.field == field
