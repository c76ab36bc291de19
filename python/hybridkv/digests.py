# SPDX-License-Identifier: Apache-2.0
"""Digests for an identity, from the files that engineers have: weights, adapters, tokenizers, configurations.

Everything here reads files as data: nothing in them is executed, sizes that they state are checked against the file
before memory is taken, and what is wrong with one is an :class:`~hybridkv.ArgumentError` that names it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hybridkv.errors import ArgumentError
from hybridkv.regular_file import open_regular

_CHUNK = 1 << 20
_HEADER_LIMIT = 1 << 25  # bytes; the safetensors format says 100 MB, and JSON takes up to 30 times its size in memory
_JSON_LIMIT = 1 << 25
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "tekken.json", "tiktoken.model",
)  # fmt: skip
_ROPE = ("rope", "rotary", "max_position_embeddings", "partial_rotary_factor", "position_embedding")
_QUANTISATION = ("quantization_config", "compression_config", "quant_method", "kv_cache_quant", "kv_cache_scheme")
_SALT_BYTES = 32

PathLike = str | os.PathLike[str]


class Tensor(NamedTuple):
    """A tensor of a safetensors file: its dtype and shape as stated, and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def weights_digest(path: PathLike | Iterable[PathLike]) -> bytes:
    """Return the digest of the content of a checkpoint in safetensors files.

    Parameters
    ----------
    path : path-like, or several
        A file, several files, or a folder, of which every ``*.safetensors`` counts, or those that its index names.

    Returns
    -------
    bytes
        32 bytes: SHA-256 over name, dtype, shape and bytes of every tensor, in the order of their names. It does not
        depend on how tensors are spread over files, nor on metadata. Streamed: it takes the memory of 1 MiB.

    Raises
    ------
    ArgumentError
        No such file, no safetensors file, a tensor that is in two files, a shard that is missing.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> def checkpoint(folder, values):
    ...     header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    ...     data = len(header).to_bytes(8, "little") + header + bytes(values)
    ...     (pathlib.Path(folder) / "model.safetensors").write_bytes(data)
    ...     return weights_digest(folder)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint(folder, [1, 2, 3, 4]) == checkpoint(folder, [1, 2, 3, 5])
    False
    """
    files = _weights_files(path)
    where: dict[str, tuple[Path, Tensor]] = {}
    for file in files:
        for name, tensor in safetensors_header(file).items():
            if name in where:
                raise ArgumentError("path", "tensors of one file each", f"{name[:200]!r} in two files")
            where[name] = (file, tensor)
    digest = hashlib.sha256(b"hybridkv.weights 1\0")
    for name in sorted(where):
        file, tensor = where[name]
        for part in (name, tensor.dtype, repr(tensor.shape)):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        digest.update((tensor.end - tensor.start).to_bytes(8, "big"))
        with _opened(file) as stream:
            for chunk in _chunks(stream, file, tensor.start, tensor.end):
                digest.update(chunk)
    return digest.digest()


