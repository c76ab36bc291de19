# SPDX-License-Identifier: Apache-2.0
"""A stand-in of a hosted service on the loopback: completions with ids or text, chat, log-probabilities, salts."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import numpy as np

from probe_models import VOCABULARY, Ids, Rows, Served

Json = dict[str, Any]

_TEMPLATE = (3, 1, 4)  # before every message of a chat
_ROLES = {"user": 5, "assistant": 6}


class Engine(Protocol):
    def serve(self, ids: Ids, most: int, salt: str, echo: bool = False) -> Served: ...


@dataclass
class Service:
    """How a service answers.

    Attributes
    ----------
    engine : Engine
    forms : set of str
        Of "ids", "text", "chat".
    refuses : set of str
        Fields of a request that it refuses.
    logprobs, cached, names : bool
        Gives log-probabilities; tells cached_tokens; writes tokens as ids where asked.
    salted : bool
        Keeps salts apart. Other tenants' keys are apart always.
    echo : {"computed", "reused"}
        What a request for log-probabilities of the prompt does with what is cached.
    told : callable
        (cached tokens, prompt tokens) -> what it tells.
    adapters : dict
        Model names and the namespace of each.
    raw : callable, optional
        (handler, document) -> True where it has answered by itself.
    seen : list of dict
        Requests as they came; `headers` beside them.
    """

    engine: Engine
    forms: set[str] = field(default_factory=lambda: {"ids", "text", "chat"})
    refuses: set[str] = field(default_factory=set)
    logprobs: bool = True
    cached: bool = True
    names: bool = True
    salted: bool = True
    echo: str = "computed"
    told: Callable[[int, int], int] = lambda cached, prompt: cached
    adapters: dict[str, str] = field(default_factory=lambda: {"tiny": ""})
    raw: Callable[[Any, Json], bool] | None = None
    seen: list[Json] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)
    _scratches: int = 0

    def answer(self, path: str, body: Json, headers: Any) -> tuple[int, Json]:
        """Return status and document."""
        with self._lock:
            self.seen.append(body)
            self.headers.append(headers)
            chat = path.endswith("/chat/completions")
            form = "chat" if chat else ("ids" if isinstance(body.get("prompt"), list) else "text")
            refused = self.refuses & body.keys()
            if form not in self.forms or refused or body.get("model") not in self.adapters:
                return 400, {"error": {"message": f"{form}, {refused or body.get('model')}: not supported"}}
            if chat:
                ids = tuple(token for one in body["messages"] for token in self._message(one))
            else:
                ids = tuple(body["prompt"]) if form == "ids" else words_to_ids(body["prompt"])
            most = int(body.get("max_tokens") or body["max_completion_tokens"])
            made = self.engine.serve(ids, most, self._space(body, headers), bool(body.get("echo")))
            return 200, self._document(body, ids, made, chat)

    def _message(self, message: Json) -> Ids:
        return (*_TEMPLATE, _ROLES[message["role"]], *words_to_ids(message["content"]))

    def _space(self, body: Json, headers: Any) -> str:
        parts = [str(headers.get("Authorization")), self.adapters[body["model"]]]
        if self.salted:
            parts.append(str(body.get("cache_salt")))
        if body.get("echo") and self.echo == "computed":
            self._scratches += 1
            parts.append(f"from scratch {self._scratches}")
        return "|".join(parts)

    def _document(self, body: Json, ids: Ids, made: Served, chat: bool) -> Json:
        wants = bool(body.get("logprobs")) and self.logprobs
        count = int(body.get("top_logprobs") if chat else body.get("logprobs") or 0) if wants else 0
        by_id = bool(body.get("return_tokens_as_token_ids")) and self.names
        name: Callable[[int], str] = (lambda i: f"token_id:{i}") if by_id else (lambda i: f"w{i}")
        told = [_logprobs(row, taken, count, name) for row, taken in zip(made.rows, made.ids, strict=True)]
        names = [name(token) for token in made.ids]
        text = " ".join(f"w{token}" for token in made.ids)
        choice: Json
        if chat:
            content = [
                {"token": token, "logprob": top[token],
                 "top_logprobs": [{"token": t, "logprob": v} for t, v in top.items()]}
                for token, top in zip(names, told, strict=True)
            ]  # fmt: skip
            choice = {
                "message": {"role": "assistant", "content": text},
                "logprobs": {"content": content} if wants else None,
            }
        else:
            if body.get("echo"):
                names, told = self._echoed(ids, made, count, name, names, told)
            logprobs = {
                "tokens": names,
                "token_logprobs": [None if top is None else top[token] for token, top in zip(names, told, strict=True)],
                "top_logprobs": told,
            }
            choice = {"text": text, "logprobs": logprobs if wants else None}
        usage: Json = {"prompt_tokens": len(ids), "completion_tokens": len(made.ids)}
        if self.cached:
            usage["prompt_tokens_details"] = {"cached_tokens": self.told(made.cached, len(ids))}
        return {"object": "completion", "choices": [choice], "usage": usage}

    def _echoed(self, ids: Ids, made: Served, count: int, name: Any, names: Any, told: Any) -> tuple[Any, Any]:
        """Put the prompt's tokens before; those that were not computed have no log-probabilities."""
        first = len(ids) - len(made.prompt)  # the token after it is the first that has any
        tops = [
            None if at <= first else _logprobs(made.prompt[at - 1 - first], token, count, name)
            for at, token in enumerate(ids)
        ]
        return [name(token) for token in ids] + names, tops + told


def words_to_ids(text: str) -> Ids:
    """Return one id for each word, three for a number of nine digits."""
    ids: list[int] = []
    for word in text.split():
        if word[:1] == "w" and word[1:].isdigit():
            ids.append(int(word[1:]))
        elif word.isdigit():
            ids += [zlib.crc32(word[at : at + 3].encode()) % VOCABULARY for at in range(0, len(word), 3)]
        else:
            ids.append(zlib.crc32(word.encode()) % VOCABULARY)
    return tuple(ids)


def _logprobs(row: Rows, taken: int, count: int, name: Callable[[int], str]) -> dict[str, float]:
    values = row - row.max()
    values = values - np.log(np.exp(values).sum())
    chosen = dict.fromkeys([*np.argsort(-values)[:count].tolist(), taken])
    return {name(token): float(values[token]) for token in chosen}


class _Handler(BaseHTTPRequestHandler):
    service: Service

    def do_GET(self) -> None:
        document = {"data": [{"id": name} for name in self.service.adapters]}
        self.send(200, document)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, document = self.service.answer(self.path, body, self.headers)
        if self.service.raw is None or not self.service.raw(self, document):
            self.send(status, document)

    def send(self, status: int, document: Json | bytes, **headers: str) -> None:
        """Send a whole answer."""
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", "Content-Length": str(len(raw)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what some tests are about."""


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """Serve on a free port of the loopback. Yields: the address."""
    handler = type("Handler", (_Handler,), {"service": service})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
