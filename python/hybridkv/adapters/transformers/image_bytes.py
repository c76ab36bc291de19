# SPDX-License-Identifier: Apache-2.0
"""The bytes form of an image: a safetensors file whose metadata is a manifest.

::

    8 bytes   length of the header, little endian
    header    JSON: {"__metadata__": {"hybridkv.image": manifest}, name: {"dtype", "shape", "data_offsets"}, ...},
              spaces up to a multiple of 8
    data      the parts one after another, without holes, in the order of the manifest

The manifest is JSON as well: schema, position, batch, prefixes, producer's facts, formats by group, parts, digest.
There is one way to write an image, and bytes written in any other way are refused: the header is made again from what
was read and compared, so that no byte of it goes unchecked. Sizes are compared before anything is allocated.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hybridkv.adapters.transformers.image_part import DTYPES, SCHEMA, StatePart, raw
from hybridkv.adapters.transformers.layout import refusal
from hybridkv.adapters.transformers.producer import Producer
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats import KvFormat

if TYPE_CHECKING:
    from hybridkv.adapters.transformers.image import CacheImage

KEY = "hybridkv.image"
HEADER_LIMIT = 2**24
COUNT_LIMIT = 2**16
"""Parts, facts, sequences, groups and dimensions of a shape."""
TEXT_LIMIT = 2**16
NUMBER_LIMIT = 2**62

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_DIGEST_DIGITS = 32
_FIELDS = {"schema", "position", "batch", "prefixes", "producer", "formats", "parts", "digest"}
_PART_FIELDS = {"group", "part", "layer", "path", "position", "dtype", "shape", "checksum"}


def encode(image: CacheImage) -> bytes:
    """Return the bytes of an image."""
    parts = [_part_entry(part) for part in image.parts]
    manifest = {
        "schema": SCHEMA,
        "position": image.position,
        "batch": image.batch,
        "prefixes": [prefix.hex() for prefix in image.prefixes],
        "producer": image.producer.facts,
        "formats": {part.group: _format_entry(part.format) for part in image.parts},
        "parts": parts,
        "digest": image.digest.hex(),
    }
    header = _header(manifest)
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *(raw(part.data) for part in image.parts)])


def decode(data: object) -> dict[str, Any]:
    """Return the fields of an image from its bytes; digests are not compared here.

    Raises
    ------
    RestoreRefused
        Code malformed, truncated, or format for another schema.
    ArgumentError
        ``data`` is not bytes.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ArgumentError("data", "bytes", type(data).__name__)
    view = memoryview(data)
    view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
    header = _read_header(view)
    manifest = _manifest(header)
    entries = [_checked_entry(i, entry) for i, entry in enumerate(manifest["parts"])]
    if _header(manifest) != header:
        raise refusal("malformed", "header", "the header of this manifest", "another")
    total = _LENGTH_BYTES + len(header) + sum(_nbytes(entry) for entry in entries)
    if len(view) != total:
        raise refusal("truncated" if len(view) < total else "malformed", "data", f"{total} bytes", len(view))
    formats = {group: _format(group, entry) for group, entry in manifest["formats"].items()}
    parts = []
    start = _LENGTH_BYTES + len(header)
    for entry in entries:
        if entry["group"] not in formats:
            raise refusal("malformed", "formats", f"a format of group {entry['group']}", None)
        parts.append(_part(entry, formats[entry["group"]], view[start : start + _nbytes(entry)]))
        start += _nbytes(entry)
    if set(formats) != {part.group for part in parts}:
        raise refusal("malformed", "formats", "formats of groups that have parts", ", ".join(formats))
    return {
        "position": manifest["position"],
        "batch": manifest["batch"],
        "prefixes": tuple(bytes.fromhex(prefix) for prefix in manifest["prefixes"]),
        "producer": Producer(manifest["producer"]),
        "parts": tuple(parts),
        "digest": bytes.fromhex(manifest["digest"]),
    }


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _header(manifest: Mapping[str, Any]) -> bytes:
    start = 0
    tensors: dict[str, object] = {"__metadata__": {KEY: _dump(manifest)}}
    for entry in manifest["parts"]:
        name = f"{entry['group']}/{entry['part']}/{entry['layer']}.{entry['path']}"
        end = start + _nbytes(entry)
        code = DTYPES[entry["dtype"]][1]
        tensors[name] = {"dtype": code, "shape": entry["shape"], "data_offsets": [start, end]}
        start = end
    header = _dump(tensors).encode()
    return header + b" " * (-len(header) % _ALIGNMENT)


def _part_entry(part: StatePart) -> dict[str, Any]:
    return {
        "group": part.group,
        "part": part.part,
        "layer": part.layer,
        "path": part.path,
        "position": part.position,
        "dtype": part.dtype,
        "shape": list(part.shape),
        "checksum": part.checksum.hex(),
    }


def _format_entry(made: KvFormat) -> dict[str, Any]:
    declared = ((f.name, getattr(made, f.name)) for f in fields(made))
    return {name: value for name, value in declared if value is not None}


def _nbytes(entry: Mapping[str, Any]) -> int:
    # Numbers alone: a product with a list is a list as often repeated.
    return int(math.prod(map(operator.index, entry["shape"])) * DTYPES[entry["dtype"]][0].itemsize)


def _read_header(view: memoryview) -> bytes:
    if len(view) < _LENGTH_BYTES:
        raise refusal("truncated", "header", f"{_LENGTH_BYTES} bytes of length", len(view))
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if not 2 <= length <= HEADER_LIMIT:
        raise refusal("malformed", "header", f"2 to {HEADER_LIMIT} bytes", length)
    if len(view) < _LENGTH_BYTES + length:
        raise refusal("truncated", "header", f"{length} bytes", len(view) - _LENGTH_BYTES)
    return bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + length])


