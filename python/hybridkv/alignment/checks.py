# SPDX-License-Identifier: Apache-2.0
"""What kernels need of a pool against what it provides: base address, page stride, row stride, footer offset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hybridkv.alignment.needs import REFUSED, KernelNeeds, kernel_needs
from hybridkv.errors import ArgumentError, SpecError

if TYPE_CHECKING:
    from hybridkv.group import CacheGroup
    from hybridkv.paged_pool import PagedPool
    from hybridkv.pools import PoolArray

COORDINATES = 2**31
_CHECKPOINT = 3  # the rule's number
_CODES = {
    "base": "base", "page_stride": "page_stride", "page_bytes": "page_stride", "reach": "page_stride",
    "row_stride": "row_stride", "footer": "footer",
}  # fmt: skip
_ORDER = ("base", "page_stride", "row_stride", "footer")
_OWN = "the group's own declaration"
_LOAD = "a restore"

NOT_LOADED = "not loaded into"
"""The bytes are read where they are, and nothing can be written there."""


@dataclass(frozen=True)
class Violation:
    """One need of a kernel that a pool does not meet.

    Parameters
    ----------
    kernel : str
        Its name.
    field : str
        "base", "page_stride", "page_bytes", "reach", "row_stride", "footer" or "access" of the memory; "page_rows",
        "row_bytes", "footer_row", "dtype", "heads" or "head_dim" of what the group declares, "format." and a field of
        its format.
    expected, got : str
        What the kernel needs and what is there.
    fix : str
        What to do about it.
    effect : str
        As :attr:`KernelNeeds.effect`; :data:`NOT_LOADED` of memory that is read-only ("access").
    source : str
        Where the need is written down.
    """

    kernel: str
    field: str
    expected: str
    got: str
    fix: str
    effect: str = REFUSED
    source: str = ""

    @property
    def code(self) -> str | None:
        """The code of the verdict that tells it; None where the declaration does not fit, or only a load would not."""
        return _CODES.get(self.field)

    def __str__(self) -> str:
        return f"{self.kernel} needs {self.expected}, got {self.got}: {self.fix}"


class ArrayPlace(NamedTuple):
    """Where one array of a pool lies, or one layer in it.

    Attributes
    ----------
    base : int
        Address of its first page.
    page_stride : int
        Bytes from page to page.
    row_stride : int or None
        Bytes from row to row as the array tells it; None where it does not tell rows apart.
    """

    base: int
    page_stride: int
    row_stride: int | None = None


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """What a pool provides. What is None is not declared.

    Parameters
    ----------
    arrays : sequence of ArrayPlace
    pages, page_bytes : int
        Pages of an array, and bytes of one page of it.
    rows : int, optional
        Rows of a page.
    row_bytes : int, optional
        Bytes of a row, with what lies in the footer.
    packed_stride : int, optional
        Bytes from row to row where none are padded, as `arrays` tell it: without the footer where they tell where rows
        lie, with it where they show rows as engines do.
    footer_offset : int, optional
        First byte of the footers in a page.
    dtype : str, optional
        Element type, as formats declare it.
    heads, head_dim : int, optional
        Heads of keys and values, and channels of each.
    """

    arrays: Sequence[ArrayPlace]
    pages: int
    page_bytes: int
    rows: int | None = None
    row_bytes: int | None = None
    packed_stride: int | None = None
    footer_offset: int | None = None
    dtype: str | None = None
    heads: int | None = None
    head_dim: int | None = None


def pool_facts(group: CacheGroup, arrays: Sequence[PoolArray]) -> PoolFacts:
    """Return what the bound arrays of a group provide, each layer by itself.

    Parameters
    ----------
    group : CacheGroup
        Of a spec: its block is resolved.
    arrays : sequence of PoolArray
        What :func:`~hybridkv.pools.pool_arrays` returned.

    Returns
    -------
    PoolFacts
    """
    together = len(arrays) == 1
    starts = _layer_offsets(group) if together else (0,)
    places = [ArrayPlace(a.base + start, a.stride, a.row_stride or None) for a in arrays for start in starts]
    fmt = group.format
    alone = together and (
        group.layer_count > 1 or group.parts is not None
    )  # rows of a layer are not those of the array
    return PoolFacts(
        arrays=[place._replace(row_stride=None) for place in places] if alone else places,
        pages=min(a.pages for a in arrays),
        page_bytes=group.total_page_bytes if together else group.page_bytes,
        rows=declared_rows(group),
        row_bytes=group.row_bytes,
        packed_stride=group.row_bytes,
        footer_offset=None if fmt is None else fmt.footer_offset,
        dtype=None if fmt is None else fmt.dtype,
    )


def _layer_offsets(group: CacheGroup) -> tuple[int, ...]:
    """Where layers, or members, begin in a page that holds them all, one after another."""
    sizes = list(group.parts.values()) if group.parts else [group.page_bytes] * group.layer_count
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += size
    return tuple(offsets)


def declared_rows(group: CacheGroup) -> int | None:
    """Rows of a page, as declared or as its block has them; None where rows are not told apart."""
    if group.rows_per_page is not None:
        return group.rows_per_page
    if group.row_bytes is None or group.block_tokens is None or group.coverage.rule == _CHECKPOINT:
        return None
    return group.block_tokens // group.tokens_per_row


def facts_of_pages(pool: PagedPool) -> PoolFacts:
    """Return what arrays of pages provide that were taken for kernels of this package."""
    rows, row_bytes, row_stride, footer_bytes, footer_offset = pool.rows
    told = rows > 1 or footer_bytes > 0
    return PoolFacts(
        arrays=[ArrayPlace(base, stride, row_stride if told else None) for base, stride in pool.layers],
        pages=pool.pages,
        page_bytes=max(rows * row_stride, footer_offset + rows * footer_bytes if footer_bytes else 0),
        rows=rows if told else None,
        row_bytes=row_bytes + footer_bytes if told else None,
        packed_stride=row_bytes if told else None,
        footer_offset=footer_offset if footer_bytes else None,
    )


def check(kernels: str | KernelNeeds | Iterable[str | KernelNeeds], pool: PoolFacts) -> list[Violation]:
    """Tell every need of kernels that a pool does not meet.

    Parameters
    ----------
    kernels : str, KernelNeeds, or a sequence of these
        Names of :data:`KERNELS`, or needs of one's own.
    pool : PoolFacts
        What is there.

    Returns
    -------
    list of Violation
        In the order of the kernels, and of base address, page stride, row stride and footer; empty where all fit.

    Raises
    ------
    ArgumentError
        A kernel that is not known; a pool that is no PoolFacts.

    Examples
    --------
    >>> facts = PoolFacts(arrays=[ArrayPlace(4096, 37376)], pages=8, page_bytes=37376, rows=64, row_bytes=584,
    ...                   footer_offset=36864)
    >>> for violation in check("flashmla_sm100_sparse_model1", facts):
    ...     print(violation)
    flashmla_sm100_sparse_model1 needs a page stride that is a multiple of 576, got 37376: pad pages to 37440 bytes
    """
    if not isinstance(pool, PoolFacts):
        raise ArgumentError("pool", "PoolFacts", type(pool).__name__)
    found: list[Violation] = []
    for needs in kernel_needs("kernels", kernels):
        found += [*misfits(needs, pool), *_base(needs, pool), *_pages(needs, pool), *_rows(needs, pool)]
    return found


def check_addresses(
    kernels: str | KernelNeeds | Iterable[str | KernelNeeds], addresses: Sequence[int]
) -> list[Violation]:
    """Tell which kernels cannot take memory that begins at one of these addresses, whatever lies there.

    Parameters
    ----------
    kernels : str, KernelNeeds, or a sequence of these
        As in :func:`check`.
    addresses : sequence of int

    Returns
    -------
    list of Violation
        At most one for each kernel.

    Raises
    ------
    ArgumentError
        A kernel that is not known.
    """
    pool = PoolFacts(arrays=[ArrayPlace(address, 0) for address in addresses], pages=1, page_bytes=0)
    return [violation for needs in kernel_needs("kernels", kernels) for violation in _base(needs, pool)]


def misfits(needs: KernelNeeds, pool: PoolFacts) -> list[Violation]:
    """Tell what of a declaration a kernel cannot read, wherever the memory lies."""
    found: list[Violation] = []

    def add(field: str, expected: str, got: object, fix: str) -> None:
        found.append(Violation(needs.name, field, expected, str(got), fix, needs.effect, needs.source))

    if needs.row_bytes and pool.row_bytes not in needs.row_bytes:
        got = "rows that are not declared" if pool.row_bytes is None else pool.row_bytes
        add("row_bytes", f"rows of {_any_of(needs.row_bytes)} bytes", got, "convert the rows, or take another kernel")
    if needs.page_rows and (pool.rows is None or kernel_rows(needs, pool.rows) is None):
        fix = f"use pages of {min(needs.page_rows)} rows"
        add(
            "page_rows",
            f"pages of {_any_of(needs.page_rows)} rows",
            "none declared" if pool.rows is None else pool.rows,
            fix,
        )
    if needs.footer_row_bytes and (pool.rows is None or pool.footer_offset is None):
        got = "a format that declares none"
        add(
            "footer_row",
            f"footers of {needs.footer_row_bytes} bytes a row",
            got,
            "declare rows and format.footer_offset",
        )
    if needs.dtypes and pool.dtype is not None and pool.dtype not in needs.dtypes:
        add("dtype", f"elements of {_any_of(needs.dtypes)}", pool.dtype, "convert the rows, or take another kernel")
    if needs.heads and pool.heads is not None and pool.heads not in needs.heads:
        add("heads", f"{_any_of(needs.heads)} heads of keys", pool.heads, "take another kernel")
    if needs.head_dims and pool.head_dim is not None and pool.head_dim not in needs.head_dims:
        add("head_dim", f"heads of {_any_of(needs.head_dims)} channels", pool.head_dim, "take another kernel")
    return found


def kernel_rows(needs: KernelNeeds, rows: int) -> int | None:
    """Rows of the kernel's own pages where ours have so many: as many, or a part where there is no footer; or None."""
    if not needs.page_rows or rows in needs.page_rows:
        return rows
    if needs.footer_row_bytes:
        return None
    return max((own for own in needs.page_rows if rows % own == 0), default=None)


