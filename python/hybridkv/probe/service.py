# SPDX-License-Identifier: Apache-2.0
"""One service as the probe sees it: prompts in, answers out, over the form of request that it accepts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hybridkv.probe import answers
from hybridkv.probe.answers import Answer
from hybridkv.probe.endpoint import Endpoint, EndpointError, Json
from hybridkv.probe.options import ProbeOptions
from hybridkv.probe.prompts import Prompt, Prompts

_MOST_FAILURES = 3  # in a row, after which nothing more is asked


class Spent(Exception):
    """No request is left, or no time, or the service fails again and again; what is known is reported."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Lane:
    """Whose request it is: what tells one tenant from another, beside the prompt.

    Attributes
    ----------
    name : str
        As reports name it.
    fields : mapping
        Fields of the request.
    echo : bool
        The service is asked for log-probabilities of the prompt.
    endpoint : Endpoint, optional
        Where the request goes. Default: the service itself.
    """

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    echo: bool = False
    endpoint: Endpoint | None = None


@dataclass
class Form:
    """A form of request.

    Attributes
    ----------
    kind : {"ids", "text", "chat"}
    extras : mapping
        Fields beyond those that every service has.
    limit : str
        Name of the field for the number of tokens.
    logprobs : bool
        Whether log-probabilities are asked for.
    """

    kind: str
    extras: Mapping[str, Any]
    limit: str = "max_tokens"
    logprobs: bool = True


IDS_EXTRAS = {"return_tokens_as_token_ids": True, "ignore_eos": True}
"""Of vLLM and those that follow it: ids instead of texts of tokens; answers as long as asked for."""

FORMS = [
    Form("ids", IDS_EXTRAS),
    Form("ids", {}),
    Form("text", {"ignore_eos": True}),
    Form("text", {}),
    Form("chat", {"ignore_eos": True}),
    Form("chat", {}),
    Form("chat", {}, limit="max_completion_tokens"),
]
"""In the order in which they are tried; after them the same without log-probabilities."""


