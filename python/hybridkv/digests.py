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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hybridkv.checkpoint_files import (
    PathLike,
    Tensor,
    chunks,
    opened,
    read_json,
    safetensors_header,
    tokenizer_files,
    weights_files,
    wrong,
)
from hybridkv.errors import ArgumentError
from hybridkv.texts import encodable, name_of, path_of

__all__ = [
    "PathLike",
    "Tensor",
    "adapter_digest",
    "media_digest",
    "quantisation_settings",
    "read_json",
    "rope_settings",
    "safetensors_header",
    "scales_digest",
    "tenant_salt",
    "tokenizer_digest",
    "weights_digest",
]

_ROPE = ("rope", "rotary", "max_position_embeddings", "partial_rotary_factor", "position_embedding")
_QUANTISATION = ("quantization_config", "compression_config", "quant_method", "kv_cache_quant", "kv_cache_scheme")
_SALT_BYTES = 32


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
        No such file, no safetensors file, a tensor that is in two files, a shard that is missing, an index that names
        other tensors than its shards have.

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
    where: dict[str, tuple[Path, Tensor]] = {}
    for file, named in weights_files(path):
        header = safetensors_header(file)
        if named is not None and named != header.keys():
            apart = min(named ^ header.keys())
            raise wrong(file, f"a tensor {apart[:200]!r} of which only one of this shard and its index knows")
        for name, tensor in header.items():
            if name in where:
                raise ArgumentError("path", "tensors of one file each", f"{name[:200]!r} in two files")
            where[name] = (file, tensor)
    digest = hashlib.sha256(b"hybridkv.weights 1\0")
    for name in sorted(where):
        file, tensor = where[name]
        for part in (name, tensor.dtype, repr(tensor.shape)):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        digest.update((tensor.end - tensor.start).to_bytes(8, "big"))
        with opened(file) as stream:
            for chunk in chunks(stream, file, tensor.start, tensor.end):
                digest.update(chunk)
    return digest.digest()


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
    root = path_of("folder", folder)
    config = read_json(root / "adapter_config.json")
    if not isinstance(config, dict):
        raise wrong(root / "adapter_config.json", "no mapping")
    for name in ("base_model_name_or_path", "revision", "inference_mode", "auto_mapping"):
        config.pop(name, None)
    settings = json.dumps(config, sort_keys=True).encode()
    return hashlib.sha256(b"hybridkv.adapter 1\0" + weights_digest(root) + settings).digest()


def tokenizer_digest(path: PathLike) -> bytes:
    """Return the digest of a tokenizer, byte for byte.

    Parameters
    ----------
    path : path-like
        ``tokenizer.json``, or a folder, of which every file of a tokenizer counts, by its name: what transformers'
        tokenizers name as theirs, every ``*.model``, ``*.spm`` and ``*.tiktoken``, and code (``tokenization_*.py``).

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    ArgumentError
        No such file, no regular one, or a folder without a vocabulary: settings alone are no tokenizer. Where a
        tokenizer has none, as those over bytes, give the file of its settings.
    """
    root = path_of("path", path)
    files = tokenizer_files(root) if root.is_dir() else [root]
    digest = hashlib.sha256(b"hybridkv.tokenizer 2\0")
    for file in files:
        name = file.name.encode() if root.is_dir() else b"tokenizer.json"
        with opened(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            digest.update(len(name).to_bytes(8, "big") + name + size.to_bytes(8, "big"))
            for chunk in chunks(stream, file, 0, size):
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
    for name in scales:
        encodable("scales", name, ArgumentError)
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
            encoded = part.encode()
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
    return _settings(config, is_rope)


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
    return _settings(config, is_quantisation)


def is_rope(name: str) -> bool:
    """Whether the name of a setting speaks of rotary embeddings or of their reach."""
    return any(part in name for part in _ROPE)


def is_quantisation(name: str) -> bool:
    """Whether a setting says how weights and activations are quantised."""
    return name in ("dtype", "torch_dtype") or name.startswith(_QUANTISATION)


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
        A secret that is too short, a tenant without a name that UTF-8 can encode.
    """
    if not isinstance(secret, bytes) or len(secret) < _SALT_BYTES:
        raise ArgumentError("secret", f"at least {_SALT_BYTES} bytes", "fewer" if isinstance(secret, bytes) else "none")
    return hmac.new(secret, b"hybridkv.salt 1\0" + name_of("tenant", tenant).encode(), hashlib.sha256).digest()


def _settings(config: Mapping[str, Any] | PathLike, counts: Any) -> dict[str, Any]:
    whole = config if isinstance(config, Mapping) else read_json(config)
    if not isinstance(whole, Mapping):
        raise ArgumentError("config", "a mapping", type(whole).__name__)
    found = {name: whole[name] for name in whole if isinstance(name, str) and counts(name)}
    inner = whole.get("text_config")
    if isinstance(inner, Mapping):
        found |= {f"text_config.{n}": inner[n] for n in inner if isinstance(n, str) and counts(n)}
    return found
