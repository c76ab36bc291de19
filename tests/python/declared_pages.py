# SPDX-License-Identifier: Apache-2.0
"""Pages written and read by what a format declares, byte by byte: no row format and no kernel is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridkv.formats import KvFormat

ROWS = 8
SHARED = 128  # channels of one scale, so that coarser and finer tiles can both say it

_BITS = {"float8_e4m3": 8, "float4_e2m1": 4, "bfloat16": 16, "float32": 32}


@dataclass
class Content:
    """What rows say: bytes of each channel in the order of the model, and the scale of each, both without a place."""

    elements: list[list[bytes]]
    scales: list[list[tuple[float, int]]]


def drawn(rng: np.random.Generator, made: KvFormat) -> Content:
    """Content that a format can hold."""
    elements, scales = [], []
    widths = [_bytes_of(made, channel) for channel in range(_units(made))]
    for _ in range(ROWS):
        row = rng.bytes(4 * len(widths))
        elements.append([row[4 * channel : 4 * channel + width] for channel, width in enumerate(widths)])
        tiles = -(-_main(made) // SHARED)
        mantissa = 1.0 if made.scale_power_of_two else 1.25
        exponents = np.repeat(rng.integers(0, 7, tiles), SHARED)[: _main(made)]
        scales.append([(mantissa, int(exponent)) for exponent in exponents] if made.scale != "none" else [])
    return Content(elements, scales)


def _split(made: KvFormat) -> bool:
    return "rope" in str(made.channel_order).split("|")


def _main(made: KvFormat) -> int:
    return int(made.head_dim or 0) - (int(made.rope_dims or 0) if _split(made) else 0)


def _bytes_of(made: KvFormat, unit: int) -> int:
    dtype = made.rope_dtype if _split(made) and unit >= _main(made) else made.dtype
    return max(1, _BITS[str(dtype)] // 8)


def _units(made: KvFormat) -> int:
    """Channels; pairs of them where two share a byte."""
    return int(made.head_dim or 0) // (2 if made.dtype == "float4_e2m1" else 1)


def _order(made: KvFormat) -> list[int]:
    """Which channel of the model stands at each place of a row: pairs are (2k, 2k + 1) in the model."""
    order = list(range(_units(made)))
    if str(made.position_convention).endswith("halves") and made.rope_dims:
        last = order[-made.rope_dims :]
        order[-made.rope_dims :] = last[0::2] + last[1::2]
    return order


def _chunks(made: KvFormat, row: int, content: Content) -> dict[str, bytes]:
    placed = [content.elements[row][channel] for channel in _order(made)]
    cut = _main(made) if _split(made) else len(placed)
    name = "nope" if _split(made) else "all"
    found = {name: b"".join(placed[:cut]), "rope": b"".join(placed[cut:])}
    if made.scale != "none":
        found["scales"] = b"".join(_stored(made, scale) for scale in content.scales[row][:: made.tile])
    return found


def _stored(made: KvFormat, scale: tuple[float, int]) -> bytes:
    mantissa, exponent = scale
    if made.scale == "float32":
        return np.float32(mantissa * 2.0**exponent).tobytes()
    if made.scale == "e4m3":  # 4 bits of exponent with a bias of 7, 3 of mantissa
        return bytes([exponent + 7 << 3 | int((mantissa - 1) * 8)])
    assert mantissa == 1 and made.scale in ("ue8m0", "ue8m0x4")
    return bytes([exponent + 127])


def _value(made: KvFormat, stored: bytes) -> float:
    if made.scale == "float32":
        return float(np.frombuffer(stored, "<f4")[0])
    if made.scale == "e4m3":
        return float(2.0 ** ((stored[0] >> 3) - 7) * (1 + (stored[0] & 7) / 8))
    return float(2.0 ** (stored[0] - 127))


def _places(made: KvFormat, row: int, sizes: dict[str, int]) -> list[tuple[str, int]]:
    """First byte of each chunk of a row in its page; `sizes` of all chunks."""
    at, found = row * int(made.row_stride), []  # type: ignore[arg-type]  # declared, or there is nothing to read
    for name in str(made.channel_order).split("|"):
        if name == "scales" and made.scale_placement == "page_footer":
            apart = int(made.row_bytes) - int(made.row_stride)  # type: ignore[arg-type]
            found.append((name, int(made.footer_offset) + row * apart))  # type: ignore[arg-type]
            continue
        assert name != "scales" or made.scale_placement == "inline"
        found.append((name, at))
        at += sizes[name]
    return found


def _page(made: KvFormat, row: int) -> tuple[int, int]:
    return row // int(made.page_rows or 0), row % int(made.page_rows or 0)


def memory(rng: np.random.Generator, made: KvFormat) -> np.ndarray[Any, Any]:
    """Pages of anything, as far apart as declared, at an address that is a multiple of 4096."""
    count, least = -(-ROWS // int(made.page_rows or 1)), int(made.page_rows or 1) * int(made.row_bytes or 1)
    unit = int(made.alignment or 1)
    stride = made.page_stride or -(-least // unit) * unit
    raw = rng.integers(0, 256, count * stride + 8192, dtype=np.uint8)
    first = -raw.ctypes.data % 4096
    return raw[first : first + count * stride].reshape(count, stride)


def write(made: KvFormat, content: Content, pages: np.ndarray[Any, Any]) -> None:
    """Put content where a format says."""
    for row in range(ROWS):
        chunks = _chunks(made, row, content)
        page, within = _page(made, row)
        for name, at in _places(made, within, {name: len(chunk) for name, chunk in chunks.items()}):
            pages[page, at : at + len(chunks[name])] = np.frombuffer(chunks[name], np.uint8)


def read(made: KvFormat, pages: np.ndarray[Any, Any]) -> tuple[list[list[bytes]], list[list[float]]]:
    """Return elements and scales, channel by channel, from where a format says."""
    order, cut = _order(made), _main(made) if _split(made) else _units(made)
    widths = [_bytes_of(made, place) for place in range(_units(made))]
    tiles = _main(made) // int(made.tile or 1)
    per = {"float32": 4}.get(str(made.scale), 1)
    sizes = {"nope": sum(widths[:cut]), "all": sum(widths), "rope": sum(widths[cut:]), "scales": tiles * per}
    elements, scales = [], []
    for row in range(ROWS):
        page, within = _page(made, row)
        chunks = {name: pages[page, at : at + sizes[name]].tobytes() for name, at in _places(made, within, sizes)}
        stored = chunks.get("nope", chunks.get("all", b"")) + chunks.get("rope", b"")
        found: list[bytes] = [b""] * len(order)
        at = 0
        for place, channel in enumerate(order):
            found[channel] = stored[at : at + widths[place]]
            at += widths[place]
        elements.append(found)
        kept = chunks.get("scales", b"")
        values = [_value(made, kept[i * per : i * per + per]) for i in range(tiles)] if made.scale != "none" else []
        scales.append([value for value in values for _ in range(int(made.tile or 1))])
    return elements, scales


def values_of(content: Content) -> tuple[list[list[bytes]], list[list[float]]]:
    """What a reader must find."""
    return content.elements, [[m * 2.0**e for m, e in row] for row in content.scales]


def laid_out(made: KvFormat, rng: np.random.Generator) -> KvFormat:
    """Give a format other places: pages, strides, order of parts, scales inline or behind the rows; all of it fits."""
    parts = str(made.channel_order).split("|")
    inline = made.scale == "none" or bool(rng.integers(2))
    if made.scale != "none":
        others = [name for name in parts if name != "scales"]
        rng.shuffle(others)
        parts = [*others, "scales"] if not inline else [str(name) for name in rng.permutation([*others, "scales"])]
    rows, row_bytes = int(rng.choice([1, 2, 4, 8])), int(made.row_bytes or 0) + int(rng.choice([0, 0, 0, 8]))
    per = {"float32": 4}.get(str(made.scale), 1)
    data = row_bytes if inline else (made.row_stride or 0) if made.scale_placement == "page_footer" else row_bytes
    if not inline and made.scale_placement == "inline":
        data = int(made.row_bytes or 0) - _main(made) // int(made.tile or 1) * per
    alignment = int(rng.choice([1, 16, 64]))
    multiple = int(np.lcm(alignment, rng.choice([1, 1, 64, 576])))
    return replace(
        made,
        channel_order="|".join(parts),
        scale_placement=None if made.scale == "none" else "inline" if inline else "page_footer",
        row_bytes=row_bytes,
        row_stride=data,
        footer_offset=None if inline else rows * data,
        page_rows=rows,
        alignment=alignment,
        page_stride=-(-rows * row_bytes // multiple) * multiple,
    )
