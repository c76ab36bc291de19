# SPDX-License-Identifier: Apache-2.0
"""Whether one side can read what the other writes: everything is compared, and every difference is told at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats.kv_format import KvFormat
from hybridkv.formats.manifest import GroupManifest, Manifest
from hybridkv.formats.ranks import RankGeometry, all_replicated
from hybridkv.formats.severity import CONVERTIBLE, COSMETIC, INCOMPATIBLE, SEVERITIES, Compatibility

if TYPE_CHECKING:
    from hybridkv.group import CacheGroup
    from hybridkv.reference.conversion_plan import ConversionPlan
    from hybridkv.reference.row_format import RowFormat
    from hybridkv.spec import CacheSpec

PREFIX_RULE = 0

_OF_THE_POOL = frozenset({"page_stride", "alignment"})
"""Fields that say where pages lie: bind reads them off the arrays, and match reports what a kernel cannot take."""

_BY_PAGE = ("page_bytes", "rows_per_page")
_BY_GROUP = ("kind", "coverage", "tokens_per_row", "layers", "draft")


@dataclass(frozen=True)
class Difference:
    """One thing in which two sides differ.

    Parameters
    ----------
    group : str
        Name of the group; empty where it is of the whole.
    field : str
        Such as ``"unit_tokens"``, ``"block_tokens"``, ``"format.theta"``, ``"identity.weights"``, ``"ranks.tp"``.
    ours, theirs : object
        The two values; None where a side has none.
    severity : str
        ``"incompatible"``, ``"convertible"`` or ``"cosmetic"``.
    reason : str
        What stands in the way; empty where nothing does.
    """

    group: str
    field: str
    ours: object
    theirs: object
    severity: str
    reason: str = ""

    @property
    def where(self) -> str:
        """The field with its group."""
        return f"groups[{self.group!r}].{self.field}" if self.group else self.field

    def __str__(self) -> str:
        told = f"{self.where}: ours {self.ours!r}, theirs {self.theirs!r} ({self.severity})"
        return f"{told}: {self.reason}" if self.reason else told


@dataclass(frozen=True)
class Agreement:
    """Each side can read what the other writes.

    Parameters
    ----------
    conversions : mapping of str to ConversionPlan
        By group: what their rows must go through (:func:`hybridkv.ops.convert`). Empty: byte-exact.
    differences : tuple of Difference
        What differs all the same: what conversions take care of, and what is cosmetic.
    """

    conversions: Mapping[str, ConversionPlan]
    differences: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        """Whether bytes can be read as they are."""
        return not self.conversions


@dataclass(frozen=True)
class Refusal:
    """They cannot.

    Parameters
    ----------
    differences : tuple of Difference
        All of them, those that stand in the way first.
    """

    differences: tuple[Difference, ...]

    @property
    def because(self) -> str:
        """The first thing that stands in the way, by its name."""
        return self.differences[0].where

    def __str__(self) -> str:
        return "; ".join(map(str, self.differences))


def negotiate(ours: Manifest | CacheSpec, theirs: Manifest | CacheSpec) -> Agreement | Refusal:
    """Compare what two sides declare.

    Parameters
    ----------
    ours, theirs : Manifest or CacheSpec
        Of whoever wants to read, and of whoever wrote. A spec stands for its manifest without a draft.

    Returns
    -------
    Agreement or Refusal
        An agreement only where every difference is cosmetic or one that a lossless conversion takes care of: of sizes
        those alone that the conversion begins and ends with. Groups at other places are refused, since records hold
        them by their places.

    Raises
    ------
    ArgumentError
        An argument that is neither.

    Notes
    -----
    Blocks of two sizes must divide one another, whichever is the larger; of a group of history they then need a
    conversion that changes pages, of any other group they are other boundaries. Which tensor rank one is, and of how
    many, changes nothing where every group is declared ``shard="replicated"`` by both sides.

    Examples
    --------
    >>> import hybridkv as hk
    >>> sixteen, other = (Manifest.of(hk.CacheSpec.homogeneous(2, n * 4, n)) for n in (16, 24))
    >>> [d.where for d in negotiate(sixteen, other).differences][:2]
    ['unit_tokens', "groups['kv'].block_tokens"]
    """
    ours, theirs = _manifest("ours", ours), _manifest("theirs", theirs)
    found = list(_of_the_whole(ours, theirs))
    conversions: dict[str, ConversionPlan] = {}
    names = [group.name for group in ours.groups] + [g.name for g in theirs.groups if ours.group(g.name) is None]
    for name in names:
        mine, other = ours.group(name), theirs.group(name)
        if mine is None or other is None:
            sides = (None if mine is None else name, None if other is None else name)
            found.append(Difference(name, "group", *sides, INCOMPATIBLE, "one side has no such group"))
            continue
        plan = _compare_groups(mine, other, found)
        if plan is not None:
            conversions[name] = plan
    if any(d.reason for d in found):
        return Refusal(worst_first(found))
    return Agreement(conversions, tuple(found))


def check_pool(group: CacheGroup, declared: KvFormat) -> None:
    """Compare the format that a pool's memory has with that of its group.

    Parameters
    ----------
    group : CacheGroup
        As a spec has it. Where it declares no format, sizes of rows and pages are compared that both know.
    declared : KvFormat
        What the kernels that use the pool read and write.

    Raises
    ------
    SpecError
        They differ, in more than where pages lie (which match reports): ``differences`` has every field, ``plan`` the
        conversion that another pool would take, where there is one.
    ArgumentError
        No KvFormat.
    """
    from hybridkv.formats.conversions import relation  # builds on what builds on formats

    if not isinstance(declared, KvFormat):
        raise ArgumentError("format", "a KvFormat", type(declared).__name__)
    if group.format is None:
        sizes = (
            (f, getattr(group, g), getattr(declared, f))
            for f, g in (("row_bytes", "row_bytes"), ("page_rows", "rows_per_page"))
        )
        found = [
            Difference(group.name, f"format.{f}", a, b, INCOMPATIBLE, "sizes")
            for f, a, b in sizes
            if None not in (a, b) and a != b
        ]
        plan = None
    else:
        told = relation(group.format, declared)
        counted = (d for d in told.differences if d.severity != COSMETIC and d.field not in _OF_THE_POOL)
        found = [Difference(group.name, f"format.{d.field}", d.ours, d.theirs, d.severity, "bytes") for d in counted]
        plan = told.plan
    if found:
        expected = f"the format of group {group.name!r}"
        got = ", ".join(f"{d.field.removeprefix('format.')}={d.theirs!r} (not {d.ours!r})" for d in found)
        raise SpecError("format", expected, got, differences=tuple(found), plan=plan)


def _manifest(name: str, given: object) -> Manifest:
    from hybridkv.spec import CacheSpec  # builds on formats

    if isinstance(given, CacheSpec):
        return Manifest.of(given)
    if not isinstance(given, Manifest):
        raise ArgumentError(name, "a Manifest or a CacheSpec", type(given).__name__)
    return given


def _of_the_whole(ours: Manifest, theirs: Manifest) -> Iterator[Difference]:
    for name, reason in (
        ("key_profile", "keys are defined otherwise"),
        ("record_layout", "records are laid out otherwise"),
        ("unit_tokens", "keys name other spans"),
    ):
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            yield Difference("", name, a, b, INCOMPATIBLE, reason)
    places = [{group.name: place for place, group in enumerate(side.groups)} for side in (ours, theirs)]
    for name, place in places[0].items():
        if places[1].get(name, place) != place:
            reason = "records hold groups by their places"
            yield Difference(name, "order", place, places[1][name], INCOMPATIBLE, reason)
    if ours.identity != theirs.identity:
        yield from _identities(ours, theirs)
    replicated = all_replicated((*ours.groups, *theirs.groups))
    for f in fields(RankGeometry):
        a, b = getattr(ours.ranks, f.name), getattr(theirs.ranks, f.name)
        if a != b and f.name in ("tp", "tp_rank") and replicated:
            yield Difference("", f"ranks.{f.name}", a, b, COSMETIC)
        elif a != b:
            yield Difference("", f"ranks.{f.name}", a, b, INCOMPATIBLE, "a rank holds another share")


def _identities(ours: Manifest, theirs: Manifest) -> Iterator[Difference]:
    """Name the parts that differ; where none that both know does, the whole."""
    reason = "no key of one is a key of the other"
    a, b = ours.identity_parts, theirs.identity_parts
    parts = [
        Difference("", f"identity.{name}", a[name], b[name], INCOMPATIBLE, reason)
        for name in sorted(a.keys() & b.keys())
        if a[name] != b[name]
    ]
    whole = Difference("", "identity", ours.identity.hex(), theirs.identity.hex(), INCOMPATIBLE, reason)
    yield from parts or [whole]


def _compare_groups(ours: GroupManifest, theirs: GroupManifest, found: list[Difference]) -> ConversionPlan | None:
    """Add every difference of a group; return the conversion that takes care of those that have no reason."""
    name = ours.name
    for field in _BY_GROUP:
        a, b = getattr(ours, field), getattr(theirs, field)
        if a != b:
            found.append(Difference(name, field, a, b, INCOMPATIBLE, "another group under the same name"))
    formats, plan, no_plan = _formats(ours, theirs)
    if plan is not None:
        paged = ours.block_tokens != theirs.block_tokens or any(step.name == "pages" for step in plan.steps)
        if misfit := _misfit(ours, plan.target, paged) or _misfit(theirs, plan.source, paged):
            formats = [d if d.severity == COSMETIC else replace(d, reason=misfit) for d in formats]
            plan, no_plan = None, misfit
    sizes = list(_sizes(ours, theirs, "" if plan is not None else no_plan or "no converter changes these pages"))
    if not sizes and not formats and ours.fingerprint != theirs.fingerprint and not any(d.group == name for d in found):
        told = ours.fingerprint.hex(), theirs.fingerprint.hex()  # of who declares more than this version knows
        found.append(Difference(name, "fingerprint", *told, INCOMPATIBLE, "declared otherwise"))
    found += [*sizes, *formats]
    return plan


def _misfit(side: GroupManifest, row: RowFormat, paged: bool) -> str:
    """Say why a plan does not begin, or end, at the pages that a side has; "" where it does.

    A plan is of formats: rows of one layer, in pages of so many. It accounts for sizes of a group only where they are
    just those of its two row formats; where rows go to pages of another size (`paged`), where pages are full of rows.
    """
    if side.parts:
        return "no converter: layers or members differ, which no row format says"
    rows = side.rows_per_page
    if rows is None and side.coverage[0] == PREFIX_RULE:
        rows = side.block_tokens // side.tokens_per_row
    sizes: tuple[tuple[str, int | None, tuple[int, ...]], ...] = (
        ("row_bytes", side.row_bytes, (row.row_bytes,)),
        ("rows_per_page", rows, (row.page_rows,)),
        ("page_bytes", side.page_bytes, (row.page_bytes, row.page_stride)),
    )
    for field, declared, planned in sizes:
        if declared is not None and declared not in planned:
            return f"no converter: {field} is {declared}, in the format {planned[0]}"
    if paged:
        if side.coverage[0] != PREFIX_RULE:
            return "no converter: pages of windows and states are not full of rows"
        if row.page_rows * side.tokens_per_row != side.block_tokens:
            return f"no converter: {row.page_rows} rows of a page are no block of {side.block_tokens} tokens"
    return ""


def _sizes(ours: GroupManifest, theirs: GroupManifest, obstacle: str) -> Iterator[Difference]:
    a, b = ours.block_tokens, theirs.block_tokens
    if a != b and a % b and b % a:
        yield Difference(ours.name, "block_tokens", a, b, INCOMPATIBLE, "neither block divides the other")
    elif a != b and ours.coverage[0] != PREFIX_RULE:
        yield Difference(ours.name, "block_tokens", a, b, INCOMPATIBLE, "states and windows are kept at other lengths")
    elif a != b:
        yield Difference(ours.name, "block_tokens", a, b, CONVERTIBLE, obstacle)
    for field in (*_BY_PAGE, "row_bytes", "parts"):
        x, y = getattr(ours, field), getattr(theirs, field)
        if x == y:
            continue
        told = obstacle or ("" if None not in (x, y) else "one side does not declare it")
        severity = INCOMPATIBLE if told and field not in _BY_PAGE else CONVERTIBLE
        yield Difference(ours.name, field, x, y, severity, told)


def _formats(ours: GroupManifest, theirs: GroupManifest) -> tuple[list[Difference], ConversionPlan | None, str]:
    """Return the differences of two formats, the conversion that takes care of them, and why there is none."""
    a, b = ours.format, theirs.format
    if (a is None or b is None) and ours.fingerprint == theirs.fingerprint:
        return [], None, ""
    if a is None and b is None:  # what differs are the sizes, told one by one
        return [], None, "no format is declared"
    return format_differences(ours.name, a, b)


def format_differences(
    group: str, ours: KvFormat | None, theirs: KvFormat | None
) -> tuple[list[Difference], ConversionPlan | None, str]:
    """Compare the formats that two sides have for a group; None is a side that declares none.

    Parameters
    ----------
    group : str
    ours, theirs : KvFormat or None

    Returns
    -------
    list of Difference
        In order of declaration; empty where nothing differs.
    ConversionPlan or None
        The lossless conversion that takes care of all of them, where there is one.
    str
        Why there is none; empty where none is wanted.
    """
    from hybridkv.formats.conversions import relation  # builds on what builds on formats

    if ours is None or theirs is None:
        told: tuple[Any, Any] = (ours and ours.namespace, theirs and theirs.namespace)
        undeclared = Difference(group, "format", *told, INCOMPATIBLE, "one side declares no format")
        return ([] if ours is theirs else [undeclared]), None, "no format"
    found = relation(ours, theirs)
    obstacle = "" if found.plan is not None else found.reason
    if found.compatibility is Compatibility.INCOMPATIBLE:
        obstacle = obstacle or "the bytes mean something else"
    listed = [
        Difference(group, f"format.{d.field}", d.ours, d.theirs, d.severity, "" if d.severity == COSMETIC else obstacle)
        for d in found.differences
    ]
    return listed, found.plan, found.reason


def worst_first(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return what stands in the way first, incompatible before convertible; else the order stays."""
    return tuple(sorted(differences, key=lambda d: (not d.reason, SEVERITIES.index(d.severity))))
