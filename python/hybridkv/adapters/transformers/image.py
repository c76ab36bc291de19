# SPDX-License-Identifier: Apache-2.0
"""The state of a model's cache outside the model: taken whole, restored whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from hybridkv.adapters.transformers import image_bytes
from hybridkv.adapters.transformers.image_part import DTYPES, SCHEMA, StatePart, row_sizes
from hybridkv.adapters.transformers.layout import (
    CacheLayout,
    Place,
    check_position,
    is_state,
    position_of,
    refusal,
    text_config,
)
from hybridkv.adapters.transformers.producer import Producer, dtype_name, group_format, row_text
from hybridkv.adapters.transformers.rebuild import batch_size, rebuilt
from hybridkv.alignment.checks import check_addresses
from hybridkv.alignment.needs import REFUSED, KernelNeeds, kernel_needs
from hybridkv.errors import ArgumentError, RestoreRefused, UnsupportedModel
from hybridkv.formats import COSMETIC, FieldDiff, framed_digest


@dataclass(frozen=True, eq=False)
class CacheImage:
    """All states of one cache at one position.

    Made by :meth:`take` or :meth:`from_bytes`. Restoring is refused with :class:`~hybridkv.RestoreRefused`, whose
    ``code`` says why:

    ===========  =============================================================================================
    code         the image
    ===========  =============================================================================================
    malformed    bytes that :meth:`to_bytes` never wrote
    truncated    fewer bytes than there were
    format       of another schema or another producer (version, classes, attributes, configuration, dtype,
                 weights, build); ``differences`` lists every fact
    stale        of another position than the tokens that it should stand for, or a state in it is
    lagging      with history that ends before its position
    foreign      of other tokens, or of tokens that it does not name
    missing      without a part that its position needs
    unknown      with a part that nothing asks for, or with one twice
    partial      with a part of too few or too many rows or sequences
    content      with bytes that are not those that were taken, or parts that were not taken together
    misaligned   sound, and a tensor of the fresh cache begins where a kernel of `kernels` cannot take it
    ===========  =============================================================================================

    Attributes
    ----------
    position : int
        Tokens that every sequence has seen.
    batch : int
        Sequences.
    prefixes : tuple of bytes
        16 bytes that stand for the tokens of each sequence; empty where they were not given.
    producer : Producer
        Who wrote it.
    parts : tuple of StatePart
        One for each tensor that holds rows at that position. Counts are functions of the position and aliases are
        functions of the architecture: neither is kept.
    digest : bytes
        16 bytes over all facts and all checksums.

    Notes
    -----
    A checksum tells accidents, not forgers: whoever can write an image can write its checksums too.
    """

    position: int
    batch: int
    prefixes: tuple[bytes, ...]
    producer: Producer = field(repr=False)
    parts: tuple[StatePart, ...] = field(repr=False)
    digest: bytes

    @classmethod
    def take(
        cls,
        past: Any,
        config: Any,
        *,
        model: Any = None,
        producer: Producer | None = None,
        row: int | None = None,
        tokens: Any = None,
    ) -> CacheImage:
        """Copy what a cache holds.

        Parameters
        ----------
        past : transformers.Cache
            Filled by the model, from position 0 on and without padding: a state of a padded row is a state of
            other tokens, and nothing in it shows that.
        config : transformers.PretrainedConfig
            Of the model.
        model : torch.nn.Module, optional
            Whose weights and build become part of the image; all weights are read. Without it, and without
            ``producer``, images of two checkpoints of one configuration look alike.
        producer : Producer, optional
            Gathered before, instead of ``model``.
        row : int, optional
            One sequence of the batch. Default: all.
        tokens : array_like, optional
            Token ids of what is kept, [[position]] or [[batch, position]]; they bind the image to its prefix.

        Returns
        -------
        CacheImage
            In host memory; it shares nothing with the cache.

        Raises
        ------
        RestoreRefused
            The cache is empty, holds something else than its position asks for, or has another length than
            ``tokens``.
        UnsupportedModel
            An architecture, a cache layer, a tensor or a dtype that is not known.
        ArgumentError
            Another bad argument; a ``producer`` of another configuration or version.
        """
        layout = _layout(config, past)
        position = position_of(past)
        if position < 1:
            raise refusal("missing", "past", "a cache that has seen tokens", position)
        rows = _rows(row, batch_size(layout, past))
        prefixes = () if tokens is None else tuple(_prefix(ids) for ids in _token_ids(tokens, len(rows), position))
        here = _here(config, layout, model, producer).with_rows(layout, past)
        states = [layout.state(past, position, number) for number in rows]
        data = {place: torch.stack([state[place] for state in states]).cpu() for place in states[0]}
        parts = tuple(_sealed_parts(layout, data, here, position))
        return cls.sealed(position=position, batch=len(rows), prefixes=prefixes, producer=here, parts=parts)

    @classmethod
    def sealed(cls, **facts: Any) -> CacheImage:
        """Make an image with the digest of its facts: every field but ``digest``, by name."""
        return cls(**facts, digest=_digest(**facts))

    def restore(
        self,
        config: Any,
        *,
        model: Any = None,
        producer: Producer | None = None,
        tokens: Any = None,
        device: Any = None,
        kernels: str | KernelNeeds | Iterable[str | KernelNeeds] = (),
    ) -> Any:
        """Make a fresh cache with these states.

        Parameters
        ----------
        config : transformers.PretrainedConfig
            Of the model that will go on.
        model : torch.nn.Module, optional
            That model; all its weights are read. Needed, or ``producer``, exactly if :meth:`take` had one: what only
            one side knows is a difference.
        producer : Producer, optional
            Gathered before, instead of ``model``.
        tokens : array_like, optional
            Token ids that the image must stand for, [[position]] or [[batch, position]].
        device : torch.device or str, optional
            Default: where the model is, or the host.
        kernels : str, KernelNeeds, or a sequence of these, optional
            What will read the fresh tensors (``hk.alignment.KERNELS``): refused where one begins at an address that a
            kernel cannot take. They are no pages, so that nothing else of the needs applies.

        Returns
        -------
        transformers.DynamicCache
            At ``position``; it shares nothing with the image.

        Raises
        ------
        RestoreRefused
            See the class.
        UnsupportedModel, ArgumentError
            As in :meth:`take`.
        """
        needs = kernel_needs("kernels", kernels)
        layout = _layout(config, DynamicCache(config=text_config(config)))
        self._check_producer(_here(config, layout, model, producer))
        self._check_tokens(tokens)
        by_place = self._check_parts(layout)
        self._check_digest()
        where = _device(device) if device is not None else getattr(model, "device", torch.device("cpu"))
        data = {place: part.data.to(where) for place, part in by_place.items()}
        past = rebuilt(layout, [{place: t[i] for place, t in data.items()} for i in range(self.batch)], self.position)
        check_position(layout, past, self.position)
        for row in range(self.batch if needs else 0):
            for place, tensor in layout.state(past, self.position, row).items():
                for wrong in check_addresses(needs, [tensor.data_ptr()]):
                    if wrong.effect == REFUSED:
                        where_not = f"{place.group}.{place.part or place.rows.path[-1]} of layer {place.layer}"
                        raise refusal("misaligned", where_not, f"{wrong.expected} for {wrong.kernel}", wrong.got)
        return past

    def to_bytes(self) -> bytes:
        """Return the image as a safetensors file with a manifest; the same state gives the same bytes."""
        return image_bytes.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> CacheImage:
        """Read what :meth:`to_bytes` wrote; every byte is checked.

        Parameters
        ----------
        data : bytes-like
            May come from anywhere: nothing in it is run, and nothing is allocated that it does not fill.

        Returns
        -------
        CacheImage
            With tensors of its own.

        Raises
        ------
        RestoreRefused
            Code malformed, truncated, format (another schema) or content.
        ArgumentError
            ``data`` is not bytes.
        """
        image = cls(**image_bytes.decode(data))
        image._check_digest()
        image._check_content()
        return image

    def _check_digest(self) -> None:
        found = _digest(self.position, self.batch, self.prefixes, self.producer, self.parts)
        if found != self.digest:
            raise refusal("content", "digest", f"{found.hex()}, of facts and parts taken together", self.digest.hex())

    def _check_content(self) -> None:
        for part in self.parts:
            if not part.is_whole():
                raise refusal("content", part.name, "the bytes that were taken", "others")

    def _check_producer(self, here: Producer) -> None:
        found = here.differences(self.producer)
        told = [difference for difference in found if difference.severity != COSMETIC]
        if told:
            first = min(told, key=lambda d: d.field != "transformers")
            raise _format_refusal(first.field, first.ours, first.theirs, found)

    def _check_tokens(self, tokens: Any) -> None:
        if tokens is None:
            return
        if not self.prefixes:
            raise refusal("foreign", "tokens", "an image that names its tokens", "one that does not")
        ids = _token_ids(tokens, self.batch, self.position)
        for number, (wanted, got) in enumerate(zip(map(_prefix, ids), self.prefixes, strict=True)):
            if wanted != got:
                raise refusal("foreign", "tokens", f"the tokens of sequence {number}", "others")

    def _check_parts(self, layout: CacheLayout) -> dict[Place, StatePart]:
        """Match parts and places: every part is asked for once, and every place that needs rows has them."""
        places = {(place.group, place.part, place.name): place for place in layout.places}
        found: dict[Place, StatePart] = {}
        for part in self.parts:
            place = places.get((part.group, part.part, part.name))
            if place is None or place in found:
                expected = "a part that a group claims" if place is None else "each part once"
                raise refusal("unknown", part.name, expected, f"{part.group} {part.part}".strip())
            found[place] = part
        for place in layout.places:
            self._check_part(layout, place, found.get(place))
        _check_formats(layout, self)
        self._check_content()
        return found

    def _check_part(self, layout: CacheLayout, place: Place, part: StatePart | None) -> None:
        wanted = layout.rows_at(place.group, self.position)
        if part is None:
            if wanted:
                raise refusal("missing", place.name, f"{wanted} rows of group {place.group}", None)
            return
        if part.position != self.position:
            late = not is_state(layout.groups[place.group]) and part.position < self.position
            raise refusal("lagging" if late else "stale", place.name, self.position, part.position, group=place.group)
        if part.data.ndim < 2 or part.shape[:2] != (self.batch, wanted) or not wanted:
            expected = f"{self.batch} sequences of {wanted} rows at position {self.position}"
            raise refusal("partial", place.name, expected, f"shape {list(part.shape)}")
        row = row_text(part.data)
        if row != self.producer.row(place.name):
            raise _format_refusal(place.name, self.producer.row(place.name), row, ())


def _device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError("device", "a torch.device, or its name", repr(device)) from error


def _format_refusal(field: str, expected: object, got: object, found: Sequence[FieldDiff]) -> RestoreRefused:
    return refusal("format", field, expected, got, differences=list(found))


def _check_formats(layout: CacheLayout, image: CacheImage) -> None:
    """Formats follow from the producer, the group and its rows."""
    for group, size in row_sizes((part.group, part.layer, part.data) for part in image.parts).items():
        ours = group_format(layout.groups[group], image.producer, *size)
        for part in image.parts:
            if part.group == group and part.format.fingerprint != ours.fingerprint:
                found = ours.diff(part.format)
                raise _format_refusal(f"{part.name}.format", ours.namespace, part.format.namespace, found)


def _sealed_parts(
    layout: CacheLayout, data: dict[Place, torch.Tensor], producer: Producer, position: int
) -> list[StatePart]:
    for place, rows in data.items():
        if dtype_name(rows) not in DTYPES:
            raise UnsupportedModel(f"past.{place.name}", f"one of {', '.join(DTYPES)}", str(rows.dtype))
    sizes = row_sizes((place.group, place.layer, rows) for place, rows in data.items())
    formats = {name: group_format(layout.groups[name], producer, *size) for name, size in sizes.items()}
    return [
        StatePart.sealed(
            rows,
            group=place.group,
            part=place.part,
            layer=place.layer,
            path=place.path,
            position=position,
            format=formats[place.group],
        )
        for place, rows in data.items()
    ]


def _digest(
    position: int, batch: int, prefixes: tuple[bytes, ...], producer: Producer, parts: tuple[StatePart, ...]
) -> bytes:
    formats = {group: made.listed() for group, made in {part.group: part.format for part in parts}.items()}
    told = [(p.group, p.part, p.layer, p.path, p.position, p.checksum, p.format.fingerprint) for p in parts]
    return framed_digest(
        "hybridkv.image",
        [
            ("schema", SCHEMA),
            ("position", position),
            ("batch", batch),
            ("prefixes", prefixes),
            ("producer", producer.facts),
            ("formats", formats),
            ("parts", told),
        ],
    )


def _layout(config: Any, past: Any) -> CacheLayout:
    if not hasattr(config, "get_text_config"):
        raise ArgumentError("config", "a transformers configuration", type(config).__name__)
    if not hasattr(past, "layers"):
        raise ArgumentError("past", "a transformers Cache", type(past).__name__)
    return CacheLayout(config, past)


def _here(config: Any, layout: CacheLayout, model: Any, producer: Producer | None) -> Producer:
    """Return the facts of this process: gathered now, or given and checked against what can be seen at no cost."""
    if producer is None:
        return Producer.of(config, layout, model=model)
    if model is not None:
        raise ArgumentError("producer", "a model or a producer, not both", "both")
    if not isinstance(producer, Producer):
        raise ArgumentError("producer", "a Producer", type(producer).__name__)
    for name, value in Producer.of(config, layout).facts.items():
        if producer.facts.get(name) != value:
            raise ArgumentError("producer", f"{name} = {value!r}", producer.facts.get(name))
    return producer


def _rows(row: int | None, batch: int) -> range:
    if row is None:
        return range(batch)
    if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < batch:
        raise ArgumentError("row", f"a sequence of the batch, 0 to {batch - 1}", row)
    return range(row, row + 1)


def _token_ids(tokens: Any, batch: int, position: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return token ids as [[batch, position]], or refuse a length of another position."""
    try:
        ids = np.asarray(tokens.cpu() if isinstance(tokens, torch.Tensor) else tokens)
    except (ValueError, TypeError, RuntimeError):
        raise ArgumentError("tokens", "token ids, integers", type(tokens).__name__) from None
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer) or ids.shape[0] != batch:
        raise ArgumentError("tokens", f"token ids [[{batch}, {position}]], integers", f"{ids.dtype} {ids.shape}")
    if ids.shape[1] != position:
        raise refusal("stale", "tokens", f"{position} tokens", f"{ids.shape[1]} tokens")
    return ids.astype(np.int64)


def _prefix(ids: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    return framed_digest("hybridkv.image.tokens", [("ids", ids.astype("<i8").tobytes())])
