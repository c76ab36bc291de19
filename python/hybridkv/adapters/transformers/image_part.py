# SPDX-License-Identifier: Apache-2.0
"""One tensor of a state, with all that is needed to tell whether it is the one that is wanted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from hybridkv.adapters.transformers.producer import dtype_name
from hybridkv.formats import KvFormat, framed_digest

SCHEMA = 1
"""Version of the image and of what its checksums cover."""

DTYPES = {
    "float64": (torch.float64, "F64"),
    "float32": (torch.float32, "F32"),
    "bfloat16": (torch.bfloat16, "BF16"),
    "float16": (torch.float16, "F16"),
}
"""Element types of a state: torch's, and how safetensors calls it."""


@dataclass(frozen=True, eq=False)
class StatePart:
    """One tensor of one cache layer at one position.

    Attributes
    ----------
    group, part : str
        The cache group, and the part of its page ("" where a page has no parts).
    layer : int
        Index of the cache layer.
    path : str
        Attribute of the layer.
    position : int
        Tokens that the sequence had when it was taken.
    format : KvFormat
        Of the group.
    checksum : bytes
        16 bytes over all of the above, dtype, shape and content: rows that were reordered, shifted or given another
        name do not fit it.
    data : torch.Tensor
        [[batch, rows, ...]], contiguous, in host memory, with a storage of its own.
    """

    group: str
    part: str
    layer: int
    path: str
    position: int
    format: KvFormat = field(repr=False)
    checksum: bytes
    data: torch.Tensor = field(repr=False)

    @classmethod
    def sealed(cls, data: torch.Tensor, **where: Any) -> StatePart:
        """Make a part with the checksum of its content; ``where`` names group, part, layer, path, position, format."""
        return cls(data=data, checksum=checksum_of(data, **where), **where)

    @property
    def name(self) -> str:
        """The place in one word: ``layer.path``."""
        return f"{self.layer}.{self.path}"

    @property
    def rows(self) -> int:
        """Rows of each sequence."""
        return int(self.data.shape[1])

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return dtype_name(self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of ``data``: batch, rows, and what a row is."""
        return tuple(self.data.shape)

    def is_whole(self) -> bool:
        """Whether the content is what was taken: all of it is read."""
        where = {name: getattr(self, name) for name in ("group", "part", "layer", "path", "position", "format")}
        return checksum_of(self.data, **where) == self.checksum


def checksum_of(
    data: torch.Tensor, *, group: str, part: str, layer: int, path: str, position: int, format: KvFormat
) -> bytes:
    """Return 16 bytes that stand for content and meaning of a part."""
    meaning = framed_digest(
        "hybridkv.image.part",
        [
            ("schema", SCHEMA),
            ("group", group),
            ("part", part),
            ("layer", layer),
            ("path", path),
            ("position", position),
            ("format", format.fingerprint),
            ("dtype", str(data.dtype)),
            ("shape", tuple(data.shape)),
        ],
    )
    digest = hashlib.sha256(meaning)
    digest.update(raw(data))
    return digest.digest()[:16]


def row_sizes(held: Iterable[tuple[str, int, torch.Tensor]]) -> dict[str, tuple[str, int]]:
    """Return dtypes and bytes of one row by group, of tensors with their group and layer.

    Several dtypes are joined by ``+``; where layers differ in bytes, those of the largest count.
    """
    widths: dict[str, dict[int, int]] = {}
    dtypes: dict[str, set[str]] = {}
    for group, layer, rows in held:
        by_layer = widths.setdefault(group, {})
        by_layer[layer] = by_layer.get(layer, 0) + int(rows[0, 0].nbytes)
        dtypes.setdefault(group, set()).add(dtype_name(rows))
    return {group: ("+".join(sorted(dtypes[group])), max(widths[group].values())) for group in widths}


def raw(data: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor in host memory, not a copy."""
    content: memoryview = data.reshape(-1).view(torch.uint8).numpy().data
    return content
