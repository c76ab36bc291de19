# SPDX-License-Identifier: Apache-2.0
"""Scores as a table for people, or as plain types for JSON; nothing here counts anything.

The JSON of a model is ``{model, layers, parameters, policies}``. Each policy has

- ``policy``, ``note``, ``requests``, ``prompt_tokens``, ``seconds``;
- ``hits``, ``hit_tokens``, ``hit_rate``, ``hit_rate_tokens``: what hashes promised;
- ``effective_hits``, ``effective_hit_tokens``, ``effective_hit_rate``, ``effective_hit_rate_tokens``: resumed from, and
  answered as recomputation does;
- ``wrong``: answers that differ from recomputation's in a token; ``off``: answers whose logits differ by more than
  chunking explains, wrong ones included; ``worst_difference``: of logits, ``{first, last}`` token;
- ``reused_tokens``, ``computed_tokens``: of prompts, replayed tokens among the latter;
- ``wrong_states``, a list of ``{group, kind, requests}``: what hits went on from although it was not what belongs there
  (only looked for under the hash-hit rule);
- ``lost``, a list of ``{conversation, turn, hit_tokens, reused_tokens, check, kind, group, code, detail}``: one entry
  for every request that resumed from less than was promised;
- ``kept_bytes`` and ``metrics``: of the cache behind the policy, null where there is none: ``{lookups, misses,
  false_hits, effective_hits, pending, withdrawn, hit_rate, effective_hit_rate, hit_rate_tokens,
  effective_hit_rate_tokens, false_hits_by_state, lost_tokens_by_state}``, the last two as lists of ``{check, kind,
  requests}`` and ``{check, kind, tokens}``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hybridkv.demo.serving import NOISE, ModelResult, Score, Served
from hybridkv.kinds import Check, StateKind
from hybridkv.metrics import Metrics
from hybridkv.printed import page

SHOWN_LOSSES = 12
"""Lost hits that the text names one by one; JSON has all."""

_HEAD = (
    f"{'':<16} {'hit rate':>13}   {'effective':>13}  {'wrong':>6}  {'worst logit diff.':>19}  {'prompt tokens':>15}",
    f"{'policy':<16} {'req.':>6} {'tok.':>6}   {'req.':>6} {'tok.':>6}  {'texts':>6}"
    f"  {'first tok.':>10} {'last':>8}  {'reused':>7} {'run':>7}  {'s':>5}",
)


def as_json(results: Sequence[ModelResult]) -> list[dict[str, Any]]:
    """Make plain types of results; see the head of this module.

    Parameters
    ----------
    results : sequence of ModelResult
        By model.

    Returns
    -------
    list of dict
    """
    return [
        {
            "model": result.name,
            "layers": result.layers,
            "parameters": result.parameters,
            "policies": [_score(score) for score in result.scores],
        }
        for result in results
    ]


def _score(score: Score) -> dict[str, Any]:
    first, last = _worst(score)
    return {
        "policy": score.policy,
        "note": score.note,
        "requests": score.requests,
        "prompt_tokens": score.prompt_tokens,
        "hits": len(score.hits),
        "hit_tokens": score.hit_tokens,
        "hit_rate": _part(len(score.hits), score.requests),
        "hit_rate_tokens": _part(score.hit_tokens, score.prompt_tokens),
        "effective_hits": len(score.effective),
        "effective_hit_tokens": score.effective_tokens,
        "effective_hit_rate": _part(len(score.effective), score.requests),
        "effective_hit_rate_tokens": _part(score.effective_tokens, score.prompt_tokens),
        "wrong": score.wrong,
        "off": score.off,
        "worst_difference": {"first": first, "last": last},
        "reused_tokens": score.reused_tokens,
        "computed_tokens": score.computed_tokens,
        "seconds": round(score.seconds, 3),
        "wrong_states": [
            {"group": group, "kind": kind.name, "requests": requests}
            for (kind, group), requests in sorted(_wrong_states(score).items())
        ],
        "lost": [_loss(served) for served in score.lost],
        "kept_bytes": None if score.metrics is None else score.kept_bytes,
        "metrics": None if score.metrics is None else _metrics(score.metrics),
    }


def _loss(served: Served) -> dict[str, Any]:
    assert served.lost is not None
    return {
        "conversation": served.request.conversation,
        "turn": served.request.turn,
        "hit_tokens": served.hit_tokens,
        "reused_tokens": served.reused_tokens,
        "check": served.lost.check,
        "kind": served.lost.kind,
        "group": served.lost.group,
        "code": served.lost.code,
        "detail": served.lost.detail,
    }


def _metrics(metrics: Metrics) -> dict[str, Any]:
    return {
        "lookups": metrics.lookups,
        "misses": metrics.misses,
        "false_hits": metrics.false_hits_total,
        "effective_hits": metrics.effective_hits,
        "pending": metrics.pending,
        "withdrawn": metrics.withdrawn,
        "hit_rate": metrics.hit_rate,
        "effective_hit_rate": metrics.effective_hit_rate,
        "hit_rate_tokens": metrics.hit_rate_tokens,
        "effective_hit_rate_tokens": metrics.effective_hit_rate_tokens,
        "false_hits_by_state": _by_state(metrics.false_hits, "requests"),
        "lost_tokens_by_state": _by_state(metrics.lost_tokens, "tokens"),
    }


def _by_state(counts: Mapping[Check, Mapping[StateKind, int]], unit: str) -> list[dict[str, Any]]:
    return [
        {"check": check.name, "kind": kind.name, unit: count}
        for check, kinds in counts.items()
        for kind, count in kinds.items()
        if count
    ]


def failure(results: Sequence[ModelResult]) -> str:
    """Say what must not be: an answer of hybridkv that is not recomputation's, in a token or in the logits.

    Parameters
    ----------
    results : sequence of ModelResult
        By model.

    Returns
    -------
    str
        "" where there is none.
    """
    return "; ".join(
        f"{result.name}, {score.policy}: {score.off} answers are not those of recomputation"
        for result in results
        for score in result.scores
        if score.metrics is not None and score.off
    )


def as_text(results: Sequence[ModelResult]) -> str:
    """Make tables of results.

    Parameters
    ----------
    results : sequence of ModelResult
        By model; at least one.

    Returns
    -------
    str
        Lines of at most 110 columns.
    """
    lines = [
        "Two tiny models with random weights answer the same conversations, 16 greedy tokens a turn, under three",
        "policies. Tokens are bytes. Every answer is compared with transformers' own generate on the whole prompt.",
    ]
    for result in results:
        lines += ["", *_model_lines(result)]
    return page([*lines, "", *_legend()])


def _model_lines(result: ModelResult) -> list[str]:
    score = result.scores[0]
    names = {served.request.conversation for served in score.served}
    lines = [
        f"{result.name}: {result.layers}, {result.parameters / 1e6:.2f} million parameters",
        f"{len(names)} conversations, {score.requests} requests, {score.prompt_tokens:,} prompt tokens",
        *_HEAD,
        *[_row(score) for score in result.scores],
    ]
    for score in result.scores:
        lines += _wrong_lines(score)
        if score.metrics is not None:
            lines += _metrics_lines(score, score.metrics)
        lines += _loss_lines(score)
    return lines


def _row(score: Score) -> str:
    first, last = (f"{difference:.1e}" if difference else "-" for difference in _worst(score))
    return (
        f"{score.policy[:16]:<16} {_percent(len(score.hits), score.requests):>6}"
        f" {_percent(score.hit_tokens, score.prompt_tokens):>6}"
        f"   {_percent(len(score.effective), score.requests):>6}"
        f" {_percent(score.effective_tokens, score.prompt_tokens):>6}  {score.wrong:>6}"
        f"  {first:>10} {last:>8}  {score.reused_tokens:>7,} {score.computed_tokens:>7,}  {score.seconds:>5.1f}"
    )


def _wrong_lines(score: Score) -> list[str]:
    false = [served for served in score.served if served.wrong_groups]
    if not false:
        return []
    quiet = sum(not served.wrong for served in false)
    states = [f"{kind.name} ({group}) {requests}" for (kind, group), requests in sorted(_wrong_states(score).items())]
    return [
        f"  {score.policy}: {len(false)} of {len(score.hits)} hits went on from state that was not theirs, and nothing"
        " was raised;",
        f"    {score.wrong} answers became another text, {quiet} got away with other logits alone. By state:",
        f"    {', '.join(states)}",
    ]


def _metrics_lines(score: Score, metrics: Metrics) -> list[str]:
    other = (("pending", metrics.pending), ("withdrawn", metrics.withdrawn))
    lines = [
        f"  {score.policy}: {score.note}",
        f"    {score.kept_bytes / 2**20:.2f} MiB held at the end. {metrics.lookups} look-ups = {metrics.misses} misses"
        f" + {metrics.false_hits_total} false hits + {metrics.effective_hits} effective hits"
        + "".join(f" + {number} {name}" for name, number in other if number),
    ]
    lines += [
        f"    false hits   check {entry['check']:<9} state {entry['kind']:<10} {entry['requests']:>6,} requests"
        for entry in _by_state(metrics.false_hits, "requests")
    ]
    lines += [
        f"    lost tokens  check {entry['check']:<9} state {entry['kind']:<10} {entry['tokens']:>6,} tokens"
        for entry in _by_state(metrics.lost_tokens, "tokens")
    ]
    return lines


def _loss_lines(score: Score) -> list[str]:
    if not score.lost:
        return []
    lines = [f"    why, for each of the {len(score.lost)} requests that resumed from less than a hash promised:"]
    for served in score.lost[:SHOWN_LOSSES]:
        assert served.lost is not None
        where = f"{served.request.conversation}, turn {served.request.turn + 1}"
        lines.append(f"      {where:<25} {served.hit_tokens:>4} -> {served.reused_tokens:>4}  {served.lost.detail}")
    if len(score.lost) > SHOWN_LOSSES:
        lines.append(f"      and {len(score.lost) - SHOWN_LOSSES} more (--json has all)")
    return lines


def _legend() -> list[str]:
    return [
        "hit rate    prompts of which a hash was known, and the tokens it promised",
        "effective   those that resumed from it and answered as recomputation does",
        "wrong texts answers of which a token is another than recomputation's; logits tell earlier: computing in other",
        f"            chunks moves them by some 1e-5, and more than {NOISE:g} is another state",
        "run         prompt tokens that the model ran, replays included",
        "s           answering all requests; models this small spend it on calls rather than on tokens",
    ]


def _wrong_states(score: Score) -> Counter[tuple[StateKind, str]]:
    return Counter((kind, group) for served in score.served for group, kind in served.wrong_groups.items())


def _worst(score: Score) -> tuple[float, float]:
    first = max((served.first_difference for served in score.served), default=0.0)
    return first, max((served.last_difference for served in score.served), default=0.0)


def _part(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _percent(part: int, whole: int) -> str:
    return f"{_part(part, whole):.1%}"
