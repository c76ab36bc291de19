# SPDX-License-Identifier: Apache-2.0
"""A pair of designs as a table of text or Markdown, or as one JSON object.

The JSON object: ``schema`` (:data:`SCHEMA`), ``version``, ``trace``, ``requests``, ``memory_bytes``, ``policy``,
``rows``, a list of ``{aspect, homogeneous, hybrid}`` as in the table, and ``homogeneous`` and ``hybrid`` with the
numbers: ``{model, designed, unit_tokens, boundary_tokens, groups, pages, bytes_per_token, boundary_bytes,
prefix_bytes, tokens, hit_tokens, usable_tokens, hits, wrong, wrong_tokens, false_hits, lost_tokens, evicted_pages,
match_us}``.
"""

from __future__ import annotations

import textwrap
from typing import Any

from hybridkv.coverage import Checkpoint, Chunk, Window
from hybridkv.group import CacheGroup
from hybridkv.kinds import StateKind
from hybridkv.planner.quantities import byte_text
from hybridkv.printed import page, printable
from hybridkv.replay.report import percent, short
from hybridkv.replay.versus import LENGTHS, Pair, Side, groups_by_rule

SCHEMA = "hybridkv.compare/1"

Row = tuple[str, str, str]

_WIDTH = 46


def rows(pair: Pair) -> list[Row]:
    """Make the rows of the table.

    Parameters
    ----------
    pair : Pair
        What :func:`hybridkv.replay.versus.compare` gave.

    Returns
    -------
    list of tuple of str
        Aspect, homogeneous, hybrid.
    """
    makers = (
        ("model", _model),
        ("attention", _attention),
        ("cache states", _states),
        ("what a hit means", _hit),
        ("allocator duties", _duties),
        ("metric", _metric),
        ("failure mode", _failure),
        ("lost tokens", _lost),
        ("long context", _long_context),
        ("complexity", _complexity),
    )
    return [(aspect, make(pair.homogeneous), make(pair.hybrid)) for aspect, make in makers]


def _model(side: Side) -> str:
    return f"{side.model}, with one lifetime for everything" if side.designed else side.model


def _attention(side: Side) -> str:
    if side.designed:
        return "the model's, kept as if every layer were full attention"
    return "; ".join(_read(group) for group in side.spec.groups)


def _read(group: CacheGroup) -> str:
    rule = group.coverage
    if group.kind is StateKind.INDEXER:
        what = "router keys"
    elif isinstance(rule, Window):
        what = f"the last {rule.tokens:,} tokens"
    elif isinstance(rule, Chunk):
        what = f"chunks of {rule.tokens:,} tokens"
    elif isinstance(rule, Checkpoint):
        what = "a rolling state"
    elif group.tokens_per_row > 1:
        what = f"history, {group.tokens_per_row} tokens an entry"
    else:
        what = "full history"
    return f"{group.name}: {what} ({group.layer_count} layers)"


def _states(side: Side) -> str:
    names = groups_by_rule(side.spec)
    told = f"{len(names[True])} of history ({', '.join(names[True])}), for every token"
    kept = [name for name in names[False] if side.spec.boundary_bytes.get(name)]
    running = [name for name in names[False] if name not in kept]
    if kept:
        told += f"; {len(kept)} at boundaries that are kept ({', '.join(kept)})"
    if running:
        told += f"; {len(running)} of running requests and tips alone ({', '.join(running)})"
    return told


def _hit(side: Side) -> str:
    tally = side.run.lane.tally
    holds = tally.promised_requests - tally.wrong_requests
    rule = (
        "a known hash" if len(side.spec.groups) == 1 or side.designed else "one length at which every group can resume"
    )
    return f"{rule}: {holds:,} of {tally.promised_requests:,} hash hits hold as far as the hash promises"


def _duties(side: Side) -> str:
    pages = side.run.lane.pools.pages
    pools = ", ".join(f"{name} {count:,}" for name, count in pages.items())
    several = len(pages) > 1 and not side.designed
    duty = (
        "a pool for each group, windows that go while history stays, states that outrank what they make usable"
        if several
        else "one pool; the least recently used block goes"
    )
    metrics = side.run.metrics
    assert metrics is not None
    return f"{duty}. Pages: {pools}; {metrics.retired:,} evicted"


def _metric(side: Side) -> str:
    tally = side.run.lane.tally
    hashed = percent(tally.promised_tokens, tally.request_tokens)
    saved = percent(tally.usable_tokens, tally.request_tokens)
    if not tally.wrong_requests:
        return f"hit rate is effective hit rate: {saved} of tokens, {short(tally.usable_tokens)} saved"
    return f"effective hit rate {saved} of tokens, {short(tally.usable_tokens)} saved; hit rate would say {hashed}"