def _any_of(values: Sequence[object]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last


def rounded_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is at least the number."""
    return -(-number // multiple) * multiple


def _base(needs: KernelNeeds, pool: PoolFacts) -> list[Violation]:
    wrong = [place.base for place in pool.arrays if place.base % needs.base_alignment]
    if not wrong or not pool.pages:
        return []
    far = needs.base_alignment - wrong[0] % needs.base_alignment
    expected = f"an address that is a multiple of {needs.base_alignment}"
    fix = f"begin {far} bytes later, where memory is allocated at a multiple of {needs.base_alignment}"
    return [Violation(needs.name, "base", expected, hex(wrong[0]), fix, needs.effect, needs.source)]


def _pages(needs: KernelNeeds, pool: PoolFacts) -> list[Violation]:
    found: list[Violation] = []

    def add(field: str, expected: str, got: object, fix: str) -> None:
        found.append(Violation(needs.name, field, expected, str(got), fix, needs.effect, needs.source))

    if pool.page_bytes % needs.page_bytes_multiple:
        padded = rounded_up(pool.page_bytes, needs.page_bytes_multiple)
        expected = f"pages whose bytes are a multiple of {needs.page_bytes_multiple}"
        add("page_bytes", expected, pool.page_bytes, f"make pages of {padded} bytes")
    strides = [place.page_stride for place in pool.arrays] if pool.pages > 1 else []
    own = kernel_rows(needs, pool.rows) if pool.rows is not None else None
    for stride in strides:
        padded = rounded_up(pool.page_bytes, needs.page_stride_multiple)
        if stride % needs.page_stride_multiple:
            expected = f"a page stride that is a multiple of {needs.page_stride_multiple}"
            add("page_stride", expected, stride, f"pad pages to {padded} bytes")
        elif needs.adjacent_pages and stride != pool.page_bytes:
            add("page_stride", f"pages one behind the other, {pool.page_bytes} bytes", stride, "leave no padding")
        elif own not in (None, pool.rows) and pool.row_bytes and stride % ((own or 1) * pool.row_bytes):
            expected = f"a page stride of whole pages of {own} rows, {(own or 1) * pool.row_bytes} bytes"
            add("page_stride", expected, stride, "leave no padding")
        elif needs.coordinate_bytes and pool.pages * (stride // needs.coordinate_bytes) >= COORDINATES:
            most = (COORDINATES - 1) // (stride // needs.coordinate_bytes)
            add("reach", f"at most {most} pages of {stride} bytes", pool.pages, "split the pool")
        if found and found[-1].field != "page_bytes":
            break
    return found


def _rows(needs: KernelNeeds, pool: PoolFacts) -> list[Violation]:
    found: list[Violation] = []

    def add(field: str, expected: str, got: object, fix: str) -> None:
        found.append(Violation(needs.name, field, expected, str(got), fix, needs.effect, needs.source))

    told = next((p.row_stride for p in pool.arrays if p.row_stride not in (None, pool.packed_stride)), None)
    if needs.packed_rows and told is not None and pool.packed_stride is not None:
        add("row_stride", f"rows {pool.packed_stride} bytes apart", told, "leave no padding between rows")
    elif (pitch := _pitch(pool)) is not None and pitch % needs.row_multiple:
        padded = rounded_up(pitch, needs.row_multiple)
        expected = f"a row stride that is a multiple of {needs.row_multiple}"
        add("row_stride", expected, pitch, f"pad rows to {padded} bytes")
    if pool.footer_offset is None or pool.rows is None:
        return found
    expected_at = pool.rows * (pool.row_bytes - needs.footer_row_bytes) if pool.row_bytes else None
    if needs.footer_row_bytes and expected_at is not None and pool.footer_offset != expected_at:
        expected = f"footers that begin at {expected_at}"
        add("footer", expected, pool.footer_offset, f"put the footers behind the {pool.rows} rows")
    elif pool.footer_offset % needs.row_multiple:
        expected = f"footers that begin at a multiple of {needs.row_multiple}"
        add("footer", expected, pool.footer_offset, f"begin at {rounded_up(pool.footer_offset, needs.row_multiple)}")
    return found


def _pitch(pool: PoolFacts) -> int | None:
    """Bytes from row to row: where there are footers, what is before them shared out among the rows."""
    if pool.footer_offset is not None and pool.rows and pool.footer_offset % pool.rows == 0:
        return pool.footer_offset // pool.rows
    if pool.rows == 1:
        return None
    return next((p.row_stride for p in pool.arrays if p.row_stride is not None), pool.row_bytes)


# ---- a group and its pool --------------------------------------------------------------------------


def own_violations(group: CacheGroup, arrays: Sequence[PoolArray]) -> list[Violation]:
    """Tell what of a group's own declaration arrays do not meet, the core's four byte facts, and what is read-only."""
    found: list[Violation] = []
    align, stride, footer = (
        group.alignment,
        group.page_stride,
        None if group.format is None else group.format.footer_offset,
    )
    for array in arrays:
        if array.base % align:
            fix = f"allocate at a multiple of {align}"
            found.append(Violation(_OWN, "base", f"an address that is a multiple of {align}", hex(array.base), fix))
        if array.stride % align or stride not in (None, array.stride):
            expected = f"a page stride of {stride}" if stride else f"a page stride that is a multiple of {align}"
            fix = f"pad pages to {stride or rounded_up(array.page_bytes, align)} bytes"
            found.append(Violation(_OWN, "page_stride", expected, str(array.stride), fix))
        if array.row_stride and group.row_bytes and array.row_stride != group.row_bytes:
            expected, fix = f"rows {group.row_bytes} bytes apart", "leave no padding between rows"
            found.append(Violation(_OWN, "row_stride", expected, str(array.row_stride), fix))
        if footer is not None and footer >= array.page_bytes:
            expected = f"footers that begin within {array.page_bytes} bytes of a page"
            found.append(Violation(_OWN, "footer", expected, str(footer), "declare a footer_offset inside the page"))
        if not array.writable:
            fix = "bind memory that may be written"
            found.append(Violation(_LOAD, "access", "memory that may be written", "a read-only array", fix, NOT_LOADED))
    return found


def bound_violations(group: CacheGroup, kernels: object, arrays: Sequence[PoolArray]) -> tuple[list[Violation], str]:
    """Check arrays that are to be the pool of a group.

    Parameters
    ----------
    group : CacheGroup
        With the kernels that it names.
    kernels : None, str, KernelNeeds, or a sequence of these
        Further ones that will read this pool.
    arrays : sequence of PoolArray

    Returns
    -------
    list of Violation
        Of the group's own declaration, then of the kernels.
    str
        The code that a match shall tell of the kernels; "" for none.

    Raises
    ------
    ArgumentError
        Kernels that are not known, or that cannot read what the group declares.
    """
    from hybridkv.alignment.declared_formats import unread  # builds on this

    named = () if kernels is None else kernel_needs("kernel", kernels)
    needs = {one.name: one for one in (*_named(group), *named)}
    facts = pool_facts(group, arrays)
    for one in named:
        for misfit in misfits(one, facts):
            if misfit.effect == REFUSED:
                raise ArgumentError(
                    "kernel", f"one that reads {group.name!r}; {misfit.kernel} {misfit.expected}", misfit.got
                )
        if (wrong := unread(one, group.format)) is not None:
            expected = f"one that reads {group.name!r}; {wrong.kernel} reads {wrong.field} {wrong.expected}"
            raise ArgumentError("kernel", expected, f"{wrong.field} {wrong.got}")
    of_kernels = check(needs.values(), facts) if needs else []
    codes = {violation.code for violation in of_kernels if violation.effect == REFUSED}
    return own_violations(group, arrays) + of_kernels, next((code for code in _ORDER if code in codes), "")


def _named(group: CacheGroup) -> tuple[KernelNeeds, ...]:
    return kernel_needs(group.field_name("kernels"), group.kernels)


def check_named(group: CacheGroup) -> None:
    """Refuse a group that names a kernel which cannot read what it declares.

    Raises
    ------
    SpecError
        Naming the kernel, what it needs and what is declared.
    """
    fmt = group.format
    facts = PoolFacts(
        arrays=(),
        pages=0,
        page_bytes=group.page_bytes,
        rows=declared_rows(group),
        row_bytes=group.row_bytes,
        footer_offset=None if fmt is None else fmt.footer_offset,
        dtype=None if fmt is None else fmt.dtype,
    )
    for needs in _named(group):
        for misfit in misfits(needs, facts):
            if misfit.effect == REFUSED:
                raise SpecError(group.field_name("kernels"), f"{misfit.kernel} {misfit.expected}", misfit.got)


def told(violations: Sequence[Violation], code: str | None) -> str:
    """Say which kernel needs what, of what a verdict with this code is about; "" where none is known.

    `code` None: any of them, and what hinders a load alone.
    """
    about = [
        str(v)
        for v in violations
        if (v.code is not None and code in (None, v.code) and v.effect == REFUSED)
        or (code is None and v.effect == NOT_LOADED)
    ]
    return "; ".join(dict.fromkeys(about))
