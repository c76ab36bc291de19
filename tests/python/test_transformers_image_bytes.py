# SPDX-License-Identifier: Apache-2.0
"""The bytes of an image: one way to write each, and nothing that was not written so is ever read."""

from __future__ import annotations

import base64
import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: images are of its caches")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkv.adapters.transformers import image_bytes
from hybridkv.adapters.transformers.image import CacheImage
from hybridkv.errors import ArgumentError, HybridKVError, RestoreRefused
from image_support import ids_of, model_of, prefilled, producer_of
from tiny_models import ARCHITECTURES

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "images" / "schema-1.txt"
SMALL = "llama"
LARGE = "deepseek_v4"


def image_of(name: str, tokens: int, **how: Any) -> CacheImage:
    model = model_of(name)
    ids = ids_of(tokens, batch=1)
    return CacheImage.take(prefilled(model, ids), model.config, producer=producer_of(name), tokens=ids, **how)


@pytest.fixture(scope="module")
def small() -> bytes:
    return image_of(SMALL, 1).to_bytes()


@pytest.fixture(scope="module")
def large() -> bytes:
    return image_of(LARGE, 23).to_bytes()


def refusal_of(data: bytes) -> RestoreRefused:
    with pytest.raises(RestoreRefused) as caught:
        CacheImage.from_bytes(data)
    return caught.value


def manifest_of(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    manifest = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][image_bytes.KEY])
    assert isinstance(manifest, dict)
    return manifest


def payload_of(data: bytes) -> bytes:
    return data[8 + int.from_bytes(data[:8], "little") :]