def _parsed(text: bytes | str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, numbers of too many digits, nested too deep
        raise refusal("malformed", what, "JSON", "other bytes") from None
    return _mapping(what, value)


def _finite(text: str) -> float:
    """Read a number; NaN, infinities and numbers beyond them are no JSON."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _manifest(header: bytes) -> dict[str, Any]:
    """Return the manifest with every value of the type and the size that it must have."""
    metadata = _mapping("__metadata__", _parsed(header, "header").get("__metadata__"))
    manifest = _parsed(_text(KEY, metadata.get(KEY), HEADER_LIMIT), KEY)
    if manifest.get("schema") != SCHEMA or isinstance(manifest.get("schema"), bool):
        raise refusal("format", "schema", SCHEMA, manifest.get("schema"))
    _exactly(KEY, manifest, _FIELDS)
    _number("position", manifest.get("position"), 1, NUMBER_LIMIT)
    batch = _number("batch", manifest.get("batch"), 1, COUNT_LIMIT)
    prefixes = _list("prefixes", manifest.get("prefixes"))
    if len(prefixes) not in (0, batch):
        raise refusal("malformed", "prefixes", f"none, or {batch}", len(prefixes))
    for digest in (*prefixes, manifest.get("digest")):
        _hex("digest", digest)
    for name, value in _mapping("producer", manifest.get("producer")).items():
        _scalar(f"producer[{name!r}]", value)
    _mapping("formats", manifest.get("formats"))
    if not _list("parts", manifest.get("parts")):
        raise refusal("malformed", "parts", "at least one", 0)
    return manifest


def _checked_entry(number: int, value: object) -> dict[str, Any]:
    where = f"parts[{number}]"
    entry = _mapping(where, value)
    _exactly(where, entry, _PART_FIELDS)
    for name in ("group", "part", "path", "dtype"):
        _text(f"{where}.{name}", entry.get(name), TEXT_LIMIT)
    _number(f"{where}.layer", entry.get("layer"), 0, NUMBER_LIMIT)
    _number(f"{where}.position", entry.get("position"), 0, NUMBER_LIMIT)
    _hex(f"{where}.checksum", entry.get("checksum"))
    if entry["dtype"] not in DTYPES:
        raise refusal("malformed", f"{where}.dtype", f"one of {', '.join(DTYPES)}", entry["dtype"])
    shape = _list(f"{where}.shape", entry.get("shape"))
    for size in shape:
        _number(f"{where}.shape", size, 1, NUMBER_LIMIT)
    if not 2 <= len(shape) <= 8 or math.prod(shape) >= NUMBER_LIMIT:
        raise refusal("malformed", f"{where}.shape", "2 to 8 dimensions of less than 2**62 elements", len(shape))
    return entry


def _format(group: str, value: object) -> KvFormat:
    where = f"formats[{group!r}]"
    entry = _mapping(where, value)
    known = {f.name for f in fields(KvFormat)}
    if not {"layout", "dtype"} <= set(entry) <= known:
        raise refusal("malformed", where, "fields of a format", ", ".join(sorted(set(entry) ^ known)))
    try:
        made = KvFormat(**entry)
    except SpecError as why:
        raise refusal("malformed", f"{where}.{why.field}", why.expected, why.got) from None
    if _dump(_format_entry(made)) != _dump(entry):
        raise refusal("malformed", where, "fields in the form that they are kept in", "another")
    return made


def _part(entry: Mapping[str, Any], made: KvFormat, content: memoryview) -> StatePart:
    dtype = DTYPES[entry["dtype"]][0]
    flat = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
    return StatePart(
        group=entry["group"],
        part=entry["part"],
        layer=entry["layer"],
        path=entry["path"],
        position=entry["position"],
        format=made,
        checksum=bytes.fromhex(entry["checksum"]),
        data=flat.view(dtype).reshape(entry["shape"]),
    )


def _mapping(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > COUNT_LIMIT:
        raise refusal("malformed", where, f"an object of at most {COUNT_LIMIT} entries", type(value).__name__)
    for name in value:
        _text(where, name, TEXT_LIMIT)
    return value


def _exactly(where: str, value: Mapping[str, object], names: set[str]) -> None:
    if set(value) != names:
        raise refusal("malformed", where, ", ".join(sorted(names)), ", ".join(sorted(value)))


def _list(where: str, value: object) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > COUNT_LIMIT:
        raise refusal("malformed", where, f"a list of at most {COUNT_LIMIT} entries", type(value).__name__)
    return value


def _text(where: str, value: object, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit or not _encodable(value):
        raise refusal("malformed", where, f"at most {limit} characters that UTF-8 can encode", type(value).__name__)
    return value


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(where: str, value: object, low: int, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < limit:
        raise refusal("malformed", where, f"an integer, {low} <= n < {limit}", value)
    return value


def _hex(where: str, value: object) -> None:
    text = _text(where, value, _DIGEST_DIGITS)
    if len(text) != _DIGEST_DIGITS or not set(text) <= set("0123456789abcdef"):
        raise refusal("malformed", where, f"{_DIGEST_DIGITS} hex digits", text)


def _scalar(where: str, value: object) -> None:
    if isinstance(value, str):
        _text(where, value, TEXT_LIMIT)
    elif not isinstance(value, (bool, float)):
        _number(where, value, -NUMBER_LIMIT, NUMBER_LIMIT)