def safetensors_header(path: PathLike) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, by name.

    Parameters
    ----------
    path : path-like

    Raises
    ------
    ArgumentError
        No such file, or not one of that format: a header that is too long or no JSON, a tensor outside the file, two
        tensors over each other, bytes that no tensor has.
    """
    file = Path(path)
    with _opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
            raise _wrong(file, f"a header of {length} bytes")
        header = _json(file, stream.read(length))
    if not isinstance(header, dict):
        raise _wrong(file, "a header that is no mapping")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, name, entry, 8 + length, size) for name, entry in header.items()}
    reached = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != reached:
            raise _wrong(file, "tensors that overlap, or bytes that are no tensor's")
        reached = tensor.end
    if reached != size:
        raise _wrong(file, f"{size - reached} bytes that are no tensor's")
    return tensors


def adapter_digest(folder: PathLike) -> bytes:
    """Return the digest of an adapter's content: its tensors, and the settings that it is applied with.

    Parameters
    ----------
    folder : path-like
        With ``adapter_model.safetensors`` and ``adapter_config.json``, of which names and paths do not count.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    ArgumentError
        As :func:`weights_digest`; no configuration.
    """
    root = Path(folder)
    config = read_json(root / "adapter_config.json")
    if not isinstance(config, dict):
        raise _wrong(root / "adapter_config.json", "no mapping")
    for name in ("base_model_name_or_path", "revision", "inference_mode", "auto_mapping"):
        config.pop(name, None)
    settings = json.dumps(config, sort_keys=True).encode()
    return hashlib.sha256(b"hybridkv.adapter 1\0" + weights_digest(root) + settings).digest()


def tokenizer_digest(path: PathLike) -> bytes:
    """Return the digest of a tokenizer, byte for byte.

    Parameters
    ----------
    path : path-like
        ``tokenizer.json``, or a folder, of which every file of a tokenizer counts.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    ArgumentError
        No such file, or a folder without one.
    """
    root = Path(path)
    files = [root / name for name in _TOKENIZER_FILES if (root / name).is_file()] if root.is_dir() else [root]
    if not files:
        raise ArgumentError("path", f"a tokenizer: one of {list(_TOKENIZER_FILES)}", str(root))
    digest = hashlib.sha256(b"hybridkv.tokenizer 1\0")
    for file in files:
        name = file.name.encode("utf-8", "surrogateescape") if root.is_dir() else b"tokenizer.json"
        with _opened(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            digest.update(len(name).to_bytes(8, "big") + name + size.to_bytes(8, "big"))
            for chunk in _chunks(stream, file, 0, size):
                digest.update(chunk)
    return digest.digest()


def media_digest(content: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of an image or sound for ``block_keys(media=)``: all 32 bytes of SHA-256.

    Give what the encoder sees (decoded and resized), not a file's name: equal digests share bytes.

    Raises
    ------
    ArgumentError
        No bytes.
    """
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise ArgumentError("content", "bytes", type(content).__name__)
    return hashlib.sha256(content).digest()


def scales_digest(scales: Mapping[str, Any]) -> bytes:
    """Return the digest of the scales that a cache is quantised with.

    Parameters
    ----------
    scales : mapping of str to number, or array
        By layer and side, as ``{"layers.0.k": 0.02}``; arrays count with dtype, shape and bytes.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    ArgumentError
        No mapping of names to numbers and arrays.
    """
    import numpy as np

    if not isinstance(scales, Mapping) or not all(isinstance(name, str) for name in scales):
        raise ArgumentError("scales", "a mapping of names to numbers or arrays", type(scales).__name__)
    digest = hashlib.sha256(b"hybridkv.scales 1\0")
    for name in sorted(scales):
        try:
            array = np.asarray(scales[name])
        except Exception as error:  # whatever the value's own code raises
            raise ArgumentError(f"scales[{name!r}]", "a number or an array", type(error).__name__) from error
        if array.dtype.kind not in "iufb":
            raise ArgumentError(f"scales[{name!r}]", "a number or an array", str(array.dtype))
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        for part in (name, array.dtype.str, repr(array.shape)):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        digest.update(array.tobytes())
    return digest.digest()


def rope_settings(config: Mapping[str, Any] | PathLike) -> dict[str, Any]:
    """Return the settings of the rotary embedding in a model's configuration, for ``Identity(rope=)``.

    Parameters
    ----------
    config : mapping or path-like
        A configuration, or the path of a ``config.json``. Everything whose name speaks of rotary embeddings or of
        their reach counts, those of ``text_config`` among them, as it stands: two ways to say the same are a miss.

    Raises
    ------
    ArgumentError
        No mapping, no such file.
    """
    return _settings(config, lambda name: any(part in name for part in _ROPE))


def quantisation_settings(config: Mapping[str, Any] | PathLike) -> dict[str, Any]:
    """Return the settings of quantisation in a model's configuration, for ``Identity(quantisation=)``.

    Parameters
    ----------
    config : mapping or path-like
        As in :func:`rope_settings`; ``torch_dtype`` and ``dtype`` count too.

    Raises
    ------
    ArgumentError
        No mapping, no such file.
    """
    return _settings(config, lambda name: name in ("dtype", "torch_dtype") or name.startswith(_QUANTISATION))


