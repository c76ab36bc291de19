# SPDX-License-Identifier: Apache-2.0
"""What the kernels can make of a declared format: the row format that it names, and whether one becomes another.

A difference that :mod:`hybridkv.formats` calls convertible is one of arrangement. Whether something converts it is
another question, answered here and nowhere else: where :func:`hybridkv.ops.plan_conversion` finds a lossless way, and
every difference between the two declarations is one that both row formats express. So a plan of formats that differ has
a step for each difference, and never none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats.format_entry import APPLIES, BY_DEPLOYMENT, BY_MODEL
from hybridkv.formats.kv_format import KvFormat, compatible
from hybridkv.formats.severity import COSMETIC, INCOMPATIBLE, Compatibility, FieldDiff
from hybridkv.reference.conversion_plan import ConversionPlan, plan_conversion
from hybridkv.reference.quantise import ELEMENT_BITS, ScaleRule
from hybridkv.reference.row_format import Part, RowFormat

_ENCODINGS = {"float32": "float32", "ue8m0": "ue8m0", "ue8m0x4": "ue8m0", "e4m3": "float8_e4m3"}
_PAIRS = {"interleaved": True, "halves": False}

PLANNED = frozenset(
    {
        *("page_rows", "page_stride", "alignment", "footer_offset", "row_stride", "row_bytes"),
        *("scale_placement", "channel_order", "scale", "tile", "position_convention"),
    }
)
"""Fields that a row format expresses, so that a plan between two row formats accounts for a difference in them."""

_OF_ROWS = frozenset({*APPLIES["rows"], *BY_MODEL, *BY_DEPLOYMENT, "schema"})
_OF_ARRAYS = ("page_stride", "alignment")  # read off the arrays where they are not declared


@dataclass(frozen=True)
class Relation:
    """What a reader can do with the bytes of a writer, and how.

    Parameters
    ----------
    compatibility : Compatibility
        EXACT; CONVERTIBLE: by ``plan``, or by nothing that is here where that is None; INCOMPATIBLE.
    differences : tuple of FieldDiff
        Every field in which they differ, cosmetic ones too.
    plan : ConversionPlan or None
        A lossless way through :func:`hybridkv.ops.convert`.
    reason : str
        Why there is no plan, where one was wanted; else empty.
    """

    compatibility: Compatibility
    differences: tuple[FieldDiff, ...]
    plan: ConversionPlan | None
    reason: str

    @property
    def decisive(self) -> FieldDiff | None:
        """The first difference of the worst severity; None where none counts."""
        counted = [d for d in self.differences if d.severity != COSMETIC]
        worst = [d for d in counted if d.severity == INCOMPATIBLE]
        return next(iter(worst or counted), None)


def relation(reader: KvFormat, writer: KvFormat) -> Relation:
    """Tell what a reader can do with the bytes of a writer, conversion by the kernels included.

    Parameters
    ----------
    reader, writer : KvFormat
        The format that is needed, and the one that the bytes were written in.

    Returns
    -------
    Relation
        With a plan wherever one exists, also where :func:`compatible` says INCOMPATIBLE by the fields alone: a scale
        that is a power of two is the same in float32 and in UE8M0. Such a plan is ``checked`` against the bytes.

    Raises
    ------
    ArgumentError
        An argument that is no KvFormat.

    Examples
    --------
    >>> from hybridkv.formats import REGISTRY
    >>> packed, padded = REGISTRY["indexer_fp8"].format, REGISTRY["indexer_fp8_padded"].format
    >>> found = relation(packed, padded)
    >>> found.compatibility.name, [step.name for step in found.plan.steps]
    ('CONVERTIBLE', ['strides'])
    """
    told = compatible(reader, writer)
    differences = tuple(reader.diff(writer))
    if told is Compatibility.EXACT:
        return Relation(told, differences, None, "")
    plan, reason = _planned(reader, writer, differences)
    if plan is not None:
        return Relation(Compatibility.CONVERTIBLE, differences, plan, "")
    return Relation(told, differences, None, reason)


def row_format_of(made: KvFormat) -> RowFormat | None:
    """Return what the kernels call rows of a format.

    Parameters
    ----------
    made : KvFormat
        Any.

    Returns
    -------
    RowFormat or None
        None where it does not declare enough (nothing is guessed), declares what a row format does not express, such as
        rows that are padded or a footer elsewhere than behind the rows, or has no such form: rows in two pools, rows
        by eights, pages by heads, states, one scale for a whole tensor.

    Raises
    ------
    ArgumentError
        No KvFormat.
    """
    if not isinstance(made, KvFormat):
        raise ArgumentError("made", "a KvFormat", made)
    if made.kv_order != "shared" or made.row_order != "plain" or made.pool_split != "one" or made.hadamard is None:
        return None
    if not made.declared().keys() <= _OF_ROWS or made.local_heads not in (None, 1):
        return None
    if made.dtype not in ELEMENT_BITS or not made.row_bytes or not made.page_rows or not made.head_dim:
        return None
    try:
        parts = _parts(made)
        row = None if parts is None else _row(made, parts)
    except SpecError:  # declared fields that do not fit together
        return None
    return row if row is not None and _expresses(row, made) else None


def _row(made: KvFormat, parts: tuple[Part, ...]) -> RowFormat:
    pairs = _pairs(made.position_convention)
    row = RowFormat(
        made.layout,
        made.row_bytes or 0,
        parts,
        page_rows=made.page_rows or 0,
        base_alignment=made.alignment or 1,
        hadamard=bool(made.hadamard),
        first_rounded_to="bfloat16" if made.quantiser_input == "bfloat16" else None,
        rope_dims=0 if pairs is None else made.rope_dims or 0,
        interleaved=pairs if made.rope_dims else None,
    )
    if made.scale_placement == "page_footer":
        row = row.with_footer()
    return replace(row, stride_multiple=made.page_stride) if made.page_stride else row


def _parts(made: KvFormat) -> tuple[Part, ...] | None:
    """Return the parts of a row in the order of its channels, each at the byte where the declared order puts it."""
    order = (made.channel_order or "").split("|")
    split = "rope" in order
    rope = (made.rope_dims or 0) if split else 0
    if (split and not rope) or made.rope_dtype not in (ELEMENT_BITS if split else (None, made.dtype)):
        return None
    rule = None
    if made.scale != "none":
        encoding = _ENCODINGS.get(made.scale or "")
        if encoding is None or not made.scale_floor or made.scale_power_of_two is None or not made.tile:
            return None
        rule = ScaleRule(encoding, made.scale_floor, made.scale_power_of_two)
    main = (made.head_dim or 0) - rope
    name = "nope" if split else "all"
    sizes = {
        name: main * ELEMENT_BITS[made.dtype] // 8,
        "rope": rope * ELEMENT_BITS[made.rope_dtype or made.dtype] // 8,
        "scales": 0 if rule is None else main // (made.tile or 1) * rule.scale_bytes,
    }
    if set(order) != {part for part, size in sizes.items() if size}:
        return None
    if made.scale == "ue8m0x4" and sizes["scales"] % 4:  # no whole words
        return None
    at = {part: sum(sizes[before] for before in order[:place]) for place, part in enumerate(order)}
    scales = {} if rule is None else {"scale": rule, "tile": made.tile, "scale_offset": at["scales"]}
    parts = [Part(name, main, made.dtype, at[name], **scales)]  # type: ignore[arg-type]
    if split:
        parts.append(Part("rope", rope, made.rope_dtype or "", at["rope"]))
    return tuple(parts)


def _expresses(row: RowFormat, made: KvFormat) -> bool:
    """Say whether a row format has every place that is declared, at the byte where it is declared."""
    said = _said_by(row)
    return all(
        said[field] == _in_its_words(field, value) or (value is None and field in _OF_ARRAYS)
        for field, value in ((field, getattr(made, field)) for field in PLANNED)
    )


def _said_by(row: RowFormat) -> dict[str, object]:
    """Return what a row format says of each planned field, None where it has no such thing."""
    main = row.parts[0]
    names = [(part.offset, part.name) for part in row.parts]
    names += [(part.scale_offset or 0, "scales") for part in row.parts if part.scale is not None]
    return {
        "page_rows": row.page_rows,
        "page_stride": row.page_stride,
        "alignment": row.base_alignment,
        "footer_offset": row.footer_offset if row.footer_bytes else None,
        "row_stride": row.data_bytes,
        "row_bytes": row.row_bytes,
        "scale_placement": None if main.scale is None else "page_footer" if row.footer_bytes else "inline",
        "channel_order": "|".join(name for _, name in sorted(names)),
        "scale": "none" if main.scale is None else main.scale.encoding,
        "tile": main.tile,
        "position_convention": row.interleaved,
    }


def _in_its_words(field: str, value: Any) -> object:
    """Return a declared value as :func:`_said_by` says it: of a convention the pairs, of scales their encoding."""
    if field == "position_convention":
        return _pairs(value)
    return _ENCODINGS.get(value, value) if field == "scale" else value


def _pairs(convention: str | None) -> bool | None:
    """Say which rotated channels are pairs, where a convention ends in the word for it."""
    return _PAIRS.get((convention or "").rpartition("_")[2])


def _planned(
    reader: KvFormat, writer: KvFormat, differences: tuple[FieldDiff, ...]
) -> tuple[ConversionPlan | None, str]:
    counted = [d for d in differences if d.severity != COSMETIC]
    beyond = [d.field for d in counted if d.field not in PLANNED or not _same_but_pairs(d)]
    if beyond:
        return None, f"no converter for {', '.join(beyond)}"
    source, target = row_format_of(writer), row_format_of(reader)
    if source is None or target is None:
        return None, "no converter: the declared fields make no row format of the kernels"
    there, wanted = _said_by(source), _said_by(target)
    if untold := [d.field for d in counted if not _accounted(d, there, wanted)]:
        return None, f"no converter for {', '.join(untold)}"
    plan = plan_conversion(source, target)
    if plan.lossless:
        return plan, ""
    return None, "; ".join(f"{o.field}: {o.reason}" for o in plan.obstacles)


def _accounted(difference: FieldDiff, there: dict[str, object], wanted: dict[str, object]) -> bool:
    """Say whether two row formats differ in a field just as the declared formats do, both of which declare it."""
    field, ours, theirs = difference.field, difference.ours, difference.theirs
    told = _in_its_words(field, theirs), _in_its_words(field, ours)
    return told == (there[field], wanted[field]) and told[0] != told[1]


def _same_but_pairs(difference: FieldDiff) -> bool:
    """Of position conventions, whether they differ in the pairs alone: kernels reorder pairs, and rotate nothing."""
    if difference.field != "position_convention":
        return True
    sides = [str(side).rpartition("_") for side in (difference.ours, difference.theirs)]
    return sides[0][:2] == sides[1][:2] and all(side[2] in _PAIRS for side in sides)
