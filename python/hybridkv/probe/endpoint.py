# SPDX-License-Identifier: Apache-2.0
"""HTTP to a service that is not trusted: bounded in time and bytes, no redirects, no compression, a key never shown.

The standard library is enough: one request a connection, one JSON object each way. A timer shuts the socket at the
deadline of a request, so that a service which sends a byte now and then, in its headers too, cannot hold it longer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from hybridkv.errors import ArgumentError, HybridKVError

MOST_BYTES = 8 << 20
"""Of one response."""

RETRIED = (429, 500, 502, 503, 504)
"""Status codes after which a request is sent again; also after a connection that could not be made or broke."""

LONGEST_WAIT_S = 10.0
"""Of a Retry-After that is obeyed."""

_MOST_DIGITS = 40
_SHOWN = 160
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

Json = dict[str, Any]


class EndpointError(HybridKVError):
    """A service did not answer as its protocol says.

    Attributes
    ----------
    field : str
        What of the answer was refused: "status", "body", "time", "connection", or the place in the JSON.
    status : int or None
        HTTP status, where one came.
    refused : bool
        The service said that the request is not acceptable (400, 404, 405, 415, 422): another form may be.
    wait_s : float
        How long it asks to wait before the next try.
    """

    status: int | None = None
    refused: bool = False
    wait_s: float = 0.2


class Endpoint:
    """One base address of an OpenAI-compatible service.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``, host, optional port and path; ``/v1`` is added where the path does not end so.
    key_env : str, optional
        Environment variable that holds the API key. It is read for each request, sent to this host alone, and
        replaced by asterisks wherever the service sends it back. Default: no key.
    timeout_s : float
        Longest time of one request, connection and all.
    retries : int
        How often a request is sent again after :data:`RETRIED`.
    plain_key : bool
        Whether the key may go over http to another host than this one.

    Attributes
    ----------
    requests, retried : int
        How many were sent, and how many of these again.

    Raises
    ------
    ArgumentError
        An address with credentials or a query, another scheme, a key that is not set or is no header value.
    """

    def __init__(
        self,
        url: str,
        *,
        key_env: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 1,
        plain_key: bool = False,
    ) -> None:
        self._address = _checked(url)
        self._key_env, self._timeout_s, self._retries = key_env, timeout_s, retries
        self.requests = self.retried = 0
        key = self._key()
        if key and self._address.scheme == "http" and self._address.hostname not in _LOOPBACK and not plain_key:
            raise ArgumentError("url", "https where a key is sent (or --plain-key)", self.shown)

    @property
    def shown(self) -> str:
        """The address, as reports name it."""
        return f"{self._address.scheme}://{self._address.netloc}{self._path}"

    @property
    def _path(self) -> str:
        path = self._address.path.rstrip("/")
        return path if path.endswith("/v1") else f"{path}/v1"

    def _key(self) -> str:
        if self._key_env is None:
            return ""
        key = os.environ.get(self._key_env, "")
        if not key:
            raise ArgumentError("key_env", "an environment variable that is set", self._key_env)
        if not key.isascii() or not key.isprintable():  # else http.client would quote it in an exception
            raise ArgumentError("key_env", "a key of printable ASCII characters", f"another one in {self._key_env}")
        return key

    def get(self, path: str) -> Json:
        """Ask for one JSON object; see :meth:`post`."""
        return self._again("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Json:
        """Send one JSON object and return the one that comes.

        Parameters
        ----------
        path : str
            Below the base address, such as "/completions".
        body : mapping
            What is sent.

        Returns
        -------
        dict

        Raises
        ------
        EndpointError
            No answer in time, none at all, too long, compressed, a redirect, an error status, no JSON object, a
            number that is not finite.
        """
        return self._again("POST", path, json.dumps(body).encode())

    def _again(self, method: str, path: str, body: bytes | None) -> Json:
        for attempt in range(self._retries + 1):
            try:
                self.requests += 1
                return self._once(method, path, body)
            except EndpointError as error:
                passing = error.field == "connection" or error.status in RETRIED
                if not passing or attempt == self._retries:
                    raise
                self.retried += 1
                time.sleep(min(error.wait_s, LONGEST_WAIT_S))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, method: str, path: str, body: bytes | None) -> Json:
        key = self._key()
        connection = self._connection()
        late = threading.Event()
        held: list[socket.socket] = []  # http.client lets go of the socket once an answer begins

        def give_up() -> None:
            late.set()
            for sock in [*held, connection.sock]:
                with contextlib.suppress(OSError, AttributeError):
                    sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            if key:
                headers["Authorization"] = f"Bearer {key}"
            connection.connect()
            held.append(connection.sock)
            connection.request(method, self._path + path, body=body, headers=headers)
            with connection.getresponse() as response:  # which has the socket to itself by now
                return _answer(response, key, late)
        except TimeoutError:
            raise self._too_late() from None
        except (OSError, http.client.HTTPException) as error:
            if late.is_set():
                raise self._too_late() from None
            said = _clean(f"{type(error).__name__}: {error}", key)
            raise EndpointError("connection", "an HTTP answer", said) from None
        finally:
            timer.cancel()
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "https":
            return _SecureConnection(host, port, timeout=self._timeout_s)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _too_late(self) -> EndpointError:
        return EndpointError("time", f"an answer within {self._timeout_s:g} s", "none that was whole")


class _SecureConnection(http.client.HTTPSConnection):
    """Shakes hands after its socket is in place, so that a handshake without end can be cut off too."""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        context = ssl.create_default_context()
        self.sock = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock.do_handshake()


def _checked(url: str) -> SplitResult:
    expected = "http:// or https:// with a host, no user, query or fragment"
    try:
        address = urlsplit(url)
        port = address.port
    except ValueError as error:
        raise ArgumentError("url", expected, str(error)) from None
    if address.username is not None or address.password is not None:
        raise ArgumentError("url", expected, "an address with a user or password in it")
    if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
        raise ArgumentError("url", expected, url[:_SHOWN])
    if not url.isascii() or not url.isprintable() or " " in url or port == 0:
        raise ArgumentError("url", expected, ascii(url[:_SHOWN]))
    return address


def _answer(response: http.client.HTTPResponse, key: str, late: threading.Event) -> Json:
    """Read a response within its bounds; an error status is told with what the service says of it."""
    status = response.status
    if 300 <= status < 400:
        host = _clean(response.headers.get("Location") or "nowhere", key)
        raise EndpointError("status", "an answer (redirects are not followed)", f"{status} to {host}", status=status)
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise EndpointError("content-encoding", "identity, as was asked for", _clean(encoding, key), status=status)
    raw = response.read(MOST_BYTES + 1)
    if late.is_set():
        raise TimeoutError
    if len(raw) > MOST_BYTES:
        raise EndpointError("body", f"at most {MOST_BYTES} bytes", "more", status=status)
    if response.length:  # fewer bytes than the header said; http.client tells only a read without a limit
        raise EndpointError("body", "as many bytes as Content-Length says", f"{response.length} fewer", status=status)
    if status != 200:
        raise _refusal(status, raw, response.headers.get("Retry-After"), key)
    return parsed_body(raw, key)


def _refusal(status: int, raw: bytes, wait: str | None, key: str) -> EndpointError:
    said = _clean(raw.decode("utf-8", "replace"), key)
    context: dict[str, Any] = {"status": status, "refused": status in (400, 404, 405, 415, 422)}
    if wait is not None and wait.strip().isdecimal() and len(wait) < 9:
        context["wait_s"] = float(wait)
    return EndpointError("status", 200, f"{status}: {said}", **context)


def parsed_body(raw: bytes, key: str) -> Json:
    """Return the object of JSON that an answer's body is; the key is never in what is said of it.

    Raises
    ------
    EndpointError
        It is none.
    """
    try:
        document = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, parse_int=_int)
    except EndpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise EndpointError("body", "one object of JSON in UTF-8", _clean(str(error), key), status=200) from None
    if not isinstance(document, dict):
        raise EndpointError("body", "one object of JSON", type(document).__name__, status=200)
    return document


def _no_constant(name: str) -> Any:
    raise EndpointError("number", "a finite number", name, status=200)


def _int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise EndpointError("number", f"at most {_MOST_DIGITS} digits", f"{len(text)} digits", status=200)
    return int(text)


def _clean(text: str, key: str) -> str:
    """Make what a service said fit for a terminal and a report: short, printable, without the key."""
    if key:
        text = text.replace(key, "***")
    return "".join(c if c.isprintable() else "?" for c in text[:_SHOWN])
