# SPDX-License-Identifier: Apache-2.0
"""A cache group: the layers that keep the same kind of bytes with the same lifetime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hybridkv import _core
from hybridkv.alignment.checks import check_named
from hybridkv.alignment.declared_formats import check_format, unread
from hybridkv.alignment.needs import KernelNeeds, kernel_needs
from hybridkv.coverage import (
    SIZE_LIMIT,
    Checkpoint,
    Chunk,
    Coverage,
    Prefix,
    Window,
    positive_int,
    truth,
    whole_number,
)
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats import KvFormat, framed_digest
from hybridkv.frozen_mapping import FrozenMapping
from hybridkv.kinds import StateKind
from hybridkv.texts import encodable, name_of

TOKENS_LIMIT = 2**62
"""Lengths are below it."""

MOST_LAYERS = 10_000
"""Layers of one group at most, so that a page over all layers has less than 2**62 bytes."""

_TOTAL_LIMIT = 2**62


class Need(NamedTuple):
    """What must exist of one group to resume at a length.

    Attributes
    ----------
    rows : int
        Rows of one layer.
    bytes : int
        Bytes of those rows over all layers; whole pages where the group declares no rows.
    blocks : range
        The group's own blocks, counted from the start of the prefix, the partial one at a tip included.
        Empty where nothing is needed.
    """

    rows: int
    bytes: int
    blocks: range


@dataclass(frozen=True)
class CacheGroup:
    """The layers that keep the same kind of bytes with the same lifetime.

    Parameters
    ----------
    name : str
        Unique within a spec.
    kind : StateKind
        What the group keeps; not DISK, which is a place.
    coverage : Prefix, Window, Chunk or Checkpoint
        What a resume needs of it.
    page_bytes : int
        Bytes of one block of *one* layer; of the largest layer where ``parts`` says that layers differ.
    block_tokens : int, optional
        Tokens of the group's own block, a multiple of the unit. Default: the unit, filled in by the spec.
    row_bytes : int, optional
        Bytes of one row of one layer. Rows lie one after another from the first byte of the layer's page, unless
        ``parts`` or the format's ``scale_placement`` says that they do not: a page that holds keys and then values has
        two parts. Default: rows are not told apart, pages are counted whole.
    rows_per_page : int, optional
        Rows that a page holds. Default: those of the whole block; for ``Checkpoint`` one row, the state. A
        window page may hold fewer, the trailing rows that a boundary needs. ``Checkpoint(every=n)`` with n
        rows a page keeps the t mod n rows that are not yet compressed; ``Checkpoint()`` whose format declares
        ``overlap`` keeps the rows of the last closed window, none before the first has closed.
    tokens_per_row : int, optional
        Compression ratio: tokens that one row stands for.
    alignment : int, optional
        What the address of a page must be a multiple of; a power of two.
    page_stride : int, optional
        Bytes from page to page that the kernel wants, a multiple of ``alignment``. The spec checks it against
        one layer's ``page_bytes`` alone, since it cannot know whether a pool will be one array for each layer
        or one for all of them; what a bound array really has is told by match, check ALIGNED. Default: whatever
        the bound pool has.
    format : KvFormat, optional
        What the bytes mean to a kernel. Default: a format known only by the declared layout.
    layers : sequence of int or str, optional
        The layers, each once, at most 10,000; numbers are 0 or more. () counts as one layer.
    kernels : sequence of str or KernelNeeds, optional
        The kernels that read the pages, by their names in ``hk.alignment.KERNELS`` or as needs of one's own. What the
        group declares is checked against them by the spec, its pool when it is bound. Default: none; the pool is
        checked against ``alignment``, ``page_stride``, ``row_bytes`` and the format's ``footer_offset`` alone.
    parts : mapping of str to int, optional
        Where layers or members differ: bytes of each part of one page, *over all layers*. A page is then
        the parts one after another, ``sum(parts.values())`` bytes; that sum lies between ``page_bytes`` and
        ``page_bytes`` times the number of layers.
    in_step_with : str, optional
        Name of the ``Prefix`` group that this one indexes. Checked: that it is another group of the spec, and
        that both have ``Prefix`` coverage. Blocks and rows may differ: a match compares tokens, and
        says "lagging" where this group does not reach as far as the one it indexes.
    rebuildable : bool, optional
        The engine can rebuild it by replay: it never coarsens the step of usable lengths.
    replay_tokens : int, optional
        Of a rebuildable group: tokens before t that must be computed again. Default: what the coverage implies,
        layers * (tokens - 1) for ``Window``, the open chunk or window for ``Chunk`` and ``Checkpoint(every)``;
        more, filled in by the spec, where windows or chunks of other groups lie below, or may lie as far as ``layers``
        tell; rows that ``overlap`` keeps likewise. Any other ``Checkpoint()`` implies the whole prefix, which is no
        reuse. Too few are refused by the spec.

    Raises
    ------
    SpecError
        A field that is wrong by itself. Numbers are ints of at least 1 and below 2**48, names are such that
        UTF-8 can encode them. A field of ``format`` that contradicts the group's own: bytes of a row, rows of a page,
        distance of pages, rows that the page does not hold. What depends on the unit, on kernels or on other groups
        is checked by :class:`CacheSpec`.

    Examples
    --------
    >>> swa = CacheGroup("swa", StateKind.WINDOW, Window(128), page_bytes=128 * 584, row_bytes=584,
    ...                  rows_per_page=128, layers=range(43))
    >>> swa.total_page_bytes
    3214336
    """

    name: str
    kind: StateKind
    coverage: Coverage
    page_bytes: int = field(kw_only=True)
    block_tokens: int | None = field(default=None, kw_only=True)
    row_bytes: int | None = field(default=None, kw_only=True)
    rows_per_page: int | None = field(default=None, kw_only=True)
    tokens_per_row: int = field(default=1, kw_only=True)
    alignment: int = field(default=1, kw_only=True)
    page_stride: int | None = field(default=None, kw_only=True)
    format: KvFormat | None = field(default=None, kw_only=True)
    kernels: Sequence[str | KernelNeeds] = field(default=(), kw_only=True)
    layers: Sequence[int | str] = field(default=(), kw_only=True)
    parts: Mapping[str, int] | None = field(default=None, kw_only=True, hash=False)
    in_step_with: str | None = field(default=None, kw_only=True)
    rebuildable: bool = field(default=False, kw_only=True)
    replay_tokens: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        name_of("name", self.name, SpecError)
        self._check_types()
        for name in ("page_bytes", "tokens_per_row", "alignment"):
            self._put(name, positive_int(self.field_name(name), getattr(self, name)))
        for name in ("block_tokens", "row_bytes", "rows_per_page", "page_stride", "replay_tokens"):
            if getattr(self, name) is not None:
                self._put(name, positive_int(self.field_name(name), getattr(self, name)))
        if self.alignment & (self.alignment - 1):
            raise SpecError(self.field_name("alignment"), "a power of two", self.alignment)
        try:
            self._put("kernels", kernel_needs(self.field_name("kernels"), self.kernels))
        except ArgumentError as error:
            raise SpecError(error.field, error.expected, error.got) from error
        self._check_layers()
        self._check_page()
        check_format(self)

    @property
    def layer_count(self) -> int:
        """Number of layers; no layers named count as one."""
        return max(1, len(self.layers))

    @property
    def rows_in_order(self) -> bool:
        """Whether the rows of a layer's page lie one after another from its first byte: then some can be told apart."""
        inline = self.format is None or self.format.scale_placement in (None, "inline")
        footer = self.format is not None and self.format.footer_offset is not None
        return self.parts is None and (inline or footer)

    @property
    def total_page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return sum(self.parts.values()) if self.parts else self.page_bytes * self.layer_count

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that stand for the format: of ``format``, or of the declared layout where it is None.

        Without a format, groups declared alike agree: everything that says where bytes lie in a page counts;
        the names of the group and of its layers, and the address of pages, do not.
        """
        if self.format is not None:
            return self.format.fingerprint
        declared = ("page_bytes", "block_tokens", "row_bytes", "rows_per_page", "tokens_per_row")
        items: list[tuple[str, object]] = [(name, getattr(self, name)) for name in declared]
        items += [
            ("kind", int(self.kind)),
            ("coverage", (self.coverage.rule, self.coverage.parameter)),
            ("layers", self.layer_count),
            ("parts", None if self.parts is None else tuple(self.parts.items())),
        ]
        return framed_digest("hybridkv.group", items)

    def need(self, tokens: int) -> Need:
        """Tell what must exist of this group to resume at a length.

        Parameters
        ----------
        tokens : int
            The length, 0 <= tokens < 2**62. The group must have its block (see :attr:`CacheSpec.groups`).

        Returns
        -------
        Need
            Rows are position-exact: only complete rows count, and only those that the rule needs.

        Raises
        ------
        ArgumentError
            No such length.
        SpecError
            The group's block is not yet resolved.
        """
        tokens = token_length(tokens)
        if self.block_tokens is None:
            raise SpecError(self.field_name("block_tokens"), "a block resolved by a CacheSpec", None)
        rule, parameter = self.coverage.rule, self.coverage.parameter
        blocks = range(*_core.needed_blocks(rule, parameter, self.block_tokens, tokens))
        if not blocks:
            return Need(0, 0, blocks)
        rows = self._rows(tokens)
        return Need(rows, self._bytes_of(rows, len(blocks)), blocks)

    def _rows(self, tokens: int) -> int:
        if isinstance(self.coverage, Checkpoint):
            if self.rows_per_page is not None and self.rows_per_page == self.coverage.every:
                return tokens % self.rows_per_page  # raw rows of the open window
            rows = self.rows_per_page or 1
            overlap = self.format is not None and self.format.overlap
            return 0 if overlap and tokens < rows else rows  # of the last closed window, once there is one
        begin, end = _core.needed_span(self.coverage.rule, self.coverage.parameter, tokens)
        return int(end // self.tokens_per_row - begin // self.tokens_per_row)

    def _bytes_of(self, rows: int, pages: int) -> int:
        if self.row_bytes is None:
            return pages * self.total_page_bytes
        if self.parts is not None:  # layers or members differ: a row's share of all parts
            return rows * self.total_page_bytes * self.row_bytes // self.page_bytes
        return rows * self.row_bytes * self.layer_count

    def field_name(self, name: str) -> str:
        """Return how errors name a field of this group."""
        return f"groups[{self.name!r}].{name}"

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_types(self) -> None:
        kind = whole_number(self.kind)
        if kind is None or kind not in list(StateKind):
            raise SpecError(self.field_name("kind"), "a StateKind", self.kind)
        self._put("kind", StateKind(kind))
        if self.kind is StateKind.DISK:
            raise SpecError(self.field_name("kind"), "a kind of state; DISK is a place, not a kind of group", self.kind)
        if not isinstance(self.coverage, (Prefix, Window, Chunk, Checkpoint)):
            raise SpecError(self.field_name("coverage"), "Prefix, Window, Chunk or Checkpoint", self.coverage)
        if self.format is not None and not isinstance(self.format, KvFormat):
            raise SpecError(self.field_name("format"), "a KvFormat or None", self.format)
        if (rebuildable := truth(self.rebuildable)) is None:
            raise SpecError(self.field_name("rebuildable"), "a bool", self.rebuildable)
        self._put("rebuildable", rebuildable)
        if self.rebuildable and isinstance(self.coverage, Prefix):
            expected = "False for Prefix coverage: replaying all of a prefix is no reuse"
            raise SpecError(self.field_name("rebuildable"), expected, self.rebuildable)
        if self.replay_tokens is not None and not self.rebuildable:
            raise SpecError(self.field_name("replay_tokens"), "None where not rebuildable", self.replay_tokens)
        if self.in_step_with is not None and not isinstance(self.in_step_with, str):
            raise SpecError(self.field_name("in_step_with"), "the name of a group or None", self.in_step_with)

    def _check_layers(self) -> None:
        if isinstance(self.layers, (str, bytes)) or not isinstance(self.layers, Sequence):
            raise SpecError(self.field_name("layers"), "a sequence of layer numbers or names", self.layers)
        self._put("layers", layer_names(self.field_name("layers"), self.layers))
        if len(set(self.layers)) != len(self.layers):
            twice = next(layer for layer in self.layers if self.layers.count(layer) > 1)
            raise SpecError(self.field_name("layers"), "every layer once", twice)

    def _check_page(self) -> None:
        if self.page_stride is not None:
            if self.page_stride < self.page_bytes:
                expected = f"at least the page, {self.page_bytes} bytes"
                raise SpecError(self.field_name("page_stride"), expected, self.page_stride)
            if self.page_stride % self.alignment:
                expected = f"a multiple of the alignment, {self.alignment}"
                raise SpecError(self.field_name("page_stride"), expected, self.page_stride)
        if self.row_bytes is not None and (self.rows_per_page or 1) * self.row_bytes > self.page_bytes:
            self._refuse_rows(self.rows_per_page or 1)
        if self.parts is None:
            return
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise SpecError(self.field_name("parts"), "a mapping of part names to bytes", self.parts)
        for name in self.parts:
            name_of(self.field_name("parts"), name, SpecError)
        sizes = self.parts.items()
        parts = {
            str.__str__(name): positive_int(self.field_name(f"parts[{name!r}]"), n, _TOTAL_LIMIT) for name, n in sizes
        }
        self._put("parts", FrozenMapping(parts.items()))
        low, high = self.page_bytes, self.page_bytes * self.layer_count
        if not low <= sum(parts.values()) <= high:
            raise SpecError(self.field_name("parts"), f"a sum of {low} to {high} bytes", sum(parts.values()))

    def _refuse_rows(self, rows: int) -> None:
        expected = f"room for {rows} rows of {self.row_bytes} bytes"
        raise SpecError(self.field_name("page_bytes"), expected, self.page_bytes)

    def resolved(self, unit_tokens: int) -> CacheGroup:
        """Return this group with its block filled in, checked against a unit in tokens.

        Raises
        ------
        SpecError
            The block, the unit, the ratio and the rows of a page do not fit together.
        """
        group = self if self.block_tokens is not None else replace(self, block_tokens=unit_tokens)
        block = group.block_tokens or unit_tokens
        if block % unit_tokens:
            raise SpecError(self.field_name("block_tokens"), f"a multiple of the unit, {unit_tokens}", block)
        for what, tokens in (("block", block), ("unit", unit_tokens)):
            if tokens % self.tokens_per_row:
                expected = f"a divisor of the {what}, {tokens} tokens"
                raise SpecError(self.field_name("tokens_per_row"), expected, self.tokens_per_row)
        group._check_rows(block)
        check_named(group)
        self._check_kernels()
        return group

    def _check_kernels(self) -> None:
        """Refuse a kernel that is known to read other formats than the one that is declared."""
        for needs in kernel_needs(self.field_name("kernels"), self.kernels):
            if (wrong := unread(needs, self.format)) is not None:
                raise SpecError(self.field_name(wrong.field), f"{wrong.expected}, as {wrong.kernel} reads", wrong.got)

    def _check_rows(self, block: int) -> None:
        """A page must hold the rows of its block, or those that the window needs of it."""
        if isinstance(self.coverage, Checkpoint):
            return
        needed_tokens = block
        if not isinstance(self.coverage, Prefix):
            needed_tokens = min(block, self.coverage.tokens - 1)
        needed = -(-needed_tokens // self.tokens_per_row)
        declared = None if self.format is None else self.format.page_rows
        for name, rows in (("rows_per_page", self.rows_per_page), ("format.page_rows", declared)):
            if rows is not None and rows < needed:
                expected = f"at least {needed} rows, needed of a block of {block} tokens"
                raise SpecError(self.field_name(name), expected, rows)
        if self.row_bytes is not None and needed * self.row_bytes > self.page_bytes:
            self._refuse_rows(needed)


def layer_names(where: str, layers: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return layers as a tuple of numbers and names.

    Raises
    ------
    SpecError
        More than :data:`MOST_LAYERS`, or one that is neither a number, 0 <= number < 2**48, nor a name.
    """
    named: list[int | str] = []
    for layer in layers:  # not by len(): that of a long range is no machine number
        if len(named) == MOST_LAYERS:
            raise SpecError(where, f"at most {MOST_LAYERS} layers", "more")
        number = whole_number(layer)
        if isinstance(layer, str):
            named.append(encodable(where, str.__str__(layer)))
        elif number is None:
            raise SpecError(where, "layer numbers or names", layer)
        elif not 0 <= number < SIZE_LIMIT:
            raise SpecError(where, "layer numbers, 0 or more and below 2**48", layer)
        else:
            named.append(number)
    return tuple(named)


def token_length(tokens: object) -> int:
    """Return a length in tokens as an int, 0 <= tokens < 2**62.

    Raises
    ------
    ArgumentError
        It is none.
    """
    length = whole_number(tokens)
    if length is None or not 0 <= length < TOKENS_LIMIT:
        raise ArgumentError("tokens", "an int, 0 <= tokens < 2**62", tokens)
    return length