class Service:
    """Asks a service within the bounds of a probe.

    Parameters
    ----------
    endpoint : Endpoint
    options : ProbeOptions
    prompts : Prompts

    Attributes
    ----------
    form : Form
        Set by :func:`reach`.
    model : str
        As well.
    lane : Lane
        Of requests whose prefixes may be reused.
    failures : list of str
        What went wrong on the way, in words.
    """

    def __init__(self, endpoint: Endpoint, options: ProbeOptions, prompts: Prompts) -> None:
        self.endpoint, self.options, self.prompts = endpoint, options, prompts
        self.form = FORMS[0]
        self.model = options.model or ""
        self.lane = Lane("own")
        self.failures: list[str] = []
        self.asked = 0
        self._row = 0
        self._until = time.monotonic() + options.deadline_s

    def ask(
        self,
        prompt: Prompt,
        lane: Lane | None = None,
        *,
        model: str | None = None,
        tokens: int | None = None,
        echo: bool = False,
    ) -> Answer:
        """Ask for a greedy continuation with its log-probabilities.

        Parameters
        ----------
        prompt : Prompt
        lane : Lane, optional
            Default: the service's own.
        model : str, optional
            Default: the service's own.
        tokens : int, optional
            Tokens to generate. Default: those of the options.
        echo : bool
            Ask for log-probabilities of the prompt too.

        Returns
        -------
        Answer

        Raises
        ------
        EndpointError
            The answer is not what the protocol says.
        Spent
            Nothing may be asked any more.
        """
        lane = lane or self.lane
        most = tokens or self.options.answer_tokens
        echoes = (echo or lane.echo) and self.form.kind == "ids"
        body = {**self._body(prompt, model or self.model, most, echoes), **lane.fields}
        self._may_ask()
        try:
            document = (lane.endpoint or self.endpoint).post(self._path(), body)
            answer = self._read(document, prompt, most, echoes)
        except EndpointError as error:
            self._failed(error)
            raise
        self._row = 0
        return replace(answer, body=body, asked=self.options.top)

    def forget_failure(self) -> None:
        """Take back that the last request failed: what was refused was only tried."""
        self.failures.pop()
        self._row = 0

    def _body(self, prompt: Prompt, model: str, most: int, echoes: bool) -> Json:
        body: Json = {"model": model, self.form.limit: most, "temperature": 0, **self.form.extras}
        if self.form.kind == "chat":
            body["messages"] = prompt.as_messages()
            if self.form.logprobs:
                body |= {"logprobs": True, "top_logprobs": self.options.top}
            return body
        body["prompt"] = list(prompt.pieces) if self.form.kind == "ids" else prompt.as_text()
        if self.form.logprobs:
            body["logprobs"] = self.options.top
        if echoes:
            body["echo"] = True
        return body

    def _path(self) -> str:
        return "/chat/completions" if self.form.kind == "chat" else "/completions"

    def _read(self, document: Json, prompt: Prompt, most: int, echoes: bool) -> Answer:
        if self.form.kind == "chat":
            answer = answers.chat(document, most=most)
        else:
            answer = answers.completion(document, echoed=len(prompt.pieces) if echoes else 0, most=most)
        if self.form.kind == "ids" and answer.prompt_tokens not in (None, len(prompt.pieces)):
            raise EndpointError(
                "usage.prompt_tokens", f"the {len(prompt.pieces)} ids of the prompt", answer.prompt_tokens
            )
        if self.form.logprobs and not answer.tokens:
            raise EndpointError("choices[0].logprobs", "log-probabilities, as asked for", "none")
        return answer

    def _may_ask(self) -> None:
        if self.asked >= self.options.max_requests:
            raise Spent(f"all {self.options.max_requests} requests were used")
        if time.monotonic() >= self._until:
            raise Spent(f"the {self.options.deadline_s:g} s of the probe are over")
        self.asked += 1

    def _failed(self, error: EndpointError) -> None:
        self.failures.append(str(error))
        self._row += 1
        if not error.refused and self._row >= _MOST_FAILURES:
            raise Spent(f"{self._row} requests failed in a row, the last: {error}") from error


def reach(service: Service) -> None:
    """Find the model and the form of request that a service accepts; what it puts around words is measured.

    Raises
    ------
    EndpointError
        It accepts none, or does not answer.
    Spent
        As :meth:`Service.ask`.
    """
    if not service.model:
        names = answers.models(service.endpoint.get("/models"))
        if not names:
            raise EndpointError("data", "a model (or --model)", "none")
        service.model = names[0]
    wanted = service.options.form
    last: EndpointError | None = None
    for form in [*FORMS, *(replace(form, logprobs=False) for form in FORMS)]:
        if wanted not in ("auto", form.kind):
            continue
        service.form = form
        service.prompts.words = form.kind != "ids"
        try:
            service.ask(service.prompts.fresh(24))
            break
        except EndpointError as error:
            service.forget_failure()  # a form that is refused is no failure
            missing = error.field == "choices[0].logprobs"
            if not error.refused and not missing:
                raise
            last = error
    else:
        raise last or EndpointError("form", "one that is accepted", "none")
    if service.prompts.words:
        _measure_words(service)


def _measure_words(service: Service) -> None:
    counts = []
    for words in (16, 112):
        answer = service.ask(service.prompts.fresh(words))
        if answer.prompt_tokens is None:
            return  # one token a word is what is left to think
        counts.append(answer.prompt_tokens)
    per = (counts[1] - counts[0]) / 96
    if not 0.25 <= per <= 8:
        raise EndpointError("usage.prompt_tokens", "0.25 to 8 tokens for each word", f"{per:g}")
    service.prompts.per_word, service.prompts.around = per, counts[0] - 16 * per
