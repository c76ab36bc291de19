# SPDX-License-Identifier: Apache-2.0
"""The probe against services that hang, drip, break their JSON or lead elsewhere: typed, bounded, partial results."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hybridkv import cli
from hybridkv.errors import ArgumentError
from hybridkv.probe import EndpointError, ProbeOptions, ProbeVerdict, probe
from hybridkv.probe.answers import chat, completion
from hybridkv.probe.endpoint import MOST_BYTES, Endpoint
from probe_models import TOY_FAULTS
from probe_server import Service, serving
from probe_support import SHORT, probed, toy

SECRET = "sk-do-not-show-me"


@contextmanager
def answering(send: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answer every connection by a function of its socket. Yields: the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def one(client: socket.socket) -> None:
        with client:
            try:
                client.recv(65536)
                send(client)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):  # closing before all was read would reset the connection
                    pass
            except OSError:
                pass

    def accept() -> None:
        while not ended.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    """Return an answer in whole."""
    told = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {told}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def dripping(first: bytes) -> Callable[[socket.socket], None]:
    def send(client: socket.socket) -> None:
        client.sendall(first)
        for _ in range(100):  # each byte comes long before a socket's own time-out
            client.sendall(b"x")
            time.sleep(0.05)

    return send


HOSTILE: dict[str, tuple[bytes, str]] = {
    "no JSON": (http(b"<html>"), "body"),
    "cut off": (http(b'{"choices": [{"text": "a'), "body"),
    "fewer bytes than told": (http(b'{"choices": []}', length=1000), "body"),
    "not a number": (http(b'{"usage": NaN}'), "number"),
    "infinity": (http(b'{"usage": -Infinity}'), "number"),
    "long number": (http(b'{"usage": ' + b"9" * 5000 + b"}"), "number"),
    "deep": (http(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "body"),
    "a list": (http(b"[]"), "body"),
    "no UTF-8": (http(b'{"a": "\xff"}'), "body"),
    "gzip": (http(gzip.compress(b" " * 10_000_000), "Content-Encoding: gzip"), "content-encoding"),
    "huge": (http(b" " * (MOST_BYTES + 1)), "body"),
    "redirect": (http(b"", "Location: http://127.0.0.1:1/elsewhere", status="307 Temporary Redirect"), "status"),
    "error": (http(b'{"error": "\x1b[31mred"}', status="500 Oh"), "status"),
    "no HTTP": (b"hello\r\n\r\n", "connection"),
    "nothing": (b"", "connection"),
    "endless header": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "connection"),
    "bad chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "connection"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_answers_that_are_none_are_refused_by_field(name: str) -> None:
    raw, field = HOSTILE[name]
    with answering(lambda client: client.sendall(raw)) as host:
        endpoint = Endpoint(f"http://{host}", retries=0, timeout_s=5.0)
        with pytest.raises(EndpointError) as refused:
            endpoint.post("/completions", {})
    assert refused.value.field == field, str(refused.value)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("scheme", "send"),
    [
        ("http", lambda client: time.sleep(3)),
        ("http", dripping(b"HTTP/1.1 200 OK\r\nX-Slow: ")),
        ("http", dripping(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n{")),
        ("https", dripping(b"\x16\x03\x03\x40\x00")),
    ],
    ids=["silent", "headers drip", "body drips", "handshake drips"],
)
def test_a_service_that_is_slow_is_left_at_the_deadline(scheme: str, send: Callable[[socket.socket], None]) -> None:
    with answering(send) as host:
        endpoint = Endpoint(f"{scheme}://{host}", retries=0, timeout_s=0.3)
        began = time.monotonic()
        with pytest.raises(EndpointError) as late:
            endpoint.get("/models")
        assert late.value.field == "time", str(late.value)
        assert time.monotonic() - began < 2.5  # without the timer: 5 s of drops, or for ever


def test_passing_failures_are_tried_again_and_counted() -> None:
    count = 0

    def send(client: socket.socket) -> None:
        nonlocal count
        count += 1
        client.sendall(http(b"{}") if count == 3 else http(b"", "Retry-After: 0", status="429 Slow down"))

    with answering(send) as host:
        endpoint = Endpoint(f"http://{host}", retries=2)
        assert endpoint.get("/models") == {} and (endpoint.requests, endpoint.retried) == (3, 2)
        count = 0
        with pytest.raises(EndpointError, match="429"):
            Endpoint(f"http://{host}", retries=1).get("/models")
    count = 0
    with answering(lambda client: client.sendall(http(b"", status="404 No"))) as host:
        endpoint = Endpoint(f"http://{host}", retries=2)
        with pytest.raises(EndpointError) as refused:
            endpoint.get("/models")
        assert refused.value.refused and endpoint.requests == 1  # that will not be another in a moment


# -- the key -----------------------------------------------------------------------------------------


def test_a_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PROBE_KEY", SECRET)
    service = Service(toy())

    def echoes(handler: Any, document: Any) -> bool:
        if len(service.seen) == 30:
            handler.send(500, json.dumps({"error": handler.headers["Authorization"]}).encode())
        return len(service.seen) == 30

    service.raw = echoes
    with serving(service) as url:
        arguments = ["probe", url, "--vocabulary", "0:256", "--window", "16", "--samples", "1", "--longest", "128"]
        arguments += ["--seed", "11"]
        assert cli.main([*arguments, "--key-env", "PROBE_KEY", "--retries", "0", "--json"]) == 0
    printed = capsys.readouterr()
    assert service.headers[0]["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in printed.out + printed.err and "***" in printed.out


def test_a_key_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_KEY", SECRET)
    seen: list[bytes] = []

    def elsewhere(client: socket.socket) -> None:
        seen.append(b"came")

    with (
        answering(elsewhere) as other,
        answering(
            lambda client: client.sendall(http(b"", f"Location: http://{other}/{SECRET}", status="302 Found"))
        ) as host,
    ):
        with pytest.raises(EndpointError) as moved:
            Endpoint(f"http://{host}", key_env="PROBE_KEY").get("/models")
        assert "redirects are not followed" in str(moved.value) and SECRET not in str(moved.value)
    assert not seen
    with pytest.raises(ArgumentError, match="https"):
        Endpoint("http://example.com", key_env="PROBE_KEY")
    Endpoint("http://example.com", key_env="PROBE_KEY", plain_key=True)
    Endpoint("https://example.com", key_env="PROBE_KEY")


@pytest.mark.parametrize("key", ["", "two\nlines", "sch\u00f6n"])
def test_a_key_that_is_none_is_refused_without_being_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_KEY", key)
    with pytest.raises(ArgumentError, match="key_env") as refused:
        Endpoint("https://example.com", key_env="PROBE_KEY")
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://user:secret@x",
        "http://x?key=1",
        "http://x#a",
        "http://x:99999",
        "http://x/a b",
        "x",
    ],
)
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ArgumentError, match="url") as refused:
        probe(url)
    assert "secret" not in str(refused.value)


# -- answers of the wrong shape ----------------------------------------------------------------------


def good() -> dict[str, Any]:
    return {
        "choices": [{"text": "ab", "logprobs": {
            "tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": [{"a": -1.0}, {"b": -2.0, "c": -3.0}],
        }}],
        "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
    }  # fmt: skip


def put(path: str, value: Any) -> dict[str, Any]:
    document: Any = good()
    *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    at = document
    for step in way:
        at = at[step]
    at[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("choices", [], "choices"), ("choices", {}, "choices"), ("choices/0", 5, "choices[0]"),
        ("choices/0/text", None, "choices[0].text"), ("choices/0/logprobs", [], "choices[0].logprobs"),
        ("choices/0/logprobs/tokens", ["a"], "token_logprobs"), ("choices/0/logprobs/tokens", [1, 2], "tokens"),
        ("choices/0/logprobs/token_logprobs", [-1.0], "token_logprobs"),
        ("choices/0/logprobs/token_logprobs", [None, -1.0], "logprob"),
        ("choices/0/logprobs/token_logprobs", [5.0, -1.0], "top_logprobs[0]"),
        ("choices/0/logprobs/token_logprobs", [True, -1.0], "top_logprobs[0]"),
        ("choices/0/logprobs/token_logprobs", [1e999, -1.0], "top_logprobs[0]"),
        ("choices/0/logprobs/top_logprobs", [{"a": "x"}, {}], "top_logprobs[0]"),
        ("choices/0/logprobs/top_logprobs", [{"a": -1.0}], "top_logprobs"),
        ("usage", 7, "usage"), ("usage/prompt_tokens", -1, "prompt_tokens"),
        ("usage/prompt_tokens", 2.5, "prompt_tokens"),
        ("usage/prompt_tokens_details", 7, "prompt_tokens_details"),
        ("usage/prompt_tokens_details/cached_tokens", 10, "cached_tokens"),
        ("usage/prompt_tokens_details/cached_tokens", True, "cached_tokens"),
    ],
)  # fmt: skip
def test_answers_of_another_shape_are_refused_by_place(path: str, value: Any, field: str) -> None:
    assert completion(good(), most=2).cached_tokens == 4
    with pytest.raises(EndpointError) as refused:
        completion(put(path, value), most=2)
    assert field in refused.value.field, str(refused.value)


def test_more_tokens_than_asked_for_are_refused() -> None:
    with pytest.raises(EndpointError, match="0 to 1 tokens"):
        completion(good(), most=1)
    entry = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "a", "logprob": -1.0}]}
    document: Any = {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [entry, entry]}}]}
    assert chat(document, most=2).tokens == ("a", "a")
    with pytest.raises(EndpointError, match="at most 1 tokens"):
        chat(document, most=1)
    for broken in (5, {"token": 5, "logprob": -1.0}, {"token": "a"}, {**entry, "top_logprobs": [{"token": "b"}]}):
        document["choices"][0]["logprobs"]["content"] = [broken]
        with pytest.raises(EndpointError, match="content"):
            chat(document, most=2)


# -- what is known is kept ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["hangs", "breaks"])
def test_partial_results_are_kept_and_printed(how: str) -> None:
    service = Service(toy())

    def fails(handler: Any, document: Any) -> bool:
        if len(service.seen) <= 40:
            return False
        if how == "hangs":
            time.sleep(1.0)
        handler.send(200, b'{"choices": [{"te')
        return True

    service.raw = fails
    with serving(service) as url:
        report = probe(url, ProbeOptions(**SHORT, timeout_s=0.2, retries=0))
    assert report.verdict is ProbeVerdict.CANNOT_TELL and "3 requests failed in a row" in report.reason
    assert report.reuse is not None and report.reuse.step == 16 and len(report.control.same) == 2
    assert report.observations and report.as_json()["trials"]
    assert len(report.failures) == 3 and "failure" in report.as_text()


def test_false_hits_that_were_seen_stay_seen_when_the_service_goes_away() -> None:
    service = Service(toy(TOY_FAULTS["window zero"]))
    service.raw = lambda handler, document: len(service.seen) > 60 and not handler.send(503, b"busy")
    with serving(service) as url:
        report = probe(url, ProbeOptions(**SHORT, retries=0))
    assert report.verdict is ProbeVerdict.FALSE_HITS and report.stopped


def test_the_bounds_of_a_probe_are_kept() -> None:
    few = probed(max_requests=30)
    assert few.verdict is ProbeVerdict.CANNOT_TELL and "30 requests" in few.reason and few.requests <= 31
    late = probed(deadline_s=1e-6, model="tiny")
    assert late.verdict is ProbeVerdict.CANNOT_TELL and late.requests == 0


def test_a_single_broken_answer_is_told_and_passed_over() -> None:
    service = Service(toy())
    service.raw = lambda handler, document: len(service.seen) == 40 and not handler.send(200, b"[]")
    with serving(service) as url:
        report = probe(url, ProbeOptions(**SHORT))
    assert report.verdict is ProbeVerdict.CONSISTENT and len(report.failures) == 1


# -- the command -------------------------------------------------------------------------------------


def test_the_command_prints_the_verdict_and_exits_by_it(capsys: pytest.CaptureFixture[str]) -> None:
    common = [
        "--vocabulary",
        "0:256",
        "--window",
        "16",
        "--samples",
        "1",
        "--controls",
        "4",
        "--far-tokens",
        "24",
        "--seed",
        "11",
    ]
    for engine, status, said in (
        (toy(), 0, "consistent"),
        (toy(TOY_FAULTS["window zero"]), 1, "false hits seen"),
        (toy(reuses=False), 3, "no reuse observed"),
    ):
        with serving(Service(engine)) as url:
            assert cli.main(["probe", url, *common, "--longest", "128"]) == status
        assert capsys.readouterr().out.startswith(said)
    assert cli.main(["probe", "http://127.0.0.1:9", "--model", "m", "--retries", "0", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "cannot tell"
    assert cli.main(["probe", "http://127.0.0.1:9", "--vocabulary", "1-2"]) == 2
    assert capsys.readouterr().err.startswith("hybridkv probe: vocabulary: expected LOW:HIGH")


def test_importing_the_package_opens_nothing() -> None:
    program = "import sys, hybridkv; print([m for m in ('http.client', 'ssl', 'hybridkv.probe') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
