# SPDX-License-Identifier: Apache-2.0
"""Files of checkpoints and tokenizers: which belong to one, and what their headers and indices say.

All of it is data of others: bounded, compared with the files, and refused where it does not fit.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hybridkv.errors import ArgumentError
from hybridkv.regular_file import open_regular
from hybridkv.texts import is_encodable, path_of

_CHUNK = 1 << 20
_HEADER_LIMIT = 1 << 25  # bytes; the safetensors format says 100 MB, and JSON takes up to 30 times its size in memory
_JSON_LIMIT = 1 << 25

_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}  # fmt: skip
"""Bits of an element of each dtype of safetensors files."""

_SHARD = re.compile(r"(.*)-(\d{5,6})-of-(\d{5,6})\.safetensors")
_MOST_SHARDS = 100_000

_VOCABULARIES = (
    "tokenizer.json", "vocab.json", "vocab.txt", "vocab.bpe", "merges.txt", "encoder.json", "tekken.json", "bpe.codes",
    "dict.txt", "vocab-src.json", "vocab-tgt.json", "target_vocab.json", "entity_vocab.json", "byte_maps.json",
    "prophetnet.tokenizer", "word_shape.json", "word_pronunciation.json", "emoji.json",
)  # fmt: skip
_VOCABULARY_ENDS = (".model", ".spm", ".tiktoken")
_VOCABULARY_BEGINS = ("tokenizer.model", "tokenizer.mm.model")
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "normalizer.json")
_SETTINGS_BEGIN = ("chat_template.", "tokenization_")

PathLike = str | os.PathLike[str]


class Tensor(NamedTuple):
    """A tensor of a safetensors file: its dtype and shape as stated, and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def safetensors_header(path: PathLike) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, by name.

    Parameters
    ----------
    path : path-like

    Raises
    ------
    ArgumentError
        No such file, or not one of that format: a header that is too long, no JSON, or has a name twice; a tensor
        outside the file, or of other bytes than its dtype and shape take; two tensors over each other; bytes that no
        tensor has.
    """
    file = path_of("path", path)
    with opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
            raise wrong(file, f"a header of {length} bytes")
        header = _json(file, stream.read(length))
    if not isinstance(header, dict):
        raise wrong(file, "a header that is no mapping")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, name, entry, 8 + length, size) for name, entry in header.items()}
    reached = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != reached:
            raise wrong(file, "tensors that overlap, or bytes that are no tensor's")
        reached = tensor.end
    if reached != size:
        raise wrong(file, f"{size - reached} bytes that are no tensor's")
    return tensors


def weights_files(path: PathLike | Iterable[PathLike]) -> list[tuple[Path, set[str] | None]]:
    """Return the files of a checkpoint, each with the tensors that an index says it has; None without an index.

    Raises
    ------
    ArgumentError
        No such file, an index that is none or leads out of its folder, a shard that is missing.
    """
    if not isinstance(path, (str, os.PathLike)):
        try:
            files = [path_of("path", each) for each in path]
        except TypeError:
            raise ArgumentError("path", "a path, or several", type(path).__name__) from None
        if not files:
            raise ArgumentError("path", "a path, or several", "none")
        return [(file, None) for file in files]
    root = path_of("path", path)
    if not root.is_dir():
        return [(root, None)]
    indices = sorted(root.glob("*.safetensors.index.json"))
    if not indices:
        files = sorted(root.glob("*.safetensors"))
        if not files:
            raise ArgumentError("path", "a folder with safetensors files", str(root))
        _require_all_shards(root, {file.name for file in files})
        return [(file, None) for file in files]
    named: dict[str, set[str]] = {}
    for index in indices:
        for tensor, shard in _weight_map(index).items():
            named.setdefault(shard, set()).add(tensor)
    _require_all_shards(root, named.keys())
    return [(root / name, named[name]) for name in sorted(named)]


def _require_all_shards(root: Path, names: Iterable[str]) -> None:
    """Refuse shards of a number of which others are not among the names."""
    found: dict[tuple[str, str], set[int]] = {}
    for match in filter(None, map(_SHARD.fullmatch, names)):
        found.setdefault((match[1], match[3]), set()).add(int(match[2]))
    for (stem, of), numbers in found.items():
        expected = set(range(1, 1 + min(int(of), _MOST_SHARDS)))
        if numbers != expected:
            got = f"{root}: {len(numbers)}, and {min(numbers ^ expected)} is missing or one too many"
            raise ArgumentError("path", f"shards 1 to {int(of)} of {stem[:200]!r}", got)


def _weight_map(index: Path) -> dict[str, str]:
    """Return which shard has which tensor; a name that leads out of the folder is refused."""
    content = read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise wrong(index, "no weight_map")
    for name in listed.values():
        if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\\0"):
            raise wrong(index, f"a shard named {str(name)[:200]!r}")
    return listed


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a tokenizer in a folder, by name in order.

    Raises
    ------
    ArgumentError
        The folder cannot be read, or has no vocabulary.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if is_encodable(name))
    except OSError as error:
        raise ArgumentError("path", "a folder that can be read", f"{folder}: {error.strerror}") from None
    vocabularies = [name for name in names if _is_vocabulary(name)]
    if not vocabularies:
        ends = ", ".join(f"*{end}" for end in _VOCABULARY_ENDS)
        raise ArgumentError("path", f"a vocabulary: {', '.join(_VOCABULARIES)}, {ends}", str(folder))
    settings = [name for name in names if name in _SETTINGS or name.startswith(_SETTINGS_BEGIN)]
    return [folder / name for name in sorted({*vocabularies, *settings})]


def _is_vocabulary(name: str) -> bool:
    return name in _VOCABULARIES or name.endswith(_VOCABULARY_ENDS) or name.startswith(_VOCABULARY_BEGINS)


def read_json(path: PathLike) -> Any:
    """Return what a JSON file of at most 32 MiB holds.

    Raises
    ------
    ArgumentError
        No such file, larger, or no JSON.
    """
    file = path_of("path", path)
    with opened(file) as stream:
        content = stream.read(_JSON_LIMIT + 1)
    if len(content) > _JSON_LIMIT:
        raise wrong(file, f"more than {_JSON_LIMIT} bytes")
    return _json(file, content)


def _tensor(file: Path, name: str, entry: object, base: int, size: int) -> Tensor:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        raise wrong(file, f"an entry {name[:200]!r} without dtype, shape and offsets") from None
    numbers = [start, end, *shape] if isinstance(shape, list) else [None]
    if not isinstance(dtype, str) or not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
        raise wrong(file, f"an entry {name[:200]!r} of other types")
    if not start <= end <= size - base:
        raise wrong(file, f"a tensor {name[:200]!r} outside the file")
    if not is_encodable(name):
        raise wrong(file, f"a tensor named {name[:200]!r}")
    if dtype not in _BITS:
        raise wrong(file, f"a tensor {name[:200]!r} of the unknown dtype {dtype[:40]!r}")
    if _bits(shape, _BITS[dtype], 8 * size) != 8 * (end - start):
        raise wrong(file, f"a tensor {name[:200]!r} whose {end - start} bytes are not those of its dtype and shape")
    return Tensor(dtype, tuple(shape), base + start, base + end)


def _bits(shape: list[int], each: int, most: int) -> int:
    """Return the bits of a shape's elements; where they are more than a file can have, any number above."""
    if 0 in shape:
        return 0
    bits = each
    for n in shape:
        bits *= n
        if bits > most:
            break
    return bits


def _json(file: Path, content: bytes) -> Any:
    try:
        return json.loads(content, object_pairs_hook=_once)
    except _Twice as twice:
        raise wrong(file, f"the name {str(twice)[:200]!r} twice in an object") from None
    except (ValueError, RecursionError) as error:
        raise wrong(file, f"no JSON: {type(error).__name__}") from None


class _Twice(Exception):
    """A name that an object has twice: who reads it takes the one or the other."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(name)
        found[name] = value
    return found


def opened(file: Path) -> BinaryIO:
    """Open a regular file of a checkpoint; what is none is refused."""
    try:
        return open_regular(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ArgumentError("path", "a file that can be read", f"{file}: {reason}") from None


def chunks(stream: BinaryIO, file: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a stretch of a file, at most 1 MiB at a time."""
    stream.seek(start)
    while start < end:
        chunk = stream.read(min(_CHUNK, end - start))
        if not chunk:
            raise wrong(file, "fewer bytes than when it was opened")
        start += len(chunk)
        yield chunk


def wrong(file: Path, got: str) -> ArgumentError:
    """Return the refusal of a file's content."""
    return ArgumentError("path", "a sound file", f"{file}: {got}")
