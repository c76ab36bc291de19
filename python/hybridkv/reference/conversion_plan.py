# SPDX-License-Identifier: Apache-2.0
"""Whether rows of one format can be written in another without loss, and by which steps: from the formats alone.

A conversion only moves bytes, but for two things that keep every value: a scale that is a power of two has a float32
and a UE8M0 form, and a tile's scale may stand once for the tile or once for each part of it. So what decides is what
the bytes of a row mean; where they lie, in the row, in the page, from page to page, is free.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridkv.errors import KernelContract
from hybridkv.reference.quantise import ELEMENT_BITS
from hybridkv.reference.row_format import Part, RowFormat

_TWO_FORMS = {"float32", "ue8m0"}  # encodings in which a power of two can stand

_AS_WRITTEN = {
    "hadamard": "rows are mixed before they are quantised",
    "first_rounded_to": "values were rounded when they were written",
}


@dataclass(frozen=True)
class ConversionStep:
    """One thing that a conversion changes.

    Parameters
    ----------
    name : {"pages", "strides", "placement", "scales", "tiles", "pairs"}
        Rows of a page; alignment and distance of pages; where a row's bytes lie, such as scales inline or in the
        footer; encoding of scales; channels that share a scale; order of rotated channels.
    field : str
        Of the :class:`~hybridkv.reference.RowFormat`.
    source, target : object
        Its two values.
    checked : bool
        Whether the bytes decide: each scale must have the form that is asked for.
    """

    name: str
    field: str
    source: object
    target: object
    checked: bool = False


@dataclass(frozen=True)
class Obstacle:
    """One reason why no conversion is lossless.

    Parameters
    ----------
    field : str
        Of the :class:`~hybridkv.reference.RowFormat`.
    source, target : object
        Its two values.
    reason : str
        Why one cannot become the other.
    """

    field: str
    source: object
    target: object
    reason: str


@dataclass(frozen=True)
class ConversionPlan:
    """What stands between two formats.

    Parameters
    ----------
    source, target : RowFormat
        What is there, and what is wanted.
    steps : tuple of ConversionStep
        All that differs and can be changed; none where the bytes can stay where they are.
    obstacles : tuple of Obstacle
        All that differs and cannot.
    """

    source: RowFormat
    target: RowFormat
    steps: tuple[ConversionStep, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def lossless(self) -> bool:
        """Whether there is a way; bytes may still refuse where a step is checked."""
        return not self.obstacles

    @property
    def checked(self) -> bool:
        """Whether the bytes decide, too."""
        return any(step.checked for step in self.steps)

    def require_lossless(self) -> None:
        """Refuse formats between which there is no way, with a :class:`KernelContract` that tells every reason."""
        if self.obstacles:
            reasons = "; ".join(f"{o.field}: {o.source} to {o.target}: {o.reason}" for o in self.obstacles)
            raise KernelContract("target", f"a format that rows of {self.source.name} can take on", reasons)


def plan_conversion(source: RowFormat, target: RowFormat) -> ConversionPlan:
    """Tell whether rows can change their format without loss, and what has to be done.

    Parameters
    ----------
    source, target : RowFormat
        What is there, and what is wanted. Names do not count.

    Returns
    -------
    ConversionPlan
        With steps, or with every obstacle.

    Raises
    ------
    KernelContract
        An argument that is no RowFormat.

    Examples
    --------
    >>> from hybridkv.reference import published
    >>> plan = plan_conversion(published.INDEXER_FP8, published.INDEXER_FP8_UE8M0.paged(256))
    >>> [step.name for step in plan.steps], plan.lossless, plan.checked
    (['pages', 'scales', 'tiles'], True, True)
    >>> [o.field for o in plan_conversion(published.INDEXER_FP8, published.INDEXER_MXFP4).obstacles]
    ['hadamard', 'parts[all].element', 'parts[all].scale.floor']
    """
    for name, given in (("source", source), ("target", target)):
        if not isinstance(given, RowFormat):
            raise KernelContract(name, "a RowFormat", given)
    found = _Findings(source, target)
    found.pages()
    found.writing()
    found.parts()
    found.pairs()
    return ConversionPlan(source, target, tuple(found.steps), tuple(found.obstacles))


class _Findings:
    """Steps and obstacles, collected."""

    def __init__(self, source: RowFormat, target: RowFormat) -> None:
        self.source, self.target = source, target
        self.steps: list[ConversionStep] = []
        self.obstacles: list[Obstacle] = []

    def pages(self) -> None:
        """Compare what is free: pages and places."""
        source, target = self.source, self.target
        if source.page_rows != target.page_rows:
            self._step("pages", "page_rows", source.page_rows, target.page_rows)
        if (source.base_alignment, source.stride_multiple) != (target.base_alignment, target.stride_multiple):
            self._step("strides", "stride_unit", source.stride_unit, target.stride_unit)
        if source.data_bytes != target.data_bytes:
            self._step("placement", "data_bytes", source.data_bytes, target.data_bytes)
        elif source.row_bytes != target.row_bytes:
            self._step("placement", "row_bytes", source.row_bytes, target.row_bytes)
        elif _places(source) != _places(target):
            self._step("placement", "parts", _places(source), _places(target))

    def writing(self) -> None:
        """Compare what was done before a byte was written."""
        for field, reason in _AS_WRITTEN.items():
            self._same(field, getattr(self.source, field), getattr(self.target, field), reason)

    def parts(self) -> None:
        """Compare channels, part by part."""
        ours, theirs = self.source.parts, self.target.parts
        widths, others = (tuple(part.channels for part in parts) for parts in (ours, theirs))
        self._same("parts", widths, others, "parts of a row are taken one by one")
        if widths != others:
            return
        for part, other in zip(ours, theirs, strict=True):
            where = f"parts[{part.name}]"
            self._same(f"{where}.element", part.element, other.element, "values would be rounded again")
            self._scales(where, part, other)

    def _scales(self, where: str, part: Part, other: Part) -> None:
        rule, wanted = part.scale, other.scale
        if rule is None or wanted is None:
            self._same(f"{where}.scale", rule, wanted, "elements would be rounded again")
            return
        derived = "it decides bytes when a scale is derived"
        self._same(f"{where}.scale.floor", rule.floor, wanted.floor, derived)
        self._same(f"{where}.scale.power_of_two", rule.power_of_two, wanted.power_of_two, derived)
        if rule.encoding != wanted.encoding:
            forms = f"{where}.scale.encoding", rule.encoding, wanted.encoding
            if {rule.encoding, wanted.encoding} == _TWO_FORMS:
                self._step("scales", *forms, checked=True)
            else:
                self._obstacle(*forms, "scales of one have no form in the other")
        tile, other_tile = part.tile or 1, other.tile or 1
        if max(tile, other_tile) % min(tile, other_tile):
            self._obstacle(f"{where}.tile", tile, other_tile, "one tile does not divide the other")
        elif tile != other_tile:
            self._step("tiles", f"{where}.tile", tile, other_tile, checked=tile < other_tile)

    def pairs(self) -> None:
        """Compare the order of rotated channels."""
        source, target = self.source, self.target
        self._same("rope_dims", source.rope_dims, target.rope_dims, "both declare which channels are rotated, or none")
        if source.interleaved == target.interleaved or source.rope_dims != target.rope_dims:
            return
        field = "interleaved", source.interleaved, target.interleaved
        if source.hadamard or target.hadamard:
            self._obstacle(*field, "rotated channels are mixed with all others")
        elif max(source.parts[-1].channels, target.parts[-1].channels) < source.rope_dims:
            self._obstacle(*field, "rotated channels lie in more than one part")
        elif ELEMENT_BITS[source.parts[-1].element] < 8:
            self._obstacle(*field, "elements are smaller than a byte")
        elif _shared_tile(source, target) < source.rope_dims:
            self._obstacle(*field, "channels would change to a tile of another scale")
        else:
            self._step("pairs", *field)

    def _same(self, field: str, ours: object, theirs: object, reason: str) -> None:
        if ours != theirs:
            self._obstacle(field, ours, theirs, reason)

    def _obstacle(self, field: str, ours: object, theirs: object, reason: str) -> None:
        self.obstacles.append(Obstacle(field, ours, theirs, reason))

    def _step(self, name: str, field: str, ours: object, theirs: object, *, checked: bool = False) -> None:
        self.steps.append(ConversionStep(name, field, ours, theirs, checked))


def _places(row: RowFormat) -> tuple[int | None, ...]:
    return tuple(place for part in row.parts for place in (part.offset, part.scale_offset))


def _shared_tile(*formats: RowFormat) -> int:
    """Return how many of the last channels share one scale: the larger tile, whose scales are equal in the other."""
    return max(row.parts[-1].tile or row.channels for row in formats)
