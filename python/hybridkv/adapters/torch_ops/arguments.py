# SPDX-License-Identifier: Apache-2.0
"""What a schema of torch cannot hold, layouts, rotary embeddings and row formats, as numbers and text, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple
from functools import lru_cache
from typing import Any

from hybridkv.errors import KernelContract, SpecError
from hybridkv.page_rows import PageRows
from hybridkv.reference.published import PUBLISHED
from hybridkv.reference.quantise import ScaleRule
from hybridkv.reference.rotary import Rope, Yarn
from hybridkv.reference.row_format import Part, RowFormat

_DEFAULT = -1  # of a number of a layout

_YARN = ("yarn_factor", "yarn_original_positions", "yarn_beta_fast", "yarn_beta_slow", "yarn_truncate")


def schema_arguments(
    *, layout: PageRows | None = None, rope: Rope | None = None, row_format: RowFormat | None = None
) -> dict[str, Any]:
    """Return arguments of ``hk.ops`` as those that the ops of torch have in their place.

    Parameters
    ----------
    layout : PageRows, optional
    rope : Rope, optional
    row_format : RowFormat, optional

    Returns
    -------
    dict
        Keyword arguments; made once and outside of what is compiled.

    Examples
    --------
    >>> import hybridkv as hk
    >>> from hybridkv.adapters.torch_ops import schema_arguments
    >>> schema_arguments(layout=hk.ops.PageRows(64, 576, footer_bytes=8))
    {'layout': [64, 576, -1, 8, -1]}
    >>> schema_arguments(row_format=hk.reference.PUBLISHED["fp8_ds_mla"])
    {'row_format': 'fp8_ds_mla'}
    """
    made: dict[str, Any] = {}
    if layout is not None:
        made["layout"] = [_DEFAULT if number is None else number for number in astuple(layout)]
    if rope is not None:
        made |= {"rope_dims": rope.dims, "rope_theta": float(rope.theta), "rope_interleaved": rope.interleaved}
        if rope.yarn is not None:
            made |= dict(zip(_YARN, astuple(rope.yarn), strict=True))
    if row_format is not None:
        published = PUBLISHED.get(row_format.name) == row_format
        made["row_format"] = row_format.name if published else json.dumps(asdict(row_format))
    return made


def layout_of(numbers: Sequence[int] | None) -> PageRows | None:
    """Return the layout of its numbers."""
    return None if numbers is None else _layout_of(tuple(numbers))


@lru_cache(maxsize=64)
def _layout_of(numbers: tuple[int, ...]) -> PageRows:
    if not 2 <= len(numbers) <= 5:
        raise KernelContract("layout", "2 to 5 numbers, as the fields of PageRows", list(numbers))
    return PageRows(*numbers[:2], *(None if number == _DEFAULT else number for number in numbers[2:]))


@lru_cache(maxsize=64)
def rope_of(
    dims: int, theta: float, interleaved: bool, factor: float | None, positions: int, fast: float, slow: float,
    truncate: bool,
) -> Rope | None:  # fmt: skip
    """Return the rotary embedding of its numbers; 0 dims: none."""
    if dims == 0:
        return None
    try:
        yarn = None if factor is None else Yarn(factor, positions, fast, slow, truncate)
        return Rope(dims, theta, yarn, interleaved)
    except SpecError as error:
        raise KernelContract(error.field, error.expected, error.got) from error


@lru_cache(maxsize=64)
def row_format_of(text: str) -> RowFormat:
    """Return the row format of a published name, or of the text that :func:`schema_arguments` made of one."""
    if text in PUBLISHED:
        return PUBLISHED[text]
    try:
        fields = json.loads(text)
        parts = tuple(
            Part(**part | {"scale": None if part["scale"] is None else ScaleRule(**part["scale"])})
            for part in fields["parts"]
        )
        return RowFormat(**fields | {"parts": parts})
    except SpecError as error:
        raise KernelContract(error.field, error.expected, error.got) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # RecursionError: nested without end
        expected = f"one of {sorted(PUBLISHED)}, or the text of schema_arguments(row_format=)"
        raise KernelContract("row_format", expected, text) from error
