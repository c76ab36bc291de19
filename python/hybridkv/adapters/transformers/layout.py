# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a model's cache belong to which cache group, and how many rows each holds at a position.

Two sources that must agree: the groups of :meth:`CacheSpec.from_config <hybridkv.CacheSpec.from_config>`, which say
what a resume needs, and a real cache, which says what is there. A tensor that no group claims, a layer that lacks
one, or rows of another number than the position asks for are refused: each of them is a continuation that would be
silently wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.adapters.transformers.families import Family, Rows, family_of
from hybridkv.coverage import Checkpoint, Prefix, Window
from hybridkv.errors import RestoreRefused, UnsupportedModel
from hybridkv.group import CacheGroup
from hybridkv.spec import CacheSpec


@dataclass(frozen=True)
class Place:
    """Where one tensor of a group lives.

    Attributes
    ----------
    group, part : str
        The cache group, and the part of its page ("" where a page has no parts).
    layer : int
        Index of the cache layer.
    rows : Rows
        The attribute and its axis of rows.
    """

    group: str
    part: str
    layer: int
    rows: Rows

    @property
    def path(self) -> str:
        """The attribute of the layer."""
        return self.rows.path

    @property
    def name(self) -> str:
        """The place in one word: ``layer.path``."""
        return f"{self.layer}.{self.rows.path}"

    def of_layer(self, tensor: torch.Tensor, row: int) -> torch.Tensor:
        """Return the rows of one sequence out of the layer's tensor.

        Parameters
        ----------
        tensor : torch.Tensor
            The layer's tensor, the batch first.
        row : int
            The sequence.

        Returns
        -------
        torch.Tensor
            [[rows, ...]], a view where that is possible.
        """
        one = tensor[row]
        if self.rows.axis is None:
            return one[..., self.rows.dead_columns :].unsqueeze(0)
        return one.movedim(self.rows.axis - 1, 0)

    def to_layer(self, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the layer's tensor for a batch, the reverse of :meth:`of_layer`; dead columns become zero.

        Parameters
        ----------
        sequences : sequence of torch.Tensor
            [[rows, ...]] each, alike in shape.

        Returns
        -------
        torch.Tensor
            A tensor of its own, contiguous.
        """
        batch = torch.stack(list(sequences))
        if self.rows.axis is None:
            return torch.nn.functional.pad(batch.squeeze(1), (self.rows.dead_columns, 0))
        return batch.movedim(1, self.rows.axis).contiguous()


class CacheLayout:
    """The places of one model's cache, by group.

    Parameters
    ----------
    config : transformers.PretrainedConfig
        Of the model.
    past : transformers.Cache
        A cache that the model has filled, if only by a few tokens.
    unit_tokens : int, optional
        Of the spec; default: the least that the model's compression ratios allow.

    Attributes
    ----------
    config : transformers.PretrainedConfig
        Of the text model.
    family : Family
    groups : dict of str to CacheGroup
        The model's own groups at the model's own dtype; bytes of rows are those of the configuration.
    places : tuple of Place
    classes : tuple of str
        Class of each cache layer.

    Raises
    ------
    UnsupportedModel
        An architecture or a cache layer that is not known, a tensor that no group claims.
    """

    def __init__(self, config: Any, past: Any, *, unit_tokens: int | None = None) -> None:
        self.config = text_config(config)
        self.family: Family = family_of(self.config.model_type)
        self.unit_tokens = least_unit(self.config) if unit_tokens is None else unit_tokens
        self.groups = {group.name: group for group in described(self.config, self.unit_tokens).groups}
        self.classes = tuple(type(layer).__name__ for layer in past.layers)
        self.places = tuple(self._find(past))
        self._refuse_unclaimed(past)

    def rows_at(self, group: str, tokens: int) -> int:
        """Return how many rows of each layer a group holds after ``tokens`` tokens."""
        return 0 if tokens == 0 else self.groups[group].need(tokens).rows

    def state(self, past: Any, tokens: int, row: int = 0) -> dict[Place, torch.Tensor]:
        """Return the rows of one sequence, as views; see :func:`check_position` for what is verified.

        Parameters
        ----------
        past : transformers.Cache
            Filled by this model.
        tokens : int
            Its position.
        row : int, optional
            The sequence.

        Returns
        -------
        dict of Place to torch.Tensor
            [[rows, ...]] each; places without rows are left out.

        Raises
        ------
        RestoreRefused
            What the cache holds is not what it must hold at that position.
        """
        check_position(self, past, tokens)
        found = {}
        for place in self.places:
            if self.rows_at(place.group, tokens):
                found[place] = place.of_layer(cache_layers.get(past.layers[place.layer], place.path), row)
        return found

    def _find(self, past: Any) -> list[Place]:
        found = []
        for name, group in self.groups.items():
            parts = self.family.groups.get(name)
            if parts is None:
                raise UnsupportedModel("groups", f"one of {', '.join(self.family.groups)}", name)
            for part, rows in parts.items():
                for index in group.layers:
                    found += self._in_layer(past, name, part, int(index), rows)
        return found

    def _in_layer(self, past: Any, group: str, part: str, index: int, rows: tuple[Rows, ...]) -> list[Place]:
        if index >= len(past.layers):
            raise UnsupportedModel("past", f"a cache of more than {index} layers", len(past.layers))
        layer = past.layers[index]
        held = cache_layers.tensors(layer)
        found = []
        for wanted in rows:
            paths = cache_layers.matching(held, wanted.path)
            if not paths and not hasattr(layer, wanted.path.partition(".")[0]):
                raise UnsupportedModel(f"past.layers[{index}]", f"a layer with {wanted.path}", type(layer).__name__)
            for path in paths or cache_layers.entries(layer, wanted.path):
                found.append(Place(group, part, index, Rows(path, wanted.axis, wanted.dead_columns)))
        return found

    def _refuse_unclaimed(self, past: Any) -> None:
        claimed = {(place.layer, place.path) for place in self.places}
        copies = {copy.path for copy in self.family.copies}
        for index, layer in enumerate(past.layers):
            for path in cache_layers.tensors(layer):
                if (index, path) not in claimed and path not in copies:
                    raise UnsupportedModel(f"past.layers[{index}].{path}", "a tensor that a group claims", path)


def check_position(layout: CacheLayout, past: Any, tokens: int) -> None:
    """Compare what a cache holds with what it must hold after ``tokens`` tokens, by whole numbers alone.

    Raises
    ------
    RestoreRefused
        Naming the layer: a count of another position (code "lagging"), rows too few or too many ("partial"), a
        tensor that is missing ("missing"), one that repeats another no more ("content"), a layer that records its
        past ("partial").
    """
    if len(past.layers) != len(layout.classes):
        raise refusal("partial", "past.layers", f"{len(layout.classes)} layers", len(past.layers))
    for index, layer in enumerate(past.layers):
        if getattr(layer, "record_past", False):
            raise refusal("partial", f"layers[{index}].record_past", "a layer that keeps no more than its window", True)
        if tokens and not cache_layers.is_started(layer):
            raise refusal("missing", f"layers[{index}].{cache_layers.STARTED}", "a state to go on from", False)
        for path, value in cache_layers.counts(layer).items():
            wanted = cache_layers.expected_count(layer, path, tokens)
            if value != wanted:
                raise refusal("lagging", f"layers[{index}].{path}", wanted, value)
    for place in layout.places:
        _check_rows(layout, past, place, tokens)
    for copy in layout.family.copies:
        for index, layer in enumerate(past.layers):
            first, second = cache_layers.get(layer, copy.path), cache_layers.get(layer, copy.of)
            if first is not second and not _same_bytes(first, second):
                raise refusal("content", f"layers[{index}].{copy.path}", f"the same bytes as {copy.of}", "others")


def _same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Compare as bytes: a number that is none equals itself here."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return bool(torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)))


def _check_rows(layout: CacheLayout, past: Any, place: Place, tokens: int) -> None:
    where = f"layers[{place.layer}].{place.path}"
    wanted = layout.rows_at(place.group, tokens)
    held = cache_layers.get(past.layers[place.layer], place.path)
    if held is None:
        if wanted:
            raise refusal("missing", where, f"{wanted} rows", None)
        return
    if place.rows.axis is not None and held.shape[place.rows.axis] != wanted:
        got = f"{held.shape[place.rows.axis]} rows"
        raise refusal("partial", where, f"{wanted} rows at position {tokens}", got)


def refusal(code: str, field: str, expected: object, got: object, **context: object) -> RestoreRefused:
    """Make the error that a state does not belong where it is wanted; ``code`` as in :class:`~hybridkv.Why`."""
    return RestoreRefused(field, expected, got, code=code, **context)


def text_config(config: Any) -> Any:
    """Return the configuration of the text model."""
    return config.get_text_config(decoder=True)


def position_of(past: Any) -> int:
    """Return how many tokens a cache has seen, as its attention layers say."""
    return int(past.get_seq_length())


def least_unit(config: Any, at_least: int = 1) -> int:
    """Return the least multiple of a model's compression ratios that is no smaller than ``at_least``, in tokens."""
    rates: Mapping[str, int] = getattr(text_config(config), "compress_rates", None) or {}
    step = math.lcm(1, *(int(rate) for rate in rates.values()))
    return -(-at_least // step) * step


def described(config: Any, unit_tokens: int) -> CacheSpec:
    """Return the spec of a model's configuration, rows in its own dtype (float32 where it names none)."""
    dtype = "bfloat16" if str(getattr(config, "dtype", None)).endswith("bfloat16") else "float32"
    return CacheSpec.from_config(config.to_dict(), unit_tokens=unit_tokens, dtype=dtype)


def is_state(group: CacheGroup) -> bool:
    """Whether a group is kept per boundary: a window or a checkpoint, not history."""
    return not isinstance(group.coverage, Prefix)


def window_tokens(group: CacheGroup) -> int:
    """Return the width of a group's window, the querying token included."""
    if not isinstance(group.coverage, Window):
        raise UnsupportedModel(f"groups[{group.name!r}].coverage", "a Window", group.coverage)
    return int(group.coverage.tokens)


def is_checkpoint(group: CacheGroup) -> bool:
    """Whether a group holds the state at one position exactly."""
    return isinstance(group.coverage, Checkpoint)
