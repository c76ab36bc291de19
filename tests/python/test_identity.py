# SPDX-License-Identifier: Apache-2.0
"""Identity: every declared field is in the key, fields that are not set are not, and nothing shows the salt."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle
from typing import Any

import pytest

import hybridkv as hk
from hybridkv.identity import DECLARED_TAG

SALT = b"a salt that must not be seen"

DECLARED: dict[str, tuple[Any, Any]] = {
    "weights_digest": (b"w" * 32, b"w" * 31 + b"x"),
    "adapter_digest": (b"a" * 32, b"a" * 64),
    "rope": ({"rope_theta": 1e4}, {"rope_theta": 1e4, "factor": 2.0}),
    "quantisation": ({"bits": 8, "symmetric": True}, {"bits": 8, "symmetric": 1}),
    "kv_dtype": ("fp8_e4m3", "fp8_e5m2"),
    "kv_scales": (b"k" * 16, b"k" * 15 + b"l"),
    "tokenizer": (b"t" * 32, b"u" + b"t" * 31),
    "draft": (b"d" * 32, b"e" * 32),
}

GOLDEN = {
    "plain": "7ca8be9f8c210ae1117a0c0573a6a43c",
    "dtype": "9a303c9037e6947ece47e8799fdc2f6d",
    "all": "363d85e8802f8285ec1b7eddde5292c8",
}

EVERYTHING = hk.Identity(
    "model",
    weights="w1",
    adapter="lora",
    salt=b"s" * 32,
    extra=b"x",
    weights_digest=bytes(range(32)),
    adapter_digest=b"a" * 32,
    rope={"rope_theta": 1e4, "rope_scaling": {"factor": 2.5, "type": "yarn", "beta": [1, 2]}},
    quantisation={"bits": 8, "symmetric": True, "group": None},
    kv_dtype="fp8_e4m3",
    kv_scales=b"k" * 16,
    tokenizer=b"t" * 32,
    draft=b"d" * 32,
)


def key(identity: hk.Identity) -> str:
    return hk.block_keys(range(16), 16, identity=identity).digests.tobytes().hex()


def test_every_declared_field_alone_changes_the_key_and_is_named() -> None:
    seen = {key(hk.Identity("m")): "none"}
    for name, values in DECLARED.items():
        for value in values:
            identity = hk.Identity("m", **{name: value})
            assert seen.setdefault(key(identity), name) == name
            assert hk.Identity("m").differences(identity) == (name,)
        one, two = (hk.Identity("m", **{name: value}) for value in values)
        assert one != two, name
        assert one.differences(two) == (name,)
        assert one.fingerprint != two.fingerprint
    assert len(seen) == 1 + 2 * len(DECLARED)


def test_every_field_that_differs_is_told_by_its_own_name() -> None:
    """In manifests and in updates; rope and quantisation were told as the whole, or not at all."""
    fields = {**DECLARED, "model": ("m", "n"), "weights": ("r1", "r2"), "adapter": ("", "a"), "extra": (b"", b"x")}
    for name, values in fields.items():
        one, two = (hk.CacheSpec.homogeneous(2, 64, identity=hk.Identity(**{name: value})) for value in values)
        told = hk.formats.negotiate(one, two)
        assert [difference.field for difference in told.differences] == [f"identity.{name}"]
        cache = hk.HybridCache(one, blocks=4)
        assert cache.update_identity(two.identity, on_change="flush").fields == (name,)


def test_fields_that_are_not_set_are_no_part_of_a_key() -> None:
    """Byte for byte: the five fields are framed as before there were others."""
    five = hk.Identity("m", "w", "a", b"s", b"x")
    parts = [b"m", b"w", b"a", b"s", b"x"]
    assert five.parts() == tuple(parts)
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    root = hashlib.sha256((16).to_bytes(8, "little") + framed + b"hybridkv root  1").digest()
    assert hk.block_keys((), 16, identity=five)._core.root() == root[:16]


def test_declared_fields_are_framed_in_the_fifth_part() -> None:
    def framed(kind: bytes, body: bytes) -> bytes:
        return kind + len(body).to_bytes(8, "big") + body

    fields = framed(b"s", b"tokenizer") + framed(b"y", b"t" * 32) + framed(b"s", b"kv_dtype") + framed(b"s", b"bf16")
    identity = hk.Identity("m", extra=b"x", tokenizer=b"t" * 32, kv_dtype="bf16")
    assert identity.parts()[4] == b"hybridkv declared 1\0" + hashlib.sha256(fields).digest() + b"x"


def test_these_keys_may_never_change() -> None:
    assert key(hk.Identity("model")) == GOLDEN["plain"]
    assert key(hk.Identity("model", kv_dtype="bf16")) == GOLDEN["dtype"]
    assert key(EVERYTHING) == GOLDEN["all"]


def test_extra_cannot_pass_for_declared_fields() -> None:
    declared = hk.Identity("m", kv_dtype="bf16").parts()[4]
    with pytest.raises(hk.SpecError) as refused:
        hk.Identity("m", extra=declared)
    assert refused.value.field == "identity.extra"
    with pytest.raises(hk.SpecError):
        hk.Identity("m", extra=DECLARED_TAG)


def test_one_value_has_one_form() -> None:
    one = hk.Identity(rope={"a": 10000, "b": [1.0, {"c": -0.0}]})
    two = hk.Identity(rope={"b": [1, {"c": 0}], "a": 1e4})
    assert one == two
    assert hash(one) == hash(two)
    assert key(one) == key(two)
    again = dataclasses.replace(one, model="m")
    assert again.rope == one.rope
    assert key(hk.Identity("m", rope=one.rope)) == key(again)
    apart = [{"a": 1}, {"a": True}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": {"1": 1}}, {"a1": ""}, {"a": 1.5}, {}]
    keys = [key(hk.Identity(rope=each)) for each in apart]
    assert len(set(keys)) == len(apart)
    assert len({hk.Identity(rope=each) for each in apart}) == len(apart)


@pytest.mark.parametrize("name", ["weights_digest", "adapter_digest", "kv_scales", "tokenizer", "draft"])
def test_a_digest_that_is_short_long_or_none_is_refused(name: str) -> None:
    for value in (b"", b"x" * 15, b"x" * 65, "x" * 32, 7):
        with pytest.raises(hk.SpecError) as refused:
            hk.Identity(**{name: value})
        assert refused.value.field == f"identity.{name}"


def deep() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(10_000):
        made = {"x": made}
    return made


@pytest.mark.parametrize("name", ["rope", "quantisation"])
@pytest.mark.parametrize(
    "value",
    [
        7, "rope", (), ("list", 1), ("mapping", 7), ("mapping", ("a",)), ("mapping", ([], 1)), {1: 2}, {"a": object()},
        {"a": float("nan")}, {"a": float("inf")}, {"a": 2**2000}, {"a": b"x"}, {"a": (1, 2)}, {"a": [0] * 5000}, deep(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_settings_that_are_none_are_refused(name: str, value: Any) -> None:
    with pytest.raises(hk.SpecError) as refused:
        hk.Identity(**{name: value})
    assert refused.value.field.startswith(f"identity.{name}")


def test_an_empty_dtype_is_refused() -> None:
    for value in ("", b"bf16", 8):
        with pytest.raises(hk.SpecError):
            hk.Identity(kv_dtype=value)  # type: ignore[arg-type]


def test_a_digest_of_an_identity_says_nothing_of_its_salt() -> None:
    assert EVERYTHING.digest == dataclasses.replace(EVERYTHING, salt=b"another").digest
    assert len(EVERYTHING.digest) == 32
    others = [dataclasses.replace(EVERYTHING, **{name: None}) for name in DECLARED]
    others += [dataclasses.replace(EVERYTHING, **{name: ""}) for name in ("model", "weights", "adapter")]
    assert len({one.digest for one in [EVERYTHING, *others]}) == 1 + len(others)
    drafted = hk.Identity("m", draft=EVERYTHING.digest)
    assert key(drafted) != key(hk.Identity("m", draft=others[0].digest))


def test_nothing_shows_the_salt() -> None:
    identity = hk.Identity("m", salt=SALT, rope={"rope_theta": 1e4})
    spec = hk.CacheSpec.homogeneous(layers=1, page_bytes=64, identity=identity)
    cache = hk.HybridCache(spec, blocks=16)
    keys = hk.block_keys(range(40), spec.unit_tokens, identity=identity)
    cache.insert(keys[:2])
    verdict = cache.match(keys)
    shown = [identity, spec, cache, keys, verdict, verdict.lease, vars(identity), dataclasses.asdict(identity)]
    shown += [dataclasses.astuple(identity), cache.metrics(), cache.inspect(keys), cache.spans(keys), cache.live()]
    shown += [identity.salt, f"{identity.salt}", f"{identity.salt!s:>9}", identity.differences(hk.Identity())]
    verdict.lease.release()
    for refuse in (
        lambda: hk.block_keys([1], 16, parent=keys, identity=hk.Identity("n")),
        lambda: hk.block_keys([1], 8, parent=keys, identity=identity),
        lambda: cache.update_identity(identity, on_change="flush"),
        lambda: hk.Identity("m", salt=SALT, extra=7),  # type: ignore[arg-type]
    ):
        with pytest.raises(hk.HybridKVError) as refused:
            refuse()
        shown += [refused.value, pickle.dumps(refused.value)]
    told = hk.HybridKVError("field", identity, identity.salt, about=identity)
    shown += [told, pickle.dumps(told), pickle.loads(pickle.dumps(told)).got]
    cache.update_identity(dataclasses.replace(identity, salt=b"other"), on_change="flush")
    with pytest.raises(hk.StaleIdentity) as stale:
        cache.match(keys)
    shown += [stale.value, pickle.dumps(stale.value)]
    text = "".join(str(one) + repr(one) for one in shown)
    assert SALT.decode() not in text
    assert SALT.hex() not in text
    assert str(list(SALT))[1:-1] not in text


def test_an_identity_with_a_salt_is_copied_but_not_pickled() -> None:
    identity = hk.Identity("m", salt=SALT)
    for made in (copy.copy(identity), copy.deepcopy(identity), dataclasses.replace(identity)):
        assert made == identity
        assert key(made) == key(identity)
    for held in (identity, identity.salt, hk.CacheSpec.homogeneous(layers=1, page_bytes=64, identity=identity)):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match="a salt is not pickled"):
                pickle.dumps(held, protocol)
    with pytest.raises(TypeError):
        pickle.dumps(hk.block_keys(range(16), 16, identity=identity))
    plain = hk.Identity("m", rope={"a": True})
    assert pickle.loads(pickle.dumps(plain)) == plain
