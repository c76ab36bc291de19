# SPDX-License-Identifier: Apache-2.0
"""One named format: what its layout declares, and who decides what it leaves open. Nothing is left out unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hybridkv.coverage import positive_int
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats.kv_format import KvFormat
from hybridkv.frozen_mapping import FrozenMapping

if TYPE_CHECKING:
    from hybridkv.reference.row_format import RowFormat

_PLACES = ("row_bytes", "row_stride", "page_rows", "page_stride", "alignment")
_SCALES = ("scale", "tile", "scale_placement", "scale_floor", "scale_power_of_two", "quantiser_input")
_ROTATION = ("rope_dims", "rope_dtype", "rope_rounding", "position_convention")

APPLIES: Mapping[str, tuple[str, ...]] = {
    "rows": (
        *("layout", "dtype", *_SCALES, *_ROTATION, *_PLACES, "footer_offset", "head_dim", "channel_order"),
        *("row_order", "kv_order", "pool_split", "hadamard", "overlap", "rounding_point"),
        *("softmax_rounding", "bias_rounding", "projection_dtype"),
    ),
    "paged": (
        *("layout", "dtype", "scale", "position_convention", *_PLACES, "head_dim"),
        *("kv_order", "head_layout", "row_order", "pool_split"),
    ),
    "compressor": (
        *("layout", "dtype", "state_format", "bias_added", "overlap", "half_order", "head_dim", "ring_rows"),
        *("row_bytes", "gate_dtype", "bias_rounding", "projection_dtype"),
    ),
    "recurrent": (
        *("layout", "dtype", "state_format", "row_bytes"),
        *("conv_dtype", "conv_order", "conv_rows", "matrix_order"),
    ),
}
"""Kinds of entries and the fields that mean something for one: rows of a latent or an indexer; pages of keys and
values by heads; rolling state of a compressor; state of a recurrent layer. Of a model and of a deployment beside."""

BY_MODEL = ("theta", "yarn", "norm_eps", "ratio", "roles", "family", "model", "weights", "total_heads")
"""Fields that the model decides."""

BY_DEPLOYMENT = (
    *("shard", "local_heads", "dcp_interleave", "spec_width", "gpu_family"),
    *("kernel_version", "producer", "producer_version"),
)
"""Fields that are decided by who runs the engine, on what, and in which version."""


@dataclass(frozen=True)
class FormatEntry:
    """One named format.

    Parameters
    ----------
    name : str
        Unique in a registry.
    kind : str
        One of :data:`APPLIES`.
    format : KvFormat
        Every field that the layout decides; pages are of 64 rows where it declares any.
    used_by : tuple of str
        Engines that write it.
    says : str
        What a row, a page or a state is, in one line.
    leaves_open : mapping of str to str
        Fields that apply and are not declared, each with who decides it.
    stride_multiple : int
        What the distance between pages is a multiple of, beside their alignment.

    Raises
    ------
    SpecError
        A field that applies is neither declared nor left open, or is both; or one is declared that does not apply.
    """

    name: str
    kind: str
    format: KvFormat
    used_by: tuple[str, ...]
    says: str
    leaves_open: Mapping[str, str] = field(default_factory=dict, hash=False)
    stride_multiple: int = 1

    def __post_init__(self) -> None:
        where = f"registry[{self.name!r}]"
        object.__setattr__(self, "leaves_open", FrozenMapping(self.leaves_open.items()))
        if self.kind not in APPLIES:
            raise SpecError(f"{where}.kind", f"one of {', '.join(APPLIES)}", self.kind)
        applies = set(APPLIES[self.kind]) - _void(self.format)
        has = set(self.format.declared()) - {"schema"}
        if missing := sorted(applies - has - set(self.leaves_open)):
            raise SpecError(where, "every field declared, or left open to somebody", ", ".join(missing))
        if both := sorted(has & set(self.leaves_open)):
            raise SpecError(where, "a field declared or left open", ", ".join(both))
        if more := sorted((has | set(self.leaves_open)) - applies - {*BY_MODEL, *BY_DEPLOYMENT}):
            raise SpecError(where, f"fields that mean something for {self.kind}", ", ".join(more))

    def declare(self, *names: str) -> KvFormat:
        """Return a format of this entry's layout and dtype that declares just these fields more.

        For a description that keeps a fingerprint made before other fields were there.

        Parameters
        ----------
        *names : str
            Fields that the entry declares.

        Raises
        ------
        ArgumentError
            A field that it does not.
        """
        has = self.format.declared()
        for name in names:
            if name not in has:
                raise ArgumentError("names", f"fields that {self.name!r} declares", name)
        chosen: dict[str, object] = {name: has[name] for name in names}
        return KvFormat(self.format.layout, self.format.dtype, **chosen)  # type: ignore[arg-type]

    def paged(self, page_rows: int) -> KvFormat:
        """Return the format in pages of another number of rows.

        Parameters
        ----------
        page_rows : int
            Rows of a page.

        Raises
        ------
        SpecError
            Below 1; an entry that declares no pages.
        """
        rows = positive_int("page_rows", page_rows)
        own = self.format
        if own.page_rows is None or own.row_bytes is None:
            raise SpecError("page_rows", f"an entry that declares its pages, not {self.name!r}", rows)
        stride = -(-rows * own.row_bytes // self.stride_multiple) * self.stride_multiple
        footer = None if own.footer_offset is None else rows * (own.row_stride or 0)
        return replace(own, page_rows=rows, page_stride=stride, footer_offset=footer)

    def row_format(self) -> RowFormat | None:
        """Return what the kernels call the same rows; None where they have none."""
        from hybridkv.formats.conversions import row_format_of  # builds on what builds on formats

        return row_format_of(self.format)


def _void(made: KvFormat) -> set[str]:
    """Return fields that other fields make void: scales of what has none, a rotation of nothing, no footer."""
    void: set[str] = set()
    if made.scale == "none":
        void |= set(_SCALES) - {"scale"}
    if made.rope_dims == 0:
        void |= set(_ROTATION) - {"rope_dims"}
    if made.scale_placement != "page_footer":
        void.add("footer_offset")
    if made.overlap is False:
        void.add("half_order")
    return void
