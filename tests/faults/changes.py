# SPDX-License-Identifier: Apache-2.0
"""Changes of the rows of one place: (rows, place, context) -> other rows, or None where the place is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from .fault import Change, Context, State, as_bytes, from_bytes

Rows: TypeAlias = torch.Tensor


def gone(rows: Rows, place: Any, context: Context) -> Rows | None:
    """Say that the place holds nothing."""
    return None


def zero(rows: Rows, place: Any, context: Context) -> Rows:
    """Return memory that nobody wrote."""
    return torch.zeros_like(rows)


def taken(source: Callable[[Context], State | None]) -> Change:
    """Take the place's rows from another state; where it has none, the place is gone."""

    def change(rows: Rows, place: Any, context: Context) -> Rows | None:
        other = source(context)
        return rows if other is None else other.get(place)

    return change


def foreign(context: Context) -> State | None:
    """Return another request's state."""
    return context.foreign


def earlier(tokens: int) -> Callable[[Context], State | None]:
    """Return the state of so many tokens ago, ahead if negative."""
    return lambda context: context.earlier(tokens)


def window_ago(context: Context) -> State | None:
    """Return the state of one whole window ago."""
    return context.earlier(context.window_tokens())


def own_window_ago(rows: Rows, place: Any, context: Context) -> Rows | None:
    """Take the rows of one window of the place's own group ago: as many rows, of the window before."""
    every = getattr(context.layout.groups[place.group].coverage, "every", None)
    other = context.earlier(every or context.window_tokens())
    return rows if other is None else other.get(place)


def conformed(source: Callable[[Context], State | None]) -> Change:
    """Take rows from another state, brought to the right number: cut, or followed by zeros."""

    def change(rows: Rows, place: Any, context: Context) -> Rows:
        other = source(context)
        if other is None:
            return rows
        return fitted(other.get(place), rows)

    return change


def fitted(other: Rows | None, like: Rows) -> Rows:
    """Bring rows to the number that is wanted: surplus ones are cut, missing ones are memory nobody wrote."""
    made = torch.zeros_like(like)
    if other is not None:
        count = min(other.shape[0], like.shape[0])
        made[:count] = other[:count]
    return made


def rolled(count: int) -> Change:
    """Move rows round by so many."""
    return lambda rows, place, context: torch.roll(rows, count, dims=0)


def shifted(count: int) -> Change:
    """Move rows up by so many; zeros come in."""

    def change(rows: Rows, place: Any, context: Context) -> Rows:
        moved = torch.zeros_like(rows)
        moved[count:] = rows[:-count]
        return moved

    return change


def newest_first(rows: Rows, place: Any, context: Context) -> Rows:
    """Read a ring from the wrong end."""
    return rows.flip(0)


