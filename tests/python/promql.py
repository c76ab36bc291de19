# SPDX-License-Identifier: Apache-2.0
"""The part of PromQL that our alerts use, evaluated on made-up series. Parsed by `promql_parser`; anything else raises.

`rate` and `increase` take the samples of their range as they are, with resets of counters and without the extrapolation
to the ends of the range that a server makes, which adds nothing where samples lie at the ends, as they do here. A
selector finds what is at most five minutes old, as a server does.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import promql_parser as parser

Labels = frozenset[tuple[str, str]]
Points = Sequence[tuple[float, float]]  # (seconds, value), in order
World = Mapping[str, Mapping[Labels, Points]]
Vector = dict[Labels, float]

STALE_S = 300.0
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else float("nan") if not a else float("inf"),
}
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_AGGREGATED: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min}


def evaluate(expr: Any, world: World, now_s: float) -> Vector | float:
    """The value of a parsed expression at one time."""
    if isinstance(expr, parser.NumberLiteral):
        return expr.val
    if isinstance(expr, parser.ParenExpr):
        return evaluate(expr.expr, world, now_s)
    if isinstance(expr, parser.VectorSelector):
        at = now_s - _seconds(expr.offset)
        seen = {labels: [p for p in points if at - STALE_S < p[0] <= at] for labels, points in _found(expr, world)}
        return {labels: points[-1][1] for labels, points in seen.items() if points}
    if isinstance(expr, parser.Call):
        return _ranged(expr, world, now_s)
    if isinstance(expr, parser.AggregateExpr):
        return _aggregated(expr, world, now_s)
    if isinstance(expr, parser.BinaryExpr):
        left, right = evaluate(expr.lhs, world, now_s), evaluate(expr.rhs, world, now_s)
        return _combined(str(expr.op), expr, left, right)
    raise NotImplementedError(f"{type(expr).__name__}: {expr}")


def selectors(expr: Any) -> list[Any]:
    """Every selector of metrics in an expression."""
    found: list[Any] = []
    parser.walk(expr, lambda e: found.append(e) if isinstance(e, parser.VectorSelector) else None)
    return found


def grouped_by(expr: Any) -> list[tuple[list[str], Any]]:
    """(labels, what is aggregated) of every aggregation in an expression."""
    found: list[tuple[list[str], Any]] = []

    def visit(e: Any) -> None:
        if isinstance(e, parser.AggregateExpr):
            found.append((list(e.modifier.labels) if e.modifier else [], e.expr))

    parser.walk(expr, visit)
    return found


def _seconds(duration: Any) -> float:
    return duration.total_seconds() if duration is not None else 0.0


def _found(selector: Any, world: World) -> list[tuple[Labels, Points]]:
    if selector.at is not None or selector.matchers.or_matchers:
        raise NotImplementedError(str(selector))
    series = world.get(selector.name, {}).items()
    return [
        (labels, points) for labels, points in series if all(_fits(m, dict(labels)) for m in selector.matchers.matchers)
    ]


def _fits(matcher: Any, labels: Mapping[str, str]) -> bool:
    value, op = labels.get(matcher.name, ""), str(matcher.op).removeprefix("MatchOp.")
    match op:
        case "Equal":
            return value == matcher.value
        case "NotEqual":
            return value != matcher.value
        case "Re":
            return re.fullmatch(matcher.value, value) is not None
        case "NotRe":
            return re.fullmatch(matcher.value, value) is None
    raise NotImplementedError(op)


def _ranged(call: Any, world: World, now_s: float) -> Vector:
    name, (matrix,) = call.func.name, call.args
    if name not in ("rate", "increase"):
        raise NotImplementedError(name)
    range_s, at = _seconds(matrix.range), now_s - _seconds(matrix.vector_selector.offset)
    result: Vector = {}
    for labels, points in _found(matrix.vector_selector, world):
        values = [value for time, value in points if at - range_s <= time <= at]
        if len(values) < 2:
            continue
        steps = itertools.pairwise(values)
        grown = sum(after - before if after >= before else after for before, after in steps)
        result[labels] = grown / range_s if name == "rate" else grown
    return result


def _aggregated(expr: Any, world: World, now_s: float) -> Vector:
    if expr.param is not None or (expr.modifier and str(expr.modifier.type) != "AggModifierType.By"):
        raise NotImplementedError(str(expr))
    vector = evaluate(expr.expr, world, now_s)
    assert isinstance(vector, dict)
    by = set(expr.modifier.labels) if expr.modifier else set()
    sets: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        sets.setdefault(frozenset(pair for pair in labels if pair[0] in by), []).append(value)
    return {labels: float(_AGGREGATED[str(expr.op)](values)) for labels, values in sets.items()}


def _combined(op: str, expr: Any, left: Vector | float, right: Vector | float) -> Vector | float:
    if expr.modifier is not None and (expr.modifier.matching is not None or expr.modifier.return_bool):
        raise NotImplementedError(str(expr))
    if op == "and":
        assert isinstance(left, dict) and isinstance(right, dict)
        return {labels: value for labels, value in left.items() if labels in right}
    if not isinstance(left, dict) and not isinstance(right, dict):
        return _ARITHMETIC[op](left, right)
    names = left if isinstance(left, dict) else right
    assert isinstance(names, dict)
    result: Vector = {}
    for labels in names:
        a = left.get(labels) if isinstance(left, dict) else left
        b = right.get(labels) if isinstance(right, dict) else right
        if a is None or b is None:
            continue
        if op in _ARITHMETIC:
            result[labels] = _ARITHMETIC[op](a, b)
        elif _COMPARED[op](a, b):
            result[labels] = a if isinstance(left, dict) else b
    return result
