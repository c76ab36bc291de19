# SPDX-License-Identifier: Apache-2.0
"""What stands for a model's weights: a digest of the loaded tensors, or a cheaper one of the files they came from.

A state computed with other weights is wrong in every byte and right in every shape: only a digest tells.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from hybridkv.errors import ArgumentError, UnsupportedModel
from hybridkv.regular_file import open_regular, read_regular

_CHUNK_ELEMENTS = 2**22
_SAMPLE_BYTES = 4096
_WINDOWS = 256  # samples of a weights file whose tensors are not told apart
_WHOLE_LIMIT = 2**26  # bytes of a file that is read whole
_HEADER_LIMIT = 100_000_000  # of a safetensors file, as its format says
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_OTHERS = (".json", ".model", ".txt", ".jinja", ".tiktoken", ".py")


def weights_digest(model: Any) -> str:
    """Return what stands for the tensors of a loaded model.

    Parameters
    ----------
    model : torch.nn.Module
        All parameters and buffers count: name, dtype, shape and content. A tensor of several names
        (tied parameters) is read once and counts with all of them.

    Returns
    -------
    str
        SHA-256, 64 hex digits. The same for the same weights in every process and on every device. Streamed: it
        needs the memory of one chunk of a tensor, and the time to read all weights once.

    Raises
    ------
    UnsupportedModel
        A tensor without content of its own (on the meta device, or sparse).
    """
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    # Buffers that are not saved count too: frequencies of a rotary embedding are among them.
    for name, tensor in {**dict(model.named_buffers()), **model.state_dict(keep_vars=True)}.items():
        if isinstance(tensor, torch.Tensor):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor.detach()
    digest = hashlib.sha256(b"hybridkv.weights\0")
    for key in sorted(names, key=lambda key: min(names[key])):
        tensor = tensors[key]
        if tensor.is_meta or tensor.layout is not torch.strided:
            raise UnsupportedModel("model", "tensors with content of their own", names[key][0])
        _put(digest, json.dumps([sorted(names[key]), str(tensor.dtype), list(tensor.shape)]).encode())
        for chunk in _bytes_of(tensor):
            digest.update(chunk)
    return digest.hexdigest()


def checkpoint_digest(path: str | os.PathLike[str], *, times: bool = True) -> str:
    """Return what stands for the weights in a folder, without reading all of them.

    Parameters
    ----------
    path : str or path-like
        A folder as ``save_pretrained`` writes it.
    times : bool, optional
        Count when each weights file was last changed, so that any replacement is seen. Without it copies of one
        folder agree, and what is seen is a file of another size, another header, or other bytes in the samples:
        4 KiB at the start, the middle and the end of every tensor.

    Returns
    -------
    str
        64 hex digits, of weights files by size, time, header and samples, and of configuration and
        tokenizer files whole. Where the folder is incomplete or cannot be read, ``unreadable-`` and a number
        that never comes again: such weights match nothing, themselves included.

    Raises
    ------
    ArgumentError
        ``path`` is no folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ArgumentError("path", "a folder with weights", str(path))
    digest = hashlib.sha256(b"hybridkv.checkpoint\0")
    try:
        files = sorted(f for f in folder.iterdir() if f.suffix in _WEIGHTS + _OTHERS)
        names = {f.name for f in files}
        if "config.json" not in names or not any(f.suffix in _WEIGHTS for f in files):
            raise ValueError("no configuration, or no weights")
        for file in files:
            _put(digest, file.name.encode("utf-8", "surrogateescape"))
            if file.suffix in _WEIGHTS:
                _put_weights(digest, file, times)
            else:
                content = _whole(file)
                if file.name.endswith(".index.json"):
                    _require_shards(content, names)
                _put(digest, content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return f"unreadable-{uuid.uuid4().hex}"
    return digest.hexdigest()


def _put(digest: Any, value: bytes) -> None:
    digest.update(len(value).to_bytes(8, "big") + value)


def _bytes_of(tensor: torch.Tensor) -> Iterator[bytes]:
    """Yield the content in C order, a chunk at a time, whatever the strides."""
    if not tensor.is_contiguous() and tensor.numel() > _CHUNK_ELEMENTS:
        for part in tensor:
            yield from _bytes_of(part)
        return
    flat = tensor.contiguous().reshape(-1)
    for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
        yield flat[start : start + _CHUNK_ELEMENTS].cpu().view(torch.uint8).numpy().tobytes()


def _whole(file: Path) -> bytes:
    return read_regular(file, _WHOLE_LIMIT)


def _require_shards(index: bytes, names: set[str]) -> None:
    shards = set(json.loads(index)["weight_map"].values())
    if not shards <= names:
        raise ValueError("a shard is missing")


def _put_weights(digest: Any, file: Path, times: bool) -> None:
    with open_regular(file) as stream:
        facts = os.fstat(stream.fileno())
        _put(digest, f"{facts.st_size} {facts.st_mtime_ns if times else '-'}".encode())
        if file.suffix == ".safetensors":
            spans = _tensors(digest, stream, facts.st_size)
        else:
            step = max(facts.st_size // _WINDOWS, 1)
            spans = [(start, min(start + step, facts.st_size)) for start in range(0, facts.st_size, step)]
        for start in sorted(_sample_starts(spans)):
            stream.seek(start)
            _put(digest, stream.read(_SAMPLE_BYTES))


def _tensors(digest: Any, stream: BinaryIO, size: int) -> list[tuple[int, int]]:
    """Count the header of a safetensors file; return where its tensors lie."""
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
        raise ValueError("no header of a safetensors file")
    header = stream.read(length)
    _put(digest, header)
    spans = []
    for name, entry in json.loads(header).items():
        if name != "__metadata__":
            start, end = (8 + length + int(offset) for offset in entry["data_offsets"])
            if not 8 + length <= start <= end <= size:
                raise ValueError("a tensor outside the file")
            spans.append((start, end))
    return spans


def _sample_starts(spans: Iterable[tuple[int, int]]) -> set[int]:
    starts = set()
    for start, end in spans:
        last = max(end - _SAMPLE_BYTES, start)
        starts |= {start, (start + last) // 2, last}
    return starts
