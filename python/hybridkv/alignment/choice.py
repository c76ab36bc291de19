# SPDX-License-Identifier: Apache-2.0
"""Which pages serve several kernels at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import TYPE_CHECKING

from hybridkv.alignment.checks import COORDINATES, declared_rows, kernel_rows, rounded_up
from hybridkv.alignment.needs import REFUSED, KernelNeeds, kernel_needs
from hybridkv.errors import ArgumentError

if TYPE_CHECKING:
    from hybridkv.group import CacheGroup

_MOST_BYTES = 2**48


@dataclass(frozen=True, kw_only=True)
class PageChoice:
    """Pages of one layer that every kernel takes.

    Parameters
    ----------
    rows : int
        Rows of a page.
    block_tokens : int
        Tokens that these rows stand for.
    page_bytes, page_stride : int
        Bytes of the rows, and from page to page.
    """

    rows: int
    block_tokens: int
    page_bytes: int
    page_stride: int

    @property
    def padding_bytes(self) -> int:
        """Bytes between a page and the next."""
        return self.page_stride - self.page_bytes


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What :func:`suggest` found.

    Parameters
    ----------
    base_alignment : int
        What to allocate at a multiple of.
    padded : PageChoice or None
        As many rows as the group has, or the fewest that every kernel takes, each page padded to the next stride.
        None where a kernel takes no padding, or where there is no such page.
    unpadded : PageChoice or None
        The fewest rows that need no padding. None where there is no such page.
    conflicts : tuple of str
        Why there is no page at all; what makes bytes slower, and no page has it.
    """

    base_alignment: int
    padded: PageChoice | None
    unpadded: PageChoice | None
    conflicts: tuple[str, ...] = ()

    @property
    def best(self) -> PageChoice | None:
        """The one of fewer rows; of as many rows the unpadded one."""
        choices = [choice for choice in (self.unpadded, self.padded) if choice is not None]
        return min(choices, key=lambda choice: choice.rows, default=None)


def suggest(group: CacheGroup, kernels: str | KernelNeeds | Iterable[str | KernelNeeds]) -> Suggestion:
    """Tell which pages of a group serve several kernels at once.

    Strides and sizes are common multiples of what the kernels need, rows the fewest that make them.

    Parameters
    ----------
    group : CacheGroup
        Declares ``row_bytes``; of a spec, so that its block is known.
    kernels : str, KernelNeeds, or a sequence of these
        Names of :data:`KERNELS`, or needs of one's own.

    Returns
    -------
    Suggestion
        Needs that only make bytes slower are met where that costs no kernel its pages, else told as conflicts.

    Raises
    ------
    ArgumentError
        A kernel that is not known, none, or a group that does not declare its rows.

    Examples
    --------
    >>> from hybridkv import CacheGroup, Prefix, StateKind
    >>> csa = CacheGroup("csa", StateKind.COMPRESSED, Prefix(), page_bytes=64 * 584, row_bytes=584, rows_per_page=64,
    ...                  tokens_per_row=4)
    >>> found = suggest(csa, "flashmla_sm100_sparse_model1")
    >>> found.padded.page_stride, found.padded.padding_bytes, found.unpadded.rows
    (37440, 64, 72)
    """
    needs = kernel_needs("kernels", kernels)
    if not needs:
        raise ArgumentError("kernels", "at least one kernel", "none")
    rows = declared_rows(group)
    if rows is None or group.row_bytes is None:
        raise ArgumentError("group", "one that declares row_bytes and its rows", group.name)
    found = _serve(group, rows, group.row_bytes, needs)
    if found.best is not None or all(one.effect == REFUSED for one in needs):
        return found
    strict = tuple(one for one in needs if one.effect == REFUSED)
    left_out = f"no page serves {', '.join(one.name for one in needs if one.effect != REFUSED)} too: bytes go slower"
    if not strict:
        return found
    less = _serve(group, rows, group.row_bytes, strict)
    return Suggestion(
        base_alignment=found.base_alignment,
        padded=less.padded,
        unpadded=less.unpadded,
        conflicts=(*less.conflicts, left_out),
    )


