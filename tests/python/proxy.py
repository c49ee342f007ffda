# SPDX-License-Identifier: BSD-3-Clause
"""A proxy between an HTTP client and a server on 127.0.0.1 that spoils some of the requests.

    with Proxy("http://127.0.0.1:5000", nth(1, Fault.LOSE_REPLY, "PUT", "/log/")) as proxy:
        client = Client(proxy.url)

It handles whole requests and replies, each in memory, and forwards headers as they are, so signatures stay valid.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit


class Fault(Enum):
    LOSE_REQUEST = "the server never sees the request; the client's connection ends"
    LOSE_REPLY = "the server handles the request; the client's connection ends"
    HOLD = "as LOSE_REQUEST, but the server sees the request later, at Proxy.release()"
    DELAY = "the reply comes Proxy.delay seconds later"
    SLOW_DOWN = "the server never sees the request; the reply is 503 SlowDown"
    FLIP = "one bit of the reply's body is wrong"
    TRUNCATE = "the reply's body ends in the middle, with the connection"


class Request(NamedTuple):
    number: int
    """Of the proxy's requests, from 1."""
    method: str
    path: str
    """With the query."""


Choice = Callable[[Request], Fault | None]


def nth(n: int, fault: Fault, method: str = "", path: str = "") -> Choice:
    """Spoils the n-th request, or the n-th of those of a method with a part of a path."""
    seen = 0

    def choose(request: Request) -> Fault | None:
        nonlocal seen
        seen += method in ("", request.method) and path in request.path
        return fault if seen == n and method in ("", request.method) and path in request.path else None

    return choose


def at_random(seed: int, share: float, faults: Sequence[Fault] = tuple(Fault)) -> Choice:
    """Spoils a share of the requests. The seed and the number of a request decide on it."""

    def choose(request: Request) -> Fault | None:
        chance = random.Random(f"{seed} {request.number}")
        return chance.choice(faults) if chance.random() < share else None

    return choose


def each(*choices: Choice) -> Choice:
    """Asks all of the choices, and takes the first fault."""

    def choose(request: Request) -> Fault | None:
        found = [choice(request) for choice in choices]
        return next((fault for fault in found if fault), None)

    return choose


class _Reply(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


_HOP = ("connection", "keep-alive", "transfer-encoding", "expect", "te", "upgrade")
_SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your rate.</Message></Error>'


class Proxy:
    """Forwards requests to ``server`` until its end. ``choose`` returns the fault of each; None: none."""

    def __init__(self, server: str, choose: Choice = lambda _: None, *, delay: float = 0.1) -> None:
        self.choose = choose
        self.delay = delay
        self.requests: list[tuple[Request, Fault | None]] = []
        self._server = urlsplit(server)
        self._held: list[Callable[[], _Reply]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._listener = _Listener(("127.0.0.1", 0), _Handler)
        self._listener.proxy = self
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._ended.set()
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()

    def release(self) -> list[int]:
        """Lets the held requests reach the server, and returns the statuses of its replies."""
        with self._lock:
            held, self._held = self._held, []
        return [forward().status for forward in held]

    def _begin(self, method: str, path: str) -> Fault | None:
        with self._lock:
            request = Request(len(self.requests) + 1, method, path)
            fault = self.choose(request)
            self.requests.append((request, fault))
            return fault

    def _forward(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> _Reply:
        connection = http.client.HTTPConnection(self._server.hostname or "", self._server.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            return _Reply(reply.status, reply.getheaders(), reply.read())
        finally:
            connection.close()


class _Listener(ThreadingHTTPServer):
    proxy: Proxy
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no error of the proxy."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def log_message(self, *_: object) -> None:
        pass

    def handle_request(self) -> None:
        proxy = self.server.proxy
        method, path, body = self.command, self.path, self._read_body()
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _HOP]
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            headers.append(("Content-Length", str(len(body))))
        fault = proxy._begin(method, path)
        if fault is Fault.HOLD:
            with proxy._lock:
                proxy._held.append(lambda: proxy._forward(method, path, headers, body))
        if fault in (Fault.HOLD, Fault.LOSE_REQUEST):
            self._hang_up()
            return
        if fault is Fault.SLOW_DOWN:
            self._reply(_Reply(503, [("Content-Type", "application/xml")], b"" if method == "HEAD" else _SLOW_DOWN))
            return
        try:
            reply = proxy._forward(method, path, headers, body)
        except (OSError, http.client.HTTPException):
            self._hang_up()
            return
        if fault is Fault.LOSE_REPLY:
            self._hang_up()
            return
        if fault is Fault.DELAY:
            proxy._ended.wait(proxy.delay)
        if fault is Fault.FLIP and reply.body:
            middle = len(reply.body) // 2
            flipped = bytes([reply.body[middle] ^ 0x10])
            reply = reply._replace(body=reply.body[:middle] + flipped + reply.body[middle + 1 :])
        self._reply(reply, cut=fault is Fault.TRUNCATE)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_request

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _reply(self, reply: _Reply, *, cut: bool = False) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            if name.lower() not in (*_HOP, "content-length"):
                self.send_header(name, value)
        length = str(len(reply.body))
        if self.command == "HEAD":
            length = next((value for name, value in reply.headers if name.lower() == "content-length"), length)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(reply.body[: len(reply.body) // 2] if cut else reply.body)
        if cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the client was faster
