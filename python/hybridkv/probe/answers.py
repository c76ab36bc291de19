# SPDX-License-Identifier: Apache-2.0
"""Answers of a service as data: tokens, log-probabilities, counts; whatever has another shape is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hybridkv.probe.endpoint import EndpointError, Json

LEAST = -30.0
"""Log-probabilities below are taken for this: services write -9999 or the like for what they masked."""

Top: TypeAlias = Mapping[str, float]
"""Log-probabilities in nats of the likeliest tokens of one position, the one that was taken among them, by token."""

_ROUNDING = 1e-2  # nats by which a log-probability may be above 0
_SHOWN = 60


@dataclass(frozen=True)
class Answer:
    """What came of one request.

    Attributes
    ----------
    tokens : tuple of str
        Generated tokens, as the service writes them; empty where it gave no log-probabilities.
    top : tuple of Top
        One for each generated token.
    prompt_top : tuple of Top or None
        One for each token of the prompt, where the service echoes them; None where it gave none.
    ids : tuple of int, optional
        Ids of the generated tokens, where the service tells them.
    text : str
        What was generated.
    prompt_tokens, cached_tokens : int or None
        As the service counts them; None where it does not.
    asked : int
        How many of the likeliest tokens were asked for at each position.
    body : dict
        The request.
    """

    tokens: tuple[str, ...]
    top: tuple[Top, ...]
    text: str
    prompt_top: tuple[Top | None, ...] = ()
    ids: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    asked: int = 5
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def reused(self) -> int:
        """Tokens that the service says it reused; 0 where it says nothing."""
        return self.cached_tokens or 0


def completion(document: Json, *, echoed: int = 0, most: int) -> Answer:
    """Read an answer of ``/completions``.

    Parameters
    ----------
    document : dict
        The response.
    echoed : int
        Tokens of the prompt that come before what was generated.
    most : int
        Tokens that were asked for.

    Returns
    -------
    Answer

    Raises
    ------
    EndpointError
        Naming the place that is missing or wrong.
    """
    choice = _choice(document)
    text = _typed(choice, "choices[0].text", "text", str)
    told = choice.get("logprobs")
    tokens: tuple[str, ...] = ()
    top: tuple[Top | None, ...] = ()
    if told is not None:
        where = "choices[0].logprobs"
        told = _is(told, where, dict)
        names = [_is(name, f"{where}.tokens", str) for name in _typed(told, f"{where}.tokens", "tokens", list)]
        taken = _typed(told, f"{where}.token_logprobs", "token_logprobs", list)
        others = told.get("top_logprobs") or [None] * len(names)
        _is(others, f"{where}.top_logprobs", list)
        _fits(f"{where}.token_logprobs", len(names), len(taken))
        _fits(f"{where}.top_logprobs", len(names), len(others))
        if not echoed <= len(names) <= echoed + most:
            raise EndpointError(f"{where}.tokens", f"{echoed} to {echoed + most} tokens", len(names))
        tokens = tuple(names)
        top = tuple(
            None if one is None and not rest else _top(f"{where}.top_logprobs[{at}]", name, one, rest)
            for at, (name, one, rest) in enumerate(zip(names, taken, others, strict=True))
        )
    generated = top[echoed:]
    if any(one is None for one in generated):
        raise EndpointError("choices[0].logprobs.token_logprobs", "a number for each generated token", "null")
    prompt_tokens, cached_tokens = _usage(document)
    return Answer(
        tokens=tokens[echoed:],
        top=tuple(one for one in generated if one is not None),
        prompt_top=top[:echoed],
        ids=_ids(tokens[echoed:]),
        text=text,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
    )


def chat(document: Json, *, most: int) -> Answer:
    """Read an answer of ``/chat/completions``; as :func:`completion`."""
    choice = _choice(document)
    message = _typed(choice, "choices[0].message", "message", dict)
    text = message.get("content")
    text = _is("" if text is None else text, "choices[0].message.content", str)
    told = choice.get("logprobs")
    tokens: list[str] = []
    top: list[Top] = []
    if told is not None:
        where = "choices[0].logprobs.content"
        entries = _is(told, "choices[0].logprobs", dict).get("content")
        for at, entry in enumerate(_is([] if entries is None else entries, where, list)):
            entry = _is(entry, f"{where}[{at}]", dict)
            name = _typed(entry, f"{where}[{at}].token", "token", str)
            others: dict[str, Any] = {}
            for one in _is(entry.get("top_logprobs") or [], f"{where}[{at}].top_logprobs", list):
                one = _is(one, f"{where}[{at}].top_logprobs", dict)
                others[_typed(one, f"{where}[{at}].top_logprobs.token", "token", str)] = one.get("logprob")
            tokens.append(name)
            top.append(_top(f"{where}[{at}]", name, entry.get("logprob"), others))
        if len(tokens) > most:
            raise EndpointError(where, f"at most {most} tokens", len(tokens))
    prompt_tokens, cached_tokens = _usage(document)
    return Answer(
        tokens=tuple(tokens),
        top=tuple(top),
        text=text,
        ids=_ids(tuple(tokens)),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
    )


def models(document: Json) -> list[str]:
    """Read the names of ``/models``."""
    listed = _typed(document, "data", "data", list)
    return [_typed(_is(one, "data", dict), "data[].id", "id", str) for one in listed]


def _choice(document: Json) -> Json:
    choices = _typed(document, "choices", "choices", list)
    if len(choices) != 1:
        raise EndpointError("choices", "one choice", len(choices))
    return dict(_is(choices[0], "choices[0]", dict))


def _top(where: str, name: str, taken: object, others: object) -> Top:
    found = {str(token): _logprob(where, value) for token, value in _is(others or {}, where, dict).items()}
    found[name] = _logprob(where, taken)
    return found


def _logprob(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value > _ROUNDING:
        raise EndpointError(where, "a log-probability: a finite number, 0 or below", _brief(value))
    return max(min(float(value), 0.0), LEAST)


def _usage(document: Json) -> tuple[int | None, int | None]:
    usage = document.get("usage")
    if usage is None:
        return None, None
    usage = _is(usage, "usage", dict)
    details = usage.get("prompt_tokens_details")
    details = _is({} if details is None else details, "usage.prompt_tokens_details", dict)
    prompt = _count("usage.prompt_tokens", usage.get("prompt_tokens"))
    cached = _count("usage.prompt_tokens_details.cached_tokens", details.get("cached_tokens"))
    if prompt is not None and cached is not None and cached > prompt:
        where = "usage.prompt_tokens_details.cached_tokens"
        raise EndpointError(where, f"at most the {prompt} tokens of the prompt", cached)
    return prompt, cached


def _count(where: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise EndpointError(where, "a number of tokens", _brief(value))
    return value


def _ids(tokens: tuple[str, ...]) -> tuple[int, ...] | None:
    """Ids of tokens that are written as ``token_id:17``."""
    heads, numbers = zip(*(token.partition(":")[::2] for token in tokens), strict=True) if tokens else ((), ())
    if set(heads) != {"token_id"} or not all(n.isascii() and n.isdecimal() and len(n) < 10 for n in numbers):
        return None
    return tuple(int(number) for number in numbers)


def _typed(document: Json, where: str, name: str, kind: type) -> Any:
    if name not in document:
        raise EndpointError(where, kind.__name__, "nothing")
    return _is(document[name], where, kind)


def _is(value: object, where: str, kind: type) -> Any:
    if not isinstance(value, kind):
        raise EndpointError(where, kind.__name__, _brief(value))
    return value


def _fits(where: str, expected: int, got: int) -> None:
    if expected != got:
        raise EndpointError(where, f"{expected} entries, one for each token", got)


def _brief(value: object) -> str:
    return ascii(value)[:_SHOWN]