def _serve(group: CacheGroup, rows: int, row_bytes: int, needs: Sequence[KernelNeeds]) -> Suggestion:
    base = lcm(*(one.base_alignment for one in needs))
    stride = lcm(*(one.page_stride_multiple for one in needs))
    bytes_of_pages = lcm(*(one.page_bytes_multiple for one in needs))
    conflicts = [
        f"{one.name} reads rows of {' or '.join(map(str, one.row_bytes))} bytes, {group.name!r} has {row_bytes}"
        for one in needs
        if one.row_bytes and row_bytes not in one.row_bytes
    ]
    conflicts += [conflict for one in needs if one.effect == REFUSED and (conflict := _rows_apart(group, rows, one))]
    if conflicts:
        return Suggestion(base_alignment=base, padded=None, unpadded=None, conflicts=tuple(conflicts))
    slower = [conflict for one in needs if one.effect != REFUSED and (conflict := _rows_apart(group, rows, one))]

    def choice(rows: int | None, multiple: int) -> PageChoice | None:
        if rows is None or rows * row_bytes >= _MOST_BYTES:
            return None
        size = rows * row_bytes
        parts = [own * row_bytes for one in needs if (own := kernel_rows(one, rows)) not in (None, rows) and own]
        stride = rounded_up(size, lcm(multiple, *parts))  # whole pages of a kernel that sees several in one of ours
        if any(one.coordinate_bytes and stride // one.coordinate_bytes >= COORDINATES for one in needs):
            return None  # not one such page
        return PageChoice(rows=rows, block_tokens=rows * group.tokens_per_row, page_bytes=size, page_stride=stride)

    unpadded = choice(_fewest(needs, 1, _step(row_bytes, lcm(stride, bytes_of_pages))), 1)
    padded = None
    if not any(one.adjacent_pages for one in needs):
        padded = choice(_fewest(needs, rows, _step(row_bytes, bytes_of_pages)), stride)
    if padded is None and unpadded is None:
        conflicts.append(_why_none(needs, row_bytes, lcm(stride, bytes_of_pages)))
    return Suggestion(base_alignment=base, padded=padded, unpadded=unpadded, conflicts=(*conflicts, *slower))


def _rows_apart(group: CacheGroup, rows: int, needs: KernelNeeds) -> str:
    """Say that rows lie where a kernel does not take them, or takes them slowly; no page changes that. "" where not."""
    row_bytes, footer = group.row_bytes or 0, None if group.format is None else group.format.footer_offset
    apart = row_bytes - needs.footer_row_bytes
    if not needs.footer_row_bytes and footer is not None and footer % rows == 0:
        apart = footer // rows
    if apart % needs.row_multiple == 0:
        return ""
    slower = "" if needs.effect == REFUSED else ": bytes go slower"
    return f"{needs.name} wants rows at multiples of {needs.row_multiple} bytes, they are {apart}{slower}"


def _step(row_bytes: int, multiple: int) -> int:
    """Fewest rows whose bytes are a multiple."""
    return multiple // gcd(multiple, row_bytes)


def _fewest(needs: Sequence[KernelNeeds], wanted: int, step: int) -> int | None:
    """Return the fewest rows, or those wanted, that are a multiple of the step and that every kernel takes."""
    if wanted > 1 and wanted % step == 0 and _taken(needs, wanted):
        return wanted
    sets = [one.page_rows for one in needs if one.page_rows]
    if not sets:
        return step
    fixed = {rows for rows in sets[0] if rows % step == 0 and _taken(needs, rows)}
    whole = lcm(step, *(min(own) for own in sets))
    if _taken(needs, whole):
        fixed.add(whole)
    return min(fixed, default=None)


def _taken(needs: Sequence[KernelNeeds], rows: int) -> bool:
    return all(kernel_rows(one, rows) is not None for one in needs)


def _why_none(needs: Sequence[KernelNeeds], row_bytes: int, multiple: int) -> str:
    rules = [f"{one.name} takes pages of {' or '.join(map(str, one.page_rows))} rows" for one in needs if one.page_rows]
    rules += [f"{one.name} takes no padding" for one in needs if one.adjacent_pages]
    step = _step(row_bytes, multiple)
    return f"no page serves all: {'; '.join(rules)}; without padding pages have a multiple of {step} rows"
