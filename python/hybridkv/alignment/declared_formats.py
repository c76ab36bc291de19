# SPDX-License-Identifier: Apache-2.0
"""What a group declares of its bytes against itself, and against the formats that a kernel is known to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridkv.alignment.checks import Violation
from hybridkv.alignment.needs import REFUSED, KernelNeeds
from hybridkv.errors import SpecError

if TYPE_CHECKING:
    from hybridkv.formats import KvFormat
    from hybridkv.group import CacheGroup

_ELSEWHERE = frozenset({"page_rows", "page_stride", "alignment", "footer_offset", "dtype", "schema"})
"""Fields that needs say themselves (rows of a page, element types that a kernel takes), or that a pool decides."""


def unread(needs: KernelNeeds, made: KvFormat | None) -> Violation | None:
    """Tell a declared field that no format has which a kernel is known to read.

    Parameters
    ----------
    needs : KernelNeeds
        Its `formats` are names of the registry; nothing is told where there are none, or one that is not registered.
    made : KvFormat or None
        What a group declares. What it does not declare is not guessed, and agrees with everything.

    Returns
    -------
    Violation or None
        Of the format that is nearest; a field in which all differ, where there is one.
    """
    from hybridkv.formats.registry import REGISTRY  # builds on what builds on alignment

    if (
        made is None
        or needs.effect != REFUSED
        or not needs.formats
        or any(name not in REGISTRY for name in needs.formats)
    ):
        return None
    has = made.declared()
    wrong: dict[str, list[str]] = {}
    for name in needs.formats:
        known = REGISTRY[name].format.declared()
        wrong[name] = [f for f in known if f not in _ELSEWHERE and f in has and has[f] != known[f]]
    nearest = min(wrong, key=lambda name: len(wrong[name]))
    if not wrong[nearest]:
        return None
    everywhere = (f for f in wrong[nearest] if all(f in fields for fields in wrong.values()))
    field = next(everywhere, wrong[nearest][0])
    expected = f"{REGISTRY[nearest].format.declared()[field]!r} ({nearest})"
    fix = "convert the rows, or take another kernel"
    return Violation(needs.name, f"format.{field}", expected, repr(has[field]), fix, needs.effect, needs.source)


def check_format(group: CacheGroup) -> None:
    """Refuse a group that contradicts its own format: sizes that both declare, and rows that its page does not hold.

    Raises
    ------
    SpecError
        Naming the field of the format, what the group has, and what the format has.
    """
    made = group.format
    if made is None:
        return
    for own, field in (("row_bytes", "row_bytes"), ("rows_per_page", "page_rows"), ("page_stride", "page_stride")):
        ours, theirs = getattr(group, own), getattr(made, field)
        if None not in (ours, theirs) and ours != theirs:
            raise SpecError(group.field_name(f"format.{field}"), f"{ours}, as the group's {own}", theirs)
    rows = made.page_rows or group.rows_per_page or 1
    for field in ("row_bytes", "row_stride"):
        size = getattr(made, field)
        if size is not None and rows * size > group.page_bytes:
            expected = f"{rows} rows within a page of {group.page_bytes} bytes"
            raise SpecError(group.field_name(f"format.{field}"), expected, size)
    if made.page_stride is not None and made.page_stride < group.page_bytes:
        expected = f"at least the page, {group.page_bytes} bytes"
        raise SpecError(group.field_name("format.page_stride"), expected, made.page_stride)