def _failure(side: Side) -> str:
    tally = side.run.lane.tally
    if not tally.wrong_requests:
        return "a miss: slow, and right"
    return (
        f"a false hit, if hashes decide: wrong text and no error, {tally.wrong_requests:,} requests"
        f" ({percent(tally.wrong_requests, tally.requests)}), {short(tally.wrong_tokens)} tokens"
    )


def _lost(side: Side) -> str:
    last = side.run.samples[-1]
    causes = sorted(last.causes.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{name} {percent(tokens, last.tokens)}" for name, tokens in causes) or "none"


def _long_context(side: Side) -> str:
    kept = ", ".join(f"{byte_text(side.prefix_bytes[tokens])} for {_tokens(tokens)}" for tokens in LENGTHS)
    each = f"{side.spec.bytes_per_token:,.6g} B a token"
    states = sum(side.spec.boundary_bytes.values())
    if states:
        each += f" and {byte_text(states)} a boundary"
    return f"{each}; a kept prefix takes {kept}"


def _tokens(count: int) -> str:
    return f"{count // 1024}Ki" if count < 1 << 20 else f"{count >> 20}Mi"


def _complexity(side: Side) -> str:
    median, high = side.run.lane.tally.match_us()
    groups = len(side.spec.groups)
    return (
        f"{groups} group{'s' * (groups > 1)} to agree, a resume every {side.spec.boundary_tokens:,} tokens;"
        f" a match took {median:.0f} us, at most {high:.0f} us in 99 of 100"
    )


def as_text(pair: Pair) -> str:
    """Make the table as text of 120 columns.

    Parameters
    ----------
    pair : Pair
    """
    lines = [_title(pair), ""]
    for aspect, *sides in [("", "HOMOGENEOUS", "HYBRID"), *rows(pair)]:
        cells = [[aspect], *(textwrap.wrap(printable(side), _WIDTH) or [""] for side in sides)]
        for at in range(max(map(len, cells))):
            one, two, three = (cell[at] if at < len(cell) else "" for cell in cells)
            lines.append(f"{one:<18}{two:<{_WIDTH + 3}}{three}".rstrip())
    return page(lines)


def as_markdown(pair: Pair) -> str:
    """Make the table as Markdown.

    Parameters
    ----------
    pair : Pair
    """
    told = [("", "homogeneous", "hybrid"), ("---", "---", "---"), *rows(pair)]
    cells = [[part.replace("|", "\\|") for part in row] for row in told]
    return page([_title(pair), "", *(f"| {' | '.join(row)} |" for row in cells)])


def _title(pair: Pair) -> str:
    found = pair.hybrid.found
    policy = pair.policy
    kept = f"every:{policy.stride_tokens}" if policy.policy == "every" else policy.policy
    return (
        f"{found.trace.name}: {found.served:,} requests, {short(found.trace.prompt_tokens)} prompt tokens;"
        f" {byte_text(pair.memory_bytes)} for pages of each; states of the hybrid one kept: {kept}."
    )


def as_json(pair: Pair, *, version: str) -> dict[str, Any]:
    """Make the JSON object.

    Parameters
    ----------
    pair : Pair
    version : str
        Of the package.

    Returns
    -------
    dict
        Plain types only; see the head of this module.
    """
    return {
        "schema": SCHEMA,
        "version": version,
        "trace": pair.hybrid.found.trace.name,
        "requests": pair.hybrid.found.served,
        "memory_bytes": pair.memory_bytes,
        "policy": str(pair.policy),
        "rows": [{"aspect": aspect, "homogeneous": one, "hybrid": two} for aspect, one, two in rows(pair)],
        "homogeneous": _numbers(pair.homogeneous),
        "hybrid": _numbers(pair.hybrid),
    }


def _numbers(side: Side) -> dict[str, Any]:
    run = side.run
    tally, metrics = run.lane.tally, run.metrics
    assert metrics is not None
    median, high = tally.match_us()
    return {
        "model": side.model,
        "designed": side.designed,
        "unit_tokens": side.spec.unit_tokens,
        "boundary_tokens": side.spec.boundary_tokens,
        "groups": {group.name: group.kind.name for group in side.spec.groups},
        "pages": dict(run.lane.pools.pages),
        "bytes_per_token": side.spec.bytes_per_token,
        "boundary_bytes": dict(side.spec.boundary_bytes),
        "prefix_bytes": {str(tokens): size for tokens, size in side.prefix_bytes.items()},
        "tokens": tally.request_tokens,
        "hit_tokens": tally.promised_tokens,
        "usable_tokens": tally.usable_tokens,
        "hits": tally.promised_requests,
        "wrong": tally.wrong_requests,
        "wrong_tokens": tally.wrong_tokens,
        "false_hits": tally.false_hit_requests,
        "lost_tokens": dict(sorted(run.samples[-1].causes.items())),
        "evicted_pages": metrics.retired,
        "match_us": {"median": round(median, 3), "p99": round(high, 3)},
    }
