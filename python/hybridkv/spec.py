# SPDX-License-Identifier: Apache-2.0
"""Describing a model: cache groups, and the spec that holds them.

A *cache group* is the set of layers that keep the same kind of bytes with the same lifetime. A *spec* is the
unit that one key names, the groups, and the identity that goes into the root of every key. Specs are checked
when they are made; every refusal names the field, what was expected and what came.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hybridkv.coverage import Checkpoint, Chunk, Prefix, positive_int
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats import RankGeometry
from hybridkv.group import MOST_LAYERS, TOKENS_LIMIT, CacheGroup, Need, token_length
from hybridkv.identity import Identity
from hybridkv.kinds import StateKind
from hybridkv.regular_file import read_regular
from hybridkv.replay_reach import with_replays
from hybridkv.texts import path_text

__all__ = ["DTYPES", "GROUPS_PER_WORD", "CacheGroup", "CacheSpec", "Need"]

GROUPS_PER_WORD = 8
"""Groups that a word of a descriptor holds: ``Prefix`` groups in one word, all others in the other."""

MOST_UNIT_TOKENS = 2**24
"""Tokens that one key can name, as in :func:`~hybridkv.block_keys`."""

MOST_CONFIG_BYTES = 1 << 25
"""Of a ``config.json``."""

DTYPES = ("fp8", "bfloat16", "float32")
"""What :meth:`CacheSpec.from_config` computes rows in; "fp8" stands for the published row formats."""


@dataclass(frozen=True)
class CacheSpec:
    """What one key names, and the cache groups of a model.

    Parameters
    ----------
    unit_tokens : int
        Tokens that one key names, 1 to 2**24.
    groups : sequence of CacheGroup
        At most 8 with ``Prefix`` coverage and at most 8 others; names are unique.
    identity : Identity, optional
        Goes into the root of every key.
    ranks : RankGeometry, optional
        How ranks share the model, and which one has these pages: records of one are never read as another's. Keys are
        the same on all ranks. Default: one rank holds all.

    Attributes
    ----------
    groups : tuple of CacheGroup
        In the given order, each with its ``block_tokens`` filled in, and with ``replay_tokens`` where it is
        rebuildable and its coverage alone says too few.

    Raises
    ------
    SpecError
        Naming field, expected and got.

    Examples
    --------
    >>> spec = CacheSpec.homogeneous(layers=32, page_bytes=65536)
    >>> spec.boundary_tokens, spec.boundary_group, spec.bytes_per_token
    (16, 'kv', 131072.0)
    >>> spec.requirements(40)["kv"].blocks
    range(0, 3)
    """

    unit_tokens: int
    groups: Sequence[CacheGroup]
    identity: Identity = field(default_factory=Identity, kw_only=True)
    ranks: RankGeometry = field(default_factory=RankGeometry, kw_only=True)

    def __post_init__(self) -> None:
        unit = _unit(self.unit_tokens)
        object.__setattr__(self, "unit_tokens", unit)
        if not isinstance(self.groups, Sequence) or not len(self.groups):
            raise SpecError("groups", "a sequence of at least one CacheGroup", self.groups)
        for group in self.groups:
            if not isinstance(group, CacheGroup):
                raise SpecError("groups", "CacheGroup objects", group)
        if not isinstance(self.identity, Identity):
            raise SpecError("identity", "an Identity", self.identity)
        if not isinstance(self.ranks, RankGeometry):
            raise SpecError("ranks", "a RankGeometry", self.ranks)
        object.__setattr__(self, "groups", tuple(group.resolved(unit) for group in self.groups))
        self._check_names()
        self._check_words()
        object.__setattr__(self, "groups", with_replays(self.groups))
        if self.boundary_tokens >= TOKENS_LIMIT:
            raise SpecError("groups", "blocks whose common multiple is below 2**62", self.boundary_tokens)

    def same_pages(self, other: object) -> bool:
        """Whether pages of one are pages of the other: units, groups and ranks are the same, whatever the identity.

        What has been captured or laid out for one spec holds for the other: weights may be replaced in place.
        """
        if self is other:
            return True
        if not isinstance(other, CacheSpec):
            return False
        return (self.unit_tokens, self.groups, self.ranks) == (other.unit_tokens, other.groups, other.ranks)

    @classmethod
    def homogeneous(
        cls,
        layers: int | Sequence[int | str],
        page_bytes: int,
        unit_tokens: int = 16,
        *,
        identity: Identity | None = None,
    ) -> CacheSpec:
        """Describe a model whose layers all use full attention: one group named "kv".

        Parameters
        ----------
        layers : int or sequence
            Number of layers, or their numbers or names.
        page_bytes : int
            Bytes of one unit of one layer.
        unit_tokens : int, optional
            Tokens that one key names.
        identity : Identity, optional
            Goes into the root of every key.

        Returns
        -------
        CacheSpec

        Raises
        ------
        SpecError
            An argument that is not legal.
        """
        if isinstance(layers, bool) or not isinstance(layers, Sequence):
            count = positive_int("layers", layers)
            if count > MOST_LAYERS:
                raise SpecError("layers", f"at most {MOST_LAYERS} layers", count)
            layers = range(count)
        if not len(layers):
            raise SpecError("layers", "at least one layer", layers)
        group = CacheGroup("kv", StateKind.COMPRESSED, Prefix(), page_bytes=page_bytes, layers=layers)
        return cls(unit_tokens, (group,), identity=Identity() if identity is None else identity)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object] | str | os.PathLike[str],
        *,
        unit_tokens: int = 256,
        dtype: str = "fp8",
        identity: Identity | None = None,
    ) -> CacheSpec:
        """Describe a model from its Hugging Face configuration.

        Parameters
        ----------
        config : mapping or path
            The configuration, or the path of a ``config.json`` or of the folder that holds it.
        unit_tokens : int, optional
            Tokens that one key names, and the block of every group.
        dtype : {"fp8", "bfloat16", "float32"}, optional
            Rows to compute. "fp8": the published row formats; a model without them takes its config's own
            dtype.
        identity : Identity, optional
            Goes into the root of every key.

        Returns
        -------
        CacheSpec
            Groups of the library's own layout, pages without padding; layers of a draft head not included.

        Raises
        ------
        UnsupportedModel
            The model is not known, or a field is missing or contradicts another; nothing is guessed from
            shapes.
        SpecError
            The unit does not fit the model's compression ratios.
        ArgumentError
            No such dtype; no readable JSON object at the path.

        Examples
        --------
        >>> config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8,
        ...           "num_key_value_heads": 2, "hidden_size": 512, "torch_dtype": "bfloat16"}
        >>> CacheSpec.from_config(config, unit_tokens=16).bytes_per_token
        1024.0
        """
        from hybridkv import models  # the families build on this module

        unit = _unit(unit_tokens)
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ArgumentError("dtype", f"one of {', '.join(DTYPES)}", dtype)
        groups = models.groups_of(read_config(config), unit, dtype)
        return cls(unit, groups, identity=Identity() if identity is None else identity)

    @property
    def boundary_tokens(self) -> int:
        """Step of usable lengths: least common multiple of the blocks of all groups not ``rebuildable``."""
        blocks = (g.block_tokens or self.unit_tokens for g in self.groups if not g.rebuildable)
        return math.lcm(self.unit_tokens, *blocks)

    @property
    def boundary_group(self) -> str | None:
        """Name of the group that causes :attr:`boundary_tokens`; None where every group is rebuildable.

        The first group whose block is the whole step. Where the step is larger than every block, the group
        that, in spec order, last raised the running common multiple.
        """
        causes = [g for g in self.groups if not g.rebuildable]
        for group in causes:
            if group.block_tokens == self.boundary_tokens:
                return group.name
        step, last = 1, None
        for group in causes:
            raised = math.lcm(step, group.block_tokens or self.unit_tokens)
            step, last = raised, group.name if raised > step else last
        return last

    @property
    def bytes_per_token(self) -> float:
        """Growth per token: bytes of pages of ``Prefix`` groups over all layers, divided by their blocks."""
        prefix = (g for g in self.groups if isinstance(g.coverage, Prefix))
        return float(sum((Fraction(g.total_page_bytes, g.block_tokens or 1) for g in prefix), Fraction(0)))

    @property
    def boundary_bytes(self) -> dict[str, int]:
        """Fixed cost that is kept per resumable aligned boundary, by group, in bytes.

        Whole pages over all layers, of the groups without ``Prefix`` coverage; where the cost changes from
        boundary to boundary, the largest over one period.
        """
        fixed = (g for g in self.groups if not isinstance(g.coverage, Prefix))
        return {g.name: g.total_page_bytes * self._most_blocks(g) for g in fixed}

    def requirements(self, tokens: int) -> dict[str, Need]:
        """Tell what must exist of every group to resume at a length.

        Parameters
        ----------
        tokens : int
            The length, aligned or not, 0 <= tokens < 2**62.

        Returns
        -------
        dict of str to Need
            One entry per group, in spec order; a group of which nothing is needed has no rows and no blocks.

        Raises
        ------
        ArgumentError
            No such length.

        Examples
        --------
        >>> tail = CacheGroup("tail", StateKind.TAIL, Checkpoint(every=4), page_bytes=64, row_bytes=16,
        ...                   rows_per_page=4)
        >>> spec = CacheSpec(16, [tail])
        >>> spec.requirements(32)["tail"]
        Need(rows=0, bytes=0, blocks=range(2, 2))
        >>> spec.requirements(35)["tail"]
        Need(rows=3, bytes=48, blocks=range(2, 3))
        """
        tokens = token_length(tokens)
        return {group.name: group.need(tokens) for group in self.groups}

    def group(self, name: str) -> CacheGroup:
        """Return the group of a name.

        Parameters
        ----------
        name : str
            A name in :attr:`groups`.

        Returns
        -------
        CacheGroup

        Raises
        ------
        ArgumentError
            No group has that name.
        """
        for group in self.groups:
            if isinstance(name, str) and group.name == name:
                return group
        raise ArgumentError("group", f"one of {', '.join(g.name for g in self.groups)}", name)

    def __getitem__(self, name: str) -> CacheGroup:
        return self.group(name)

    def _most_blocks(self, group: CacheGroup) -> int:
        """Largest number of own blocks that a boundary needs, over one period of boundaries."""
        step, block = self.boundary_tokens, group.block_tokens or 1
        parameter = group.coverage.parameter
        if isinstance(group.coverage, Checkpoint):
            return int(parameter == 0 or step % parameter != 0)
        # A boundary t needs the last `rows` tokens before it, of which its last block holds `held`, 1 to block;
        # the more the rows exceed them, the more blocks. Boundaries meet every `held` that gcd(step, block) divides.
        if isinstance(group.coverage, Chunk):
            excess = _most_chunk_excess(step, block, parameter)
        else:
            excess = parameter - 1 - math.gcd(step, block) if parameter > 1 else None
        return 0 if excess is None else 1 - (-max(excess, 0) // block)

    def _check_names(self) -> None:
        by_name: dict[str, CacheGroup] = {}
        for group in self.groups:
            if group.name in by_name:
                raise SpecError("groups", "groups of different names", group.name)
            by_name[group.name] = group
        for group in self.groups:
            if group.in_step_with is None:
                continue
            where, leader = group.field_name("in_step_with"), by_name.get(group.in_step_with)
            if leader is None:
                raise SpecError(where, f"one of {', '.join(by_name)}", group.in_step_with)
            if leader is group or not isinstance(leader.coverage, Prefix):
                raise SpecError(where, "another group with Prefix coverage", group.in_step_with)
            if not isinstance(group.coverage, Prefix):
                raise SpecError(group.field_name("coverage"), "Prefix, to be in step with a group", group.coverage)

    def _check_words(self) -> None:
        prefix = sum(isinstance(g.coverage, Prefix) for g in self.groups)
        for what, count in (
            ("with Prefix coverage", prefix),
            ("of other coverage", len(self.groups) - prefix),
        ):
            if count > GROUPS_PER_WORD:
                raise SpecError("groups", f"at most {GROUPS_PER_WORD} groups {what}", count)


def _most_chunk_excess(step: int, block: int, chunk: int) -> int | None:
    """Largest t mod chunk - held over the boundaries t inside a chunk; None where all of them start one.

    held is how much of t's last block lies before t, 1 to block. With ``t mod chunk = chunk - i * x`` and
    ``held = k * y`` for i, k >= 1, where x = gcd(step, chunk) and y = gcd(step, block), a t exists exactly where
    ``i * x + k * y`` is a multiple of z = gcd(block, chunk). Divided by their common divisor, x, y and z are
    coprime in pairs, so that this is a lattice of determinant z, and i * x + k * y is least at one of the
    corners of the hull of its points inside the quadrant.
    """
    x, y, z = math.gcd(step, chunk), math.gcd(step, block), math.gcd(block, chunk)
    if x == chunk:
        return None
    common = math.gcd(x, y, z)
    z_rest = z // common
    if z_rest == 1:
        return chunk - x - y
    ratio = -(x // common) * pow(y // common, -1, z_rest) % z_rest
    return chunk - min(i * x + k * y for i, k in _corners(ratio, z_rest))


def _corners(ratio: int, modulus: int) -> Iterator[tuple[int, int]]:
    """Corners of the hull of all (i, k), i >= 1 and k >= 1, with k = ratio * i modulo ``modulus``.

    From (0, modulus) and (1, ratio) on, each point on the hull follows from the two before it
    (Hirzebruch-Jung continued fraction); those that lie on one line are passed over, so that there are
    about as many steps as the modulus has digits.
    """
    i_before, k_before, i, k = 0, modulus, 1, ratio
    while k > 0:
        yield i, k
        factor = -(-k_before // k)
        i_before, k_before, i, k = i, k, factor * i - i_before, factor * k - k_before
        along, down = i - i_before, k_before - k
        steps = k // down - 1  # for so long the factor is 2, and all points lie on one line
        if steps > 0:
            i_before, k_before = i_before + steps * along, k_before - steps * down
            i, k = i + steps * along, k - steps * down
            yield i_before, k_before


def _unit(unit_tokens: object) -> int:
    unit = positive_int("unit_tokens", unit_tokens)
    if unit > MOST_UNIT_TOKENS:
        raise SpecError("unit_tokens", "1 <= unit_tokens <= 2**24", unit)
    return unit


def read_config(config: Mapping[str, object] | str | os.PathLike[str]) -> Mapping[str, object]:
    """Return a configuration: as it is, or of a ``config.json`` or the folder that holds it.

    Raises
    ------
    ArgumentError
        Neither a mapping nor a readable JSON object.
    """
    if isinstance(config, Mapping):
        return config
    if not isinstance(config, (str, os.PathLike)):
        raise ArgumentError("config", "a mapping, or the path of a config.json", config)
    given = path_text("config", config)
    try:
        path = os.path.join(given, "config.json") if os.path.isdir(given) else given
        read = json.loads(read_regular(path, MOST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError, TypeError) as why:
        raise ArgumentError("config", "a readable JSON file", str(config), why=str(why)) from why
    if not isinstance(read, dict):
        raise ArgumentError("config", "a JSON object", type(read).__name__)
    return read