def framed(header: bytes, payload: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + payload


def forged(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Write another manifest, in the one form that a manifest is written in, over the same payload."""
    manifest = manifest_of(data)
    change(manifest)
    return framed(image_bytes._header(manifest), payload_of(data))


# -- there and back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_same_state_gives_the_same_bytes(name: str) -> None:
    first, second = image_of(name, 19), image_of(name, 19)
    data = first.to_bytes()
    assert data == second.to_bytes()
    again = CacheImage.from_bytes(data)
    assert again.to_bytes() == data and again.digest == first.digest
    assert again.producer == first.producer and again.prefixes == first.prefixes
    for one, other in zip(first.parts, again.parts, strict=True):
        assert one.name == other.name and one.format == other.format and one.dtype == other.dtype
        assert torch.equal(one.data, other.data)


def test_any_buffer_will_do(small: bytes) -> None:
    for data in (
        bytearray(small),
        memoryview(small),
        memoryview(small).cast("b"),
        memoryview(small + small)[: len(small)],
    ):
        assert CacheImage.from_bytes(data).to_bytes() == small
    backwards = memoryview(small[::-1])[::-1]
    assert CacheImage.from_bytes(backwards).to_bytes() == small
    for other in ("text", None, 3, [1, 2]):
        with pytest.raises(ArgumentError, match="data"):
            CacheImage.from_bytes(other)  # type: ignore[arg-type]


def test_what_was_read_is_not_a_view_of_the_bytes(small: bytes) -> None:
    data = bytearray(small)
    image = CacheImage.from_bytes(data)
    data[:] = bytes(len(data))
    assert image.to_bytes() == small


def test_safetensors_reads_it(large: bytes) -> None:
    from safetensors.torch import load

    image = CacheImage.from_bytes(large)
    read = load(large)
    assert len(read) == len(image.parts)
    for part in image.parts:
        assert torch.equal(read[f"{part.group}/{part.part}/{part.name}"], part.data)


def test_FC_100_images_of_earlier_schemas_stay_readable() -> None:
    """Written by transformers 5.24.0 from a tiny Llama after five tokens; see tests/data/images."""
    data = base64.b64decode(GOLDEN.read_text())
    image = CacheImage.from_bytes(data)
    assert image.position == 5 and image.batch == 1 and image.producer.version == "5.24.0"
    assert [part.name for part in image.parts][:2] == ["0.keys", "0.values"]
    assert image.to_bytes() == data


def test_FC_100_another_schema_is_refused_by_its_number(small: bytes) -> None:
    for schema in (0, 2, None, "1", True):
        why = refusal_of(forged(small, lambda m, schema=schema: m.update(schema=schema)))  # type: ignore[misc]
        assert (why.code, why.field, why.got) == ("format", "schema", schema)


# -- any byte ---------------------------------------------------------------------------------------


def test_every_single_byte_counts(small: bytes) -> None:
    """Every byte of a small image is changed once, by a bit or more; no byte is unused."""
    codes = set()
    for at in range(len(small)):
        data = bytearray(small)
        data[at] ^= 1 << (at % 8) if at % 3 else 0x55
        codes.add(refusal_of(bytes(data)).code)
    assert codes >= {"malformed", "truncated", "content"}


def test_spaces_in_the_header_count(small: bytes) -> None:
    length = int.from_bytes(small[:8], "little")
    header = small[8 : 8 + length]
    for other in (header + b" " * 8, b" " + header[:-1], header.replace(b" ", b"\t"), header.replace(b'":', b'": ', 1)):
        if other != header:
            assert refusal_of(framed(other, payload_of(small))).code == "malformed"


def test_it_may_end_nowhere_else(small: bytes) -> None:
    for end in range(len(small)):
        assert refusal_of(small[:end]).code == "truncated"
    for more in (b"\0", small):
        assert refusal_of(small + more).code == "malformed"


@settings(max_examples=150)
@given(data=st.data())
def test_any_change_of_a_large_image_is_refused(large: bytes, data: st.DataObject) -> None:
    changed = bytearray(large)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(large) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        a, b = sorted(data.draw(st.tuples(st.integers(0, len(large)), st.integers(0, len(large)))))
        changed = changed[:a] + changed[b:]
    if bytes(changed) != large:
        refusal_of(bytes(changed))


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    assert refusal_of(data).code in ("malformed", "truncated")
    assert refusal_of(framed(data, b"")).code in ("malformed", "truncated")


# -- parts ------------------------------------------------------------------------------------------


def test_swapped_parts_are_refused(large: bytes) -> None:
    """Equal in shape and dtype: content for content, entry for entry, and checksum for checksum."""
    image = CacheImage.from_bytes(large)
    by_name = {part.name: i for i, part in enumerate(image.parts)}
    a, b = by_name["1.compressed_kv.compressor"], by_name["3.compressed_kv.compressor"]
    sizes = [part.data.nbytes for part in image.parts]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    payload = bytearray(payload_of(large))
    one, two = slice(starts[a], starts[a] + sizes[a]), slice(starts[b], starts[b] + sizes[b])
    payload[one], payload[two] = payload[two], payload[one]
    length = int.from_bytes(large[:8], "little")
    why = refusal_of(framed(large[8 : 8 + length], bytes(payload)))
    assert (why.code, why.field) == ("content", "1.compressed_kv.compressor")

    def entries(manifest: dict[str, Any]) -> None:
        parts = manifest["parts"]
        parts[a], parts[b] = parts[b], parts[a]

    def checksums(manifest: dict[str, Any]) -> None:
        parts = manifest["parts"]
        parts[a]["checksum"], parts[b]["checksum"] = parts[b]["checksum"], parts[a]["checksum"]

    for change in (entries, checksums):
        why = refusal_of(forged(large, change))
        assert (why.code, why.field) == ("content", "digest")


# -- manifests that somebody made up ----------------------------------------------------------------

Forgery = Callable[[dict[str, Any]], object]
MADE_UP: dict[str, tuple[Forgery, str]] = {
    "an entry more": (lambda m: m.update(more=1), image_bytes.KEY),
    "an entry less": (lambda m: m.pop("digest"), image_bytes.KEY),
    "no position": (lambda m: m.update(position=0), "position"),
    "a position of truth": (lambda m: m.update(position=True), "position"),
    "a position between": (lambda m: m.update(position=1.5), "position"),
    "a position beyond all": (lambda m: m.update(position=2**62), "position"),
    "no sequences": (lambda m: m.update(batch=0), "batch"),
    "too many sequences": (lambda m: m.update(batch=2**20), "batch"),
    "prefixes of others": (lambda m: m.update(prefixes=["0" * 32] * 2), "prefixes"),
    "a short prefix": (lambda m: m.update(prefixes=["00"]), "digest"),
    "a prefix in capitals": (lambda m: m.update(prefixes=["A" * 32]), "digest"),
    "a prefix that is a number": (lambda m: m.update(prefixes=[7]), "digest"),
    "a digest that is a list": (lambda m: m.update(digest=[]), "digest"),
    "facts in a list": (lambda m: m.update(producer=[]), "producer"),
    "a fact that is nothing": (lambda m: m["producer"].update(attention=None), "producer['attention']"),
    "a fact that is a list": (lambda m: m["producer"].update(attention=[1]), "producer['attention']"),
    "a fact too large": (lambda m: m["producer"].update(attention=10**40), "producer['attention']"),
    "a fact too long": (lambda m: m["producer"].update(attention="x" * 70_000), "producer['attention']"),
    "half a character": (lambda m: m["producer"].update(attention="\ud800"), "producer['attention']"),
    "half a character as name": (lambda m: m["producer"].update({"\udfff": 1}), "producer"),
    "formats in a list": (lambda m: m.update(formats=[]), "formats"),
    "no formats": (lambda m: m.update(formats={}), "formats"),
    "a format nobody uses": (lambda m: m["formats"].update(swa=m["formats"]["kv"]), "formats"),
    "a format of nothing": (lambda m: m["formats"].update(kv={}), "formats['kv']"),
    "a format with more": (lambda m: m["formats"]["kv"].update(more=1), "formats['kv']"),
    "a format of a wrong type": (lambda m: m["formats"]["kv"].update(tile="x"), "formats['kv'].format.tile"),
    "a format in another form": (lambda m: m["formats"]["kv"].update(theta=10000), "formats['kv']"),
    "parts in an object": (lambda m: m.update(parts={}), "parts"),
    "no parts": (lambda m: m.update(parts=[]), "parts"),
    "a part with more": (lambda m: m["parts"][0].update(more=1), "parts[0]"),
    "a negative layer": (lambda m: m["parts"][0].update(layer=-1), "parts[0].layer"),
    "a path of numbers": (lambda m: m["parts"][0].update(path=1), "parts[0].path"),
    "a checksum of others": (lambda m: m["parts"][0].update(checksum="?" * 32), "parts[0].checksum"),
    "codes for a dtype": (lambda m: m["parts"][0].update(dtype="float32", shape=[1, -1, 2, 16]), "parts[0].shape"),
    "no shape": (lambda m: m["parts"][0].update(shape=[1]), "parts[0].shape"),
    "an empty shape": (lambda m: m["parts"][0].update(shape=[1, 0, 2, 16]), "parts[0].shape"),
    "a shape of truth": (lambda m: m["parts"][0].update(shape=[True, 1, 2, 16]), "parts[0].shape"),
    "a shape beyond all": (lambda m: m["parts"][0].update(shape=[2**61, 4]), "parts[0].shape"),
    "a shape of many": (lambda m: m["parts"][0].update(shape=[1] * 9), "parts[0].shape"),
}


@pytest.mark.parametrize("case", MADE_UP)
def test_a_made_up_manifest_is_malformed(case: str, small: bytes) -> None:
    change, field = MADE_UP[case]
    why = refusal_of(forged(small, change))
    assert (why.code, why.field) == ("malformed", field)


def test_a_dtype_that_is_no_state_is_malformed(small: bytes) -> None:
    text = small[8:].replace(b'\\"dtype\\":\\"float32\\",\\"group\\"', b'\\"dtype\\":\\"complex\\",\\"group\\"', 1)
    length = int.from_bytes(small[:8], "little")
    why = refusal_of(framed(text[:length], text[length:]))
    assert (why.code, why.field) == ("malformed", "parts[0].dtype")


def test_a_large_promise_allocates_nothing(small: bytes) -> None:
    """A terabyte is told from what is there before anything is made for it."""
    why = refusal_of(forged(small, lambda m: m["parts"][0].update(shape=[1, 2**38])))
    assert why.code == "truncated" and int(str(why.expected).split()[0]) > 2**40


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{}",
        b'{"__metadata__":[]}',
        b'{"__metadata__":{"hybridkv.image":1}}',
        b'{"__metadata__":{"hybridkv.image":"[1"}}',
        b'{"__metadata__":{"hybridkv.image":"[]"}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"9" * 10_000 + b"}",
        b'{"a":NaN}',
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda header: repr(header[:40]),
)
def test_a_made_up_header_is_malformed(header: bytes) -> None:
    assert refusal_of(framed(header, b"")).code == "malformed"


def test_numbers_without_json_are_malformed(small: bytes) -> None:
    text = json.dumps(manifest_of(small))
    for number, count in itertools.product(("NaN", "Infinity", "-Infinity", "1e999"), (1, 2, 3)):
        manifest = text.replace('"eager"', number, count)  # in a format, in the facts
        header = json.dumps({"__metadata__": {image_bytes.KEY: manifest}}).encode()
        assert refusal_of(framed(header, payload_of(small))).code == "malformed"


def test_a_header_of_any_length_is_bounded(small: bytes) -> None:
    for length in (2**24 + 1, 2**63, 2**64 - 1):
        why = refusal_of(struct.pack("<Q", length) + small[8:])
        assert (why.code, why.field) == ("malformed", "header")


def test_a_shape_of_other_things_than_numbers_has_no_size(small: bytes) -> None:
    """A product of a number and a list is that list repeated: by 2**28, more memory than there is."""
    manifest = manifest_of(small)
    manifest["parts"][0]["shape"] = [2**28, [None]]
    with pytest.raises(TypeError):
        image_bytes._header(manifest)
    header = json.dumps({"__metadata__": {image_bytes.KEY: json.dumps(manifest)}}).encode()
    assert refusal_of(framed(header, payload_of(small))).code == "malformed"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


@settings(max_examples=200)
@given(data=st.data())
def test_a_forger_gets_a_refusal_or_what_he_made(large: bytes, data: st.DataObject) -> None:
    """Anything anywhere in a manifest, digests made again: never another exception, here or when it is restored."""
    manifest = manifest_of(large)
    places = _places(manifest)
    holder, key = places[data.draw(st.integers(0, len(places) - 1))]
    holder[key] = data.draw(JUNK)
    model = model_of(LARGE)
    try:
        header = image_bytes._header(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):  # this manifest has no header at all
        header = json.dumps({"__metadata__": {image_bytes.KEY: json.dumps(manifest)}}).encode()
    try:
        fields = image_bytes.decode(framed(header, payload_of(large)))
        fields.pop("digest")
        parts = [type(part).sealed(**{n: getattr(part, n) for n in _SEALED}) for part in fields.pop("parts")]
        image = CacheImage.sealed(**fields, parts=tuple(parts))
        image.restore(model.config, producer=producer_of(LARGE))
    except HybridKVError as why:
        assert isinstance(why, RestoreRefused) and why.code
    else:
        assert image.position == 23


_SEALED = ("group", "part", "layer", "path", "position", "format", "data")
