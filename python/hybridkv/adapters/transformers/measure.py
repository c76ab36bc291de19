# SPDX-License-Identifier: Apache-2.0
"""What a model's cache really holds: a few tokens are run, the state is taken apart and put together again.

The configuration says which groups there are; dtypes and widths of rows come from the tensors themselves. A model
whose continuation differs in one bit after the state went through pages is refused here, at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import DynamicCache

from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.adapters.transformers.changes import adapter_state
from hybridkv.adapters.transformers.families import family_of, require_prefix_rope
from hybridkv.adapters.transformers.layout import CacheLayout, Place, is_state, text_config
from hybridkv.adapters.transformers.pages import RowShape
from hybridkv.adapters.transformers.producer import Producer, group_format
from hybridkv.adapters.transformers.rebuild import State, rebuilt
from hybridkv.adapters.transformers.runner import Runner
from hybridkv.adapters.transformers.trial import trial_ids, try_out
from hybridkv.adapters.transformers.weights import frequencies_digest, trained_digest, whole_digest
from hybridkv.coverage import Window
from hybridkv.errors import UnsupportedModel
from hybridkv.group import CacheGroup
from hybridkv.identity import Identity
from hybridkv.spec import CacheSpec


@dataclass(frozen=True)
class Measured:
    """A model's cache as it is.

    Attributes
    ----------
    layout : CacheLayout
        Its groups are those of ``spec``.
    shapes : dict of Place to RowShape
    spec : CacheSpec
        Groups of the model's own dtype and widths, formats that name the producer, identity of the weights.
    """

    layout: CacheLayout
    shapes: dict[Place, RowShape]
    spec: CacheSpec


def measured(
    model: Any,
    runner: Runner,
    unit_tokens: int,
    *,
    replay: bool,
    identity: Identity | None,
    weights: str | None = None,
) -> Measured:
    """Run a few tokens through a model and describe what its cache keeps.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    runner : Runner
        Of that model; it learns how the model continues.
    unit_tokens : int
    replay : bool
        Mark windows and tails as rebuildable where the architecture allows it.
    identity : Identity, optional
        Default: of the weights, of the adapters in use, of the rotary embedding, of quantisation, and of everything
        else that the producer names, each in its own field.
    weights : str, optional
        What stands for the weights. Default: a digest of their content.

    Returns
    -------
    Measured

    Raises
    ------
    UnsupportedModel
        The architecture is not known, its layers hold something that no group claims, or it failed the trial
        (:mod:`.trial`).
    """
    family_of(text_config(model.config).model_type)
    require_prefix_rope(text_config(model.config).to_dict())
    past = DynamicCache(config=model.config)
    ids = trial_ids(model.config, runner.device)
    runner.run(ids, past, 0)
    layout = CacheLayout(model.config, past, unit_tokens=unit_tokens)
    shapes = {place: _shape(past, place) for place in layout.places}
    try_out(runner, model.config, lambda live, tokens: rebuilt(layout, [_copied(layout, live, tokens)], tokens))
    frequencies = frequencies_digest(model)
    trained = trained_digest(model) if weights is None else weights
    whole = whole_digest(trained, frequencies) if weights is None else weights
    producer = Producer.of(model.config, layout, model=model, weights=whole)
    groups = [_described(group, layout, shapes, producer) for group in layout.groups.values()]
    if replay and layout.family.replay:
        groups = _rebuildable(groups)
    own = identity or Identity(
        model=layout.config.model_type,
        weights=trained,
        adapter=adapter_state(model),
        extra=producer.rest,
        rope={**producer.rope, "frequencies": frequencies},
        quantisation=producer.quantisation or None,
    )
    spec = CacheSpec(unit_tokens, groups, identity=own)
    layout.groups = {group.name: group for group in spec.groups}
    return Measured(layout, shapes, spec)


def _copied(layout: CacheLayout, past: Any, tokens: int) -> State:
    return {place: rows.clone() for place, rows in layout.state(past, tokens).items()}


def _shape(past: Any, place: Place) -> RowShape:
    tensor = cache_layers.get(past.layers[place.layer], place.path)
    if tensor is None:
        raise UnsupportedModel(f"past.layers[{place.layer}].{place.path}", "a tensor", None)
    return RowShape(tensor.dtype, tuple(place.of_layer(tensor, 0).shape[1:]), tensor.device)


def _described(
    group: CacheGroup, layout: CacheLayout, shapes: Mapping[Place, RowShape], producer: Producer
) -> CacheGroup:
    """Return a group of the configuration with the measured bytes and the producer's format."""
    rows = group.rows_per_page or 1
    widths: dict[str, int] = {}
    dtypes: list[str] = []
    for part in layout.family.groups[group.name]:
        own = [place for place in layout.places if (place.group, place.part) == (group.name, part)]
        by_layer = {sum(shapes[p].nbytes for p in own if p.layer == layer) for layer in group.layers}
        if len(by_layer) != 1:
            raise UnsupportedModel(f"groups[{group.name!r}]", "layers with rows of one width", sorted(by_layer))
        widths[part] = by_layer.pop()
        dtypes += [str(shapes[place].dtype).removeprefix("torch.") for place in own]
    row_bytes = sum(widths.values())
    parts = None if set(widths) == {""} else {part: n * rows * group.layer_count for part, n in widths.items()}
    made = group_format(group, producer, "+".join(sorted(set(dtypes))), row_bytes)
    return replace(
        group, page_bytes=rows * row_bytes, row_bytes=row_bytes, rows_per_page=rows, parts=parts, format=made
    )


def _rebuildable(groups: list[CacheGroup]) -> list[CacheGroup]:
    """Mark windows as rebuildable by replay, and tails beside them: they are made from the same layers' output."""
    if not any(isinstance(g.coverage, Window) for g in groups):
        return groups
    return [replace(g, rebuildable=True) if is_state(g) else g for g in groups]
