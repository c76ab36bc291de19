# SPDX-License-Identifier: Apache-2.0
"""Faults in images: parts of a cache's image exchanged for broken ones, by whoever writes where it should not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hybridkv.adapters.transformers.image import CacheImage
from hybridkv.adapters.transformers.image_part import StatePart
from hybridkv.adapters.transformers.producer import Producer

from .fault import Context, Fault, State
from .live import Live


def producer_of(live: Live) -> Producer:
    """Return what a live model's images say of their origin; all weights are read."""
    return Producer.of(live.model.config, live.layout, model=live.model)


def image_at(live: Live, tokens: int, producer: Producer) -> CacheImage:
    """Take the image of a live model's prompt at a position."""
    return CacheImage.take(
        live.filled(tokens), live.model.config, producer=producer, tokens=live.prompt[:tokens].numpy()
    )


def state_of(image: CacheImage, live: Live) -> State:
    """Return the rows of the first sequence of an image."""
    places = {(place.group, place.part, place.name): place for place in live.layout.places}
    return {places[part.group, part.part, part.name]: part.data[0] for part in image.parts}


def torn(
    image: CacheImage, live: Live, fault: Fault, broken: State, context: Context, *, sealed: bool = False
) -> CacheImage:
    """Return an image whose parts hold a broken state under the old digest.

    Parameters
    ----------
    image : CacheImage
        Of one sequence.
    live : Live
    fault : Fault
        Where its counts lie, so do the positions of parts.
    broken : State
        Places that are gone lose their part.
    context : Context
    sealed : bool, optional
        Give every part the checksum of what it holds now, as parts have that come from an image of their own. Default:
        the old checksum, as after a write that nobody knew of.
    """
    places = {(place.group, place.part, place.name): place for place in live.layout.places}
    parts = []
    for part in image.parts:
        place = places[part.group, part.part, part.name]
        if place not in broken:
            continue
        made = replace(
            part,
            data=broken[place].detach().clone().contiguous().unsqueeze(0),
            position=part.position + _moved(fault, place, context),
        )
        if sealed:
            where = {name: getattr(made, name) for name in ("group", "part", "layer", "path", "position", "format")}
            made = StatePart.sealed(made.data, **where)
        parts.append(made)
    return replace(image, parts=tuple(parts))


def _moved(fault: Fault, place: Any, context: Context) -> int:
    """Return by how many tokens the counts of a fault move a place."""
    if fault.counts is None or fault.moved_tokens:
        return fault.moved_tokens
    if place.group == "swa":
        return fault.counts(place.layer, "cumulative_length", context.tokens, context) - context.tokens
    if place.group not in ("csa", "hca", "indexer"):
        return 0
    ratio = int(context.layout.groups[place.group].tokens_per_row)
    entries = context.tokens // ratio
    path = f"entry_count.{'indexer' if place.group == 'indexer' else 'compressor'}"
    return ratio * (fault.counts(place.layer, path, entries, context) - entries)


def flipped(data: bytes, at: int) -> bytes:
    """Return bytes of which one bit is another."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def continued(live: Live, image: CacheImage, producer: Producer, tokens: int) -> torch.Tensor:
    """Return the logits that follow the restored image."""
    past = image.restore(live.model.config, producer=producer, tokens=live.prompt[:tokens].numpy())
    return live.continued(past, tokens)
