# SPDX-License-Identifier: Apache-2.0
"""Request traces in the JSON-lines form of Mooncake: one request a line.

Read keys: ``timestamp``, ``input_length``, ``output_length``, ``hash_ids``, and where present ``session``,
``chat_id`` and ``parent_chat_id`` (Qwen-Bailian). Other keys are passed over. An id of ``hash_ids`` names a
block of tokens together with all before it; the last id may stand for a block that is only partly filled.

A trace without ids (CSV, as Azure's and BurstGPT's) is refused: of lengths and times alone nobody can tell
what was seen before.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.errors import ArgumentError
from hybridkv.regular_file import open_regular
from hybridkv.texts import path_of

MAX_BLOCK_ID = 2**31 - 1
"""Largest id that is expanded as it stands; a trace with larger ones has its ids numbered by first use."""

MOST_TOKENS = 2**31 - 1
"""Longest prompt or answer that is read: its tokens are laid out in memory."""

MOST_BLOCK_TOKENS = 2**24
"""Largest block of an id, as of a key."""

MOST_LINE = 2**24
"""Characters of the longest line that is read."""

_LAST_TIME = 2**63
_EXPECTED = {
    "timestamp": "a number, at least 0 and below 2**63",
    "input_length": "an integer, at least 0",
    "output_length": "an integer, at least 0",
    "hash_ids": "a list of integers, at least 0",
}
_COLUMN = re.compile(r"[A-Za-z][\w ]{0,40}")
_BLOCK_SIZES = tuple(1 << power for power in range(17))


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    Attributes
    ----------
    index : int
        Position in the trace, from 0.
    timestamp : float
        Arrival, in the unit of the file (Mooncake: milliseconds, Qwen-Bailian: seconds).
    input_tokens, output_tokens : int
        Lengths of prompt and answer in tokens.
    block_ids : numpy.ndarray
        int64 [[blocks]], ids of the prompt's blocks.
    session : int or None
        Number of the session, where the trace tells it.
    chat, parent_chat : int or None
        Number of this turn and of the turn it continues, where the trace tells them.
    """

    index: int
    timestamp: float
    input_tokens: int
    output_tokens: int
    block_ids: npt.NDArray[np.int64]
    session: int | None = None
    chat: int | None = None
    parent_chat: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of one file, in its order.

    Attributes
    ----------
    name : str
        File name without its ending.
    block_tokens : int
        Tokens that one id stands for.
    requests : tuple of Request
        The requests.
    broken : ArgumentError or None
        Why nothing is read from there on, where the file was to be read up to what is wrong in it.
    """

    name: str
    block_tokens: int
    requests: tuple[Request, ...]
    broken: ArgumentError | None = None

    @property
    def tick_s(self) -> float:
        """Seconds of one unit of `timestamp`: Qwen-Bailian's, which numbers turns, counts seconds."""
        return 1.0 if any(request.chat is not None for request in self.requests[:1]) else 1e-3

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(request.input_tokens for request in self.requests)

    @property
    def distinct_tokens(self) -> int:
        """Tokens that a cache would hold which never forgets: distinct ids times the block."""
        ids = [request.block_ids for request in self.requests if request.block_ids.size]
        return int(np.unique(np.concatenate(ids)).size) * self.block_tokens if ids else 0

    def named_tokens(self, request: Request) -> int:
        """Tokens of the prompt that an id names; the rest is known to no other request."""
        return min(request.input_tokens, int(request.block_ids.size) * self.block_tokens)


def load_trace(
    path: str | Path, *, block_tokens: int | None = None, requests: int | None = None, partial: bool = False
) -> Trace:
    """Read a trace.

    Parameters
    ----------
    path : str or Path
        A file of JSON lines.
    block_tokens : int, optional
        Tokens of one id. Default: the one power of two that agrees with the lengths of all lines.
    requests : int, optional
        Read at most that many requests, from the start.
    partial : bool, optional
        Keep the requests before the first line that is wrong, if there are any; :attr:`Trace.broken` has the error.

    Returns
    -------
    Trace
        The requests in the order of the file.

    Raises
    ------
    ArgumentError
        The file cannot be read, a line is no request (its number is named), lengths and ids disagree, or no
        block size follows from them.
    """
    path = path_of("trace", path)
    if requests is not None and requests < 1:
        raise ArgumentError("requests", "at least 1", requests)
    if block_tokens is not None and not 1 <= block_tokens <= MOST_BLOCK_TOKENS:
        raise ArgumentError("block_tokens", f"at least 1 and at most {MOST_BLOCK_TOKENS}", block_tokens)
    rows: list[tuple[int, dict[str, Any]]] = []
    broken: ArgumentError | None = None
    try:
        for number, line in _lines(path):
            rows.append((number, _row(f"{path.name}:{number}", line)))
            if requests is not None and len(rows) == requests:
                break
    except ArgumentError as error:
        if not (partial and rows):
            raise
        broken = error
    if not rows:
        raise ArgumentError(path.name, "at least one request", "an empty trace")
    if block_tokens is None:
        block_tokens = _infer_block(path.name, rows, partial=partial)
    for at, (number, row) in enumerate(rows):
        if not _agrees(row, block_tokens):
            broken = _disagreement(path.name, number, row, block_tokens)
            if not (partial and at):
                raise broken
            del rows[at:]
            break
    return Trace(name=path.stem, block_tokens=block_tokens, requests=_requests(rows), broken=broken)