def longer_ring(rows_of_ring: int) -> Change:
    """Read the last closed window where a shorter ring has it, of a ring of so many rows: rows p mod that number."""

    def change(rows: Rows, place: Any, context: Context) -> Rows | None:
        window = rows.shape[0]
        if window == 0 or rows_of_ring % (4 * window):
            return rows
        half = rows_of_ring // 2
        first = (context.tokens // window - 1) * window  # its first token
        if first % rows_of_ring < half or first < half:
            return rows  # both rings have it in the same rows
        return taken(lambda it: it.at(first - half + window))(rows, place, context)

    return change


def ring_in_reference_order(rows: Rows, place: Any, context: Context) -> Rows | None:
    """Look for the last closed window in the first rows of a ring p mod 2r, as where it is copied down each time.

    There it is every other time. Between boundaries the first rows then are of the open window, in a form that the
    state has not; at one they are of the window before.
    """
    window = rows.shape[0]
    if window == 0 or context.tokens % window or context.tokens // window % 2 or context.tokens < 2 * window:
        return rows
    return taken(earlier(window))(rows, place, context)


def without_last(count: int) -> Change:
    """Leave the last rows out."""
    return lambda rows, place, context: rows[:-count].clone()


def without_first(rows: Rows, place: Any, context: Context) -> Rows:
    """Leave the oldest row out."""
    return rows[1:].clone()


def without_middle(rows: Rows, place: Any, context: Context) -> Rows:
    """Leave a row in the middle out; those behind it move up."""
    middle = rows.shape[0] // 2
    return torch.cat([rows[:middle], rows[middle + 1 :]])


def middle_repeated(rows: Rows, place: Any, context: Context) -> Rows:
    """Leave a row in the middle out and repeat the last, so that the number is right."""
    return torch.cat([without_middle(rows, place, context), rows[-1:]])


def one_more(rows: Rows, place: Any, context: Context) -> Rows:
    """Hold the last row twice."""
    return torch.cat([rows, rows[-1:]])


def zero_row(index: int) -> Change:
    """Zero one row, counted from the end if negative."""

    def change(rows: Rows, place: Any, context: Context) -> Rows:
        made = rows.clone()
        made[index] = 0
        return made

    return change


def block_rows(place: Any, context: Context) -> int:
    """Return how many rows a block of the place's group has; 1 for a state that has no rows."""
    group = context.layout.groups[place.group]
    return max(1, int(group.block_tokens) // int(group.tokens_per_row))


def last_block(source: Callable[[Context], State | None] | None) -> Change:
    """Replace the last whole block by another state's, or by zeros."""

    def change(rows: Rows, place: Any, context: Context) -> Rows:
        count = block_rows(place, context)
        end = rows.shape[0] // count * count
        other = None if source is None else source(context)
        made = rows.clone()
        if end >= count:
            made[end - count : end] = 0 if other is None else other[place][end - count : end]
        return made

    return change


def blocks_exchanged(rows: Rows, place: Any, context: Context) -> Rows:
    """Read the second block where the first belongs, and the other way round."""
    count = block_rows(place, context)
    if rows.shape[0] < 2 * count:
        return rows
    return torch.cat([rows[count : 2 * count], rows[:count], rows[2 * count :]])


def first_block_twice(rows: Rows, place: Any, context: Context) -> Rows:
    """Read the first block where the second belongs."""
    count = block_rows(place, context)
    if rows.shape[0] < 2 * count:
        return rows
    return torch.cat([rows[:count], rows[:count], rows[2 * count :]])


def bit_flipped(rows: Rows, place: Any, context: Context) -> Rows:
    """Flip the highest bit of the mantissa of every eighth number of the newest row: one bad line of memory."""
    made = rows.clone()
    if rows.numel() == 0:
        return made
    newest = made[-1].contiguous()
    data = as_bytes(newest).clone()
    width = rows.element_size()
    data[width - 2 :: 8 * width] ^= 0x40
    made[-1] = from_bytes(data, newest)
    return made


# -- the bytes mean something else, or lie elsewhere --------------------------------------------------------


def bfloat16_as_float16(rows: Rows, place: Any, context: Context) -> Rows:
    """Read bfloat16 bits as float16."""
    return rows.to(torch.bfloat16).view(torch.float16).to(rows.dtype)


def rounded(rows: Rows, place: Any, context: Context) -> Rows:
    """Keep what bfloat16 keeps; of a bfloat16 model, what float8 keeps."""
    narrow = torch.float8_e4m3fn if rows.dtype == torch.bfloat16 else torch.bfloat16
    return rows.to(narrow).to(rows.dtype)


def other_byte_order(rows: Rows, place: Any, context: Context) -> Rows:
    """Read the bytes of every number from the other end."""
    width = rows.element_size()
    return from_bytes(as_bytes(rows).reshape(-1, width).flip(1).reshape(-1), rows)


def rope_columns(rows: Rows, place: Any, context: Context) -> int:
    """Return how many columns at the end of a row are rotated; all where the format does not say."""
    described = context.layout.groups[place.group].format
    width = int(rows.shape[-1])
    return min(width, (described.rope_dims if described is not None else None) or width)


def pairs_as_halves(rows: Rows, place: Any, context: Context) -> Rows:
    """Read rotated pairs (0, 1), (2, 3), ... as (0, n/2), (1, n/2 + 1), ..."""
    rope = rope_columns(rows, place, context)
    plain, rotated = rows[..., : rows.shape[-1] - rope], rows[..., rows.shape[-1] - rope :]
    return torch.cat([plain, rotated[..., 0::2], rotated[..., 1::2]], dim=-1)


def rotated_first(rows: Rows, place: Any, context: Context) -> Rows:
    """Read [not rotated | rotated] as [rotated | not rotated]."""
    rope = rope_columns(rows, place, context)
    return torch.cat([rows[..., rows.shape[-1] - rope :], rows[..., : rows.shape[-1] - rope]], dim=-1)


def pages_transposed(rows: Rows, place: Any, context: Context) -> Rows:
    """Read pages that were written column by column row by row."""
    count = min(block_rows(place, context), rows.shape[0])
    whole = rows.shape[0] // count * count if count else 0
    made = rows.clone()
    for start in range(0, whole, count):
        page = rows[start : start + count].reshape(count, -1)
        made[start : start + count] = page.t().contiguous().reshape(rows[start : start + count].shape)
    return made


def matrices_transposed(rows: Rows, place: Any, context: Context) -> Rows:
    """Read each matrix of a recurrent state column by column."""
    return rows.transpose(-1, -2).contiguous().reshape(rows.shape)


def scale_of_neighbour(rows: Rows, place: Any, context: Context) -> Rows:
    """Undo a row's scale (its largest absolute value) and apply that of the row before it."""
    scale = rows.abs().amax(dim=tuple(range(1, rows.ndim)), keepdim=True).clamp_min(1e-12)
    return rows / scale * torch.roll(scale, 1, dims=0)


def halves_exchanged(rows: Rows, place: Any, context: Context) -> Rows:
    """Read the second half of the columns where the first belongs."""
    half = rows.shape[-1] // 2
    return torch.cat([rows[..., half:], rows[..., :half]], dim=-1)


def bias(sign: int) -> Change:
    """Add a gate's position bias once too often (1), or leave it out (-1)."""

    def change(rows: Rows, place: Any, context: Context) -> Rows:
        belongs = context.bias(place)
        if belongs is None or "gate" not in place.path:
            return rows
        return (rows + sign * belongs[: rows.shape[0], : rows.shape[-1]]).to(rows.dtype)

    return change


def padded_read_packed(rows: Rows, place: Any, context: Context) -> Rows:
    """Read rows that were padded by half of their size as if they followed one another."""
    if rows.numel() == 0:
        return rows
    data = as_bytes(rows).reshape(rows.shape[0], -1)
    return from_bytes(torch.nn.functional.pad(data, (0, data.shape[1] // 2)).reshape(-1), rows)


def packed_read_padded(rows: Rows, place: Any, context: Context) -> Rows:
    """Read rows that follow one another as if each were padded by half of its size."""
    data = as_bytes(rows)
    width = data.numel() // max(1, rows.shape[0])
    made = torch.zeros_like(data)
    for row in range(rows.shape[0]):
        piece = data[row * width * 3 // 2 :][:width]
        made[row * width : row * width + piece.numel()] = piece
    return from_bytes(made, rows)


def base_off(count: int) -> Change:
    """Read from so many bytes behind the first."""

    def change(rows: Rows, place: Any, context: Context) -> Rows:
        data = as_bytes(rows)
        return from_bytes(torch.nn.functional.pad(data[count:], (0, min(count, data.numel()))), rows)

    return change


def tail_lost(numerator: int, denominator: int) -> Change:
    """Read zeros in the last part of the bytes."""

    def change(rows: Rows, place: Any, context: Context) -> Rows:
        data = as_bytes(rows).clone()
        data[data.numel() * (denominator - numerator) // denominator :] = 0
        return from_bytes(data, rows)

    return change


# -- between places ------------------------------------------------------------------------------------------


def layers_exchanged(groups: tuple[str, ...]) -> Callable[[State, Context], State | None]:
    """Read each layer's rows where those of the group's next layer belong."""

    def changed(state: State, context: Context) -> State | None:
        found = {(p.group, p.part, p.path, p.layer): p for p in state}
        broken = dict(state)
        for place in state:
            if place.group in groups:
                same = (place.group, place.part, place.path)
                layers = sorted(key[3] for key in found if key[:3] == same)
                following = layers[(layers.index(place.layer) + 1) % len(layers)]
                broken[place] = state[found[(*same, following)]].clone()
        return broken

    return changed


def paths_exchanged(groups: tuple[str, ...], one: str, other: str) -> Callable[[State, Context], State | None]:
    """Read one attribute's rows where another's of the same layer and kind belong, and the other way round."""

    def changed(state: State, context: Context) -> State | None:
        found = {(p.group, p.part, p.path, p.layer): p for p in state}
        broken = dict(state)
        for place in state:
            partner = found.get((place.group, place.part, place.path.replace(one, other), place.layer))
            if place.group not in groups or one not in place.path or partner is None:
                continue
            if (state[partner].shape, state[partner].dtype) == (state[place].shape, state[place].dtype):
                broken[place], broken[partner] = state[partner].clone(), state[place].clone()
        return broken

    return changed