def tenant_salt(secret: bytes, tenant: str) -> bytes:
    """Return a tenant's salt, made of a secret that the gateway keeps: HMAC-SHA256, 32 bytes.

    Parameters
    ----------
    secret : bytes
        At least 32 bytes from a good source (``secrets.token_bytes``), the same for every process that shares a cache.
    tenant : str
        What the gateway knows the tenant by; never what a request says about itself.

    Raises
    ------
    ArgumentError
        A secret that is too short, a tenant without a name.
    """
    if not isinstance(secret, bytes) or len(secret) < _SALT_BYTES:
        raise ArgumentError("secret", f"at least {_SALT_BYTES} bytes", "fewer" if isinstance(secret, bytes) else "none")
    if not isinstance(tenant, str) or not tenant:
        raise ArgumentError("tenant", "a name", type(tenant).__name__)
    return hmac.new(secret, b"hybridkv.salt 1\0" + tenant.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def read_json(path: PathLike) -> Any:
    """Return what a JSON file of at most 32 MiB holds.

    Raises
    ------
    ArgumentError
        No such file, larger, or no JSON.
    """
    file = Path(path)
    with _opened(file) as stream:
        content = stream.read(_JSON_LIMIT + 1)
    if len(content) > _JSON_LIMIT:
        raise _wrong(file, f"more than {_JSON_LIMIT} bytes")
    return _json(file, content)


def _settings(config: Mapping[str, Any] | PathLike, counts: Any) -> dict[str, Any]:
    whole = config if isinstance(config, Mapping) else read_json(config)
    if not isinstance(whole, Mapping):
        raise ArgumentError("config", "a mapping", type(whole).__name__)
    found = {name: whole[name] for name in whole if isinstance(name, str) and counts(name)}
    inner = whole.get("text_config")
    if isinstance(inner, Mapping):
        found |= {f"text_config.{n}": inner[n] for n in inner if isinstance(n, str) and counts(n)}
    return found


def _weights_files(path: PathLike | Iterable[PathLike]) -> list[Path]:
    if not isinstance(path, (str, os.PathLike)):
        try:
            files = [Path(each) for each in path]
        except TypeError:
            raise ArgumentError("path", "a path, or several", type(path).__name__) from None
        if not files:
            raise ArgumentError("path", "a path, or several", "none")
        return files
    root = Path(path)
    if not root.is_dir():
        return [root]
    indices = sorted(root.glob("*.safetensors.index.json"))
    if not indices:
        files = sorted(root.glob("*.safetensors"))
        if not files:
            raise ArgumentError("path", "a folder with safetensors files", str(root))
        return files
    names: set[str] = set()
    for index in indices:
        names |= _shards(index)
    return [root / name for name in sorted(names)]


def _shards(index: Path) -> set[str]:
    """Return the names in an index; one that leads out of the folder is refused."""
    content = read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise _wrong(index, "no weight_map")
    for name in listed.values():
        if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\\0"):
            raise _wrong(index, f"a shard named {str(name)[:200]!r}")
    return set(listed.values())


def _tensor(file: Path, name: str, entry: object, base: int, size: int) -> Tensor:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        raise _wrong(file, f"an entry {name[:200]!r} without dtype, shape and offsets") from None
    numbers = [start, end, *shape] if isinstance(shape, list) else [None]
    if not isinstance(dtype, str) or not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
        raise _wrong(file, f"an entry {name[:200]!r} of other types")
    if not start <= end <= size - base:
        raise _wrong(file, f"a tensor {name[:200]!r} outside the file")
    return Tensor(dtype, tuple(shape), base + start, base + end)


def _json(file: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _wrong(file, f"no JSON: {type(error).__name__}") from None


def _opened(file: Path) -> BinaryIO:
    try:
        return open_regular(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ArgumentError("path", "a file that can be read", f"{file}: {reason}") from None


def _chunks(stream: BinaryIO, file: Path, start: int, end: int) -> Iterator[bytes]:
    stream.seek(start)
    while start < end:
        chunk = stream.read(min(_CHUNK, end - start))
        if not chunk:
            raise _wrong(file, "fewer bytes than when it was opened")
        start += len(chunk)
        yield chunk


def _wrong(file: Path, got: str) -> ArgumentError:
    return ArgumentError("path", "a sound file", f"{file}: {got}")
