# SPDX-License-Identifier: Apache-2.0
"""The table of what kernels need, as `docs/alignment.md` has it: ``python alignment_table.py`` prints it."""

from __future__ import annotations

from hybridkv.alignment import KERNELS, KernelNeeds

HEAD = (
    "| kernel | GPU | base address | page stride | rows of a page | row stride | footer | elements | else |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def row(needs: KernelNeeds) -> str:
    """Return what one kernel needs as a row of Markdown."""
    stride = f"multiple of {needs.page_stride_multiple}" + (", no padding" if needs.adjacent_pages else "")
    rows = " or ".join(map(str, needs.page_rows)) or "any"
    any_row = f"multiple of {needs.row_multiple}" if needs.row_multiple > 1 else "any"
    of_row = " or ".join(map(str, needs.row_bytes)) or any_row
    packed = ", packed" if needs.packed_rows else ""
    footer = f"{needs.footer_row_bytes} a row" if needs.footer_row_bytes else "none"
    elements = ", ".join(needs.dtypes) or "any"
    cells = (
        f"`{needs.name}`",
        needs.gpu or "any",
        f"multiple of {needs.base_alignment}",
        stride,
        rows,
        of_row + packed,
    )
    return f"| {' | '.join((*cells, footer, elements, needs.effect))} |"


def table() -> str:
    """Return all of them, then where each is written down."""
    rows = [row(needs) for needs in KERNELS.values()]
    sources = [f"- `{needs.name}`: {needs.source}." for needs in KERNELS.values()]
    return "\n".join([HEAD, *rows, "", *sources])


if __name__ == "__main__":
    print(table())