def _requests(rows: Sequence[tuple[int, dict[str, Any]]]) -> tuple[Request, ...]:
    ids = _dense_ids([row["hash_ids"] for _, row in rows])
    return tuple(
        Request(
            index=index,
            timestamp=float(row["timestamp"]),
            input_tokens=row["input_length"],
            output_tokens=row["output_length"],
            block_ids=np.asarray(ids[index], dtype=np.int64),
            session=row.get("session"),
            chat=row.get("chat_id"),
            parent_chat=row.get("parent_chat_id"),
        )
        for index, (_, row) in enumerate(rows)
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE + 1), ""), start=1):
                if len(line) > MOST_LINE:
                    raise ArgumentError(f"{path.name}:{number}", f"a line of at most {MOST_LINE} characters", "more")
                if number == 1:
                    _refuse_table(path.name, line)
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ArgumentError("trace", "a readable file of JSON lines", f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ArgumentError("trace", "UTF-8 text", f"{path}: {error.reason}") from error


def _refuse_table(name: str, line: str) -> None:
    """Refuse a table of lengths: it has no ids, and what it lacks cannot be made up."""
    columns = [part.strip() for part in line.lstrip("\ufeff").split(",")]
    if len(columns) < 2 or not all(_COLUMN.fullmatch(column) for column in columns):
        return
    raise ArgumentError(
        f"{name}:1",
        "JSON lines with ids of blocks (hash_ids): lengths and times alone do not tell which tokens were seen before, "
        "so no hit can be counted (hybridkv plan --context works with lengths)",
        f"a table without ids: {', '.join(columns)[:120]}",
    )


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(where, "a JSON object", f"{line.strip()[:60]!r}") from error
    if not isinstance(row, dict):
        raise ArgumentError(where, "a JSON object", type(row).__name__)
    for key in ("timestamp", "input_length", "output_length", "hash_ids"):
        if key not in row:
            raise ArgumentError(f"{where}: {key}", _EXPECTED[key], f"no such key, only {sorted(row)[:8]}")
    timestamp = row["timestamp"]
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or not 0 <= timestamp < _LAST_TIME:
        raise ArgumentError(f"{where}: timestamp", _EXPECTED["timestamp"], timestamp)
    for key in ("input_length", "output_length"):
        length = row[key]
        if not _is_count(length):
            raise ArgumentError(f"{where}: {key}", _EXPECTED[key], length)
        if row[key] > MOST_TOKENS:
            raise ArgumentError(f"{where}: {key}", f"at most {MOST_TOKENS}", length)
    ids = row["hash_ids"]
    if not isinstance(ids, list):
        raise ArgumentError(f"{where}: hash_ids", _EXPECTED["hash_ids"], ids)
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0):
        position = next(at for at, block_id in enumerate(ids) if not _is_count(block_id))
        raise ArgumentError(f"{where}: hash_ids[{position}]", "an integer, at least 0", ids[position])
    for key in ("session", "chat_id", "parent_chat_id"):
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ArgumentError(f"{where}: {key}", "an integer", value)
    return row


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _agrees(row: dict[str, Any], block_tokens: int) -> bool:
    """Whole blocks only (agent traces), or a last id for a partial block too (Mooncake)."""
    whole, rest = divmod(row["input_length"], block_tokens)
    return len(row["hash_ids"]) in (whole, whole + (rest > 0))


def _infer_block(name: str, rows: Sequence[tuple[int, dict[str, Any]]], *, partial: bool) -> int:
    agreeing = {size: sum(_agrees(row, size) for _, row in rows) for size in _BLOCK_SIZES}
    fitting = [size for size, count in agreeing.items() if count == len(rows)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ArgumentError("block_tokens", f"to be given: lengths and ids of {name} do not settle it", fitting)
    best = max(agreeing, key=lambda size: agreeing[size])
    if partial and agreeing[best] and _agrees(rows[0][1], best):
        return best
    number, row = next((number, row) for number, row in rows if not _agrees(row, best))
    raise _disagreement(name, number, row, best)


def _disagreement(name: str, number: int, row: dict[str, Any], block_tokens: int) -> ArgumentError:
    whole, rest = divmod(row["input_length"], block_tokens)
    expected = f"{whole} ids" + (f" or {whole + 1}" if rest else "")
    return ArgumentError(
        f"{name}:{number}: hash_ids",
        f"{expected} for {row['input_length']} tokens in blocks of {block_tokens}",
        f"{len(row['hash_ids'])} ids",
    )


def _dense_ids(ids: list[list[int]]) -> list[list[int]]:
    if max(map(max, filter(None, ids)), default=0) <= MAX_BLOCK_ID:
        return ids
    number: dict[int, int] = {}
    return [[number.setdefault(block_id, len(number)) for block_id in row] for row in ids]
