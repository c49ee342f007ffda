# SPDX-License-Identifier: BSD-3-Clause
"""proxy.py: each of its faults, as a client and the server see it."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from proxy import Fault, Proxy, Request, at_random, each, nth

LOST = (http.client.HTTPException, OSError)


class _Objects(ThreadingHTTPServer):
    """Has objects in memory, and creates one only if it is not there."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.hosts: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Objects

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.hosts.add(self.headers["Host"])
        if self.headers.get("If-None-Match") == "*" and self.path in self.server.objects:
            self.answer(412)
            return
        self.server.objects[self.path] = body
        self.answer(200)

    def do_GET(self) -> None:
        if self.path in self.server.objects:
            self.answer(200, self.server.objects[self.path])
        else:
            self.answer(404, b"none")

    do_HEAD = do_GET


@pytest.fixture
def server() -> Iterator[_Objects]:
    with _Objects() as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
        thread.start()
        yield listener
        listener.shutdown()
        thread.join()


@contextmanager
def started(server: _Objects, *choices: object) -> Iterator[Proxy]:
    with Proxy(f"http://127.0.0.1:{server.server_address[1]}", *choices) as proxy:  # type: ignore[arg-type]
        yield proxy


def ask(proxy: Proxy, method: str, path: str, body: bytes | Iterator[bytes] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, body, {"If-None-Match": "*"} if method == "PUT" else {})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_nothing_changes_without_faults(server: _Objects) -> None:
    body = bytes(range(256)) * 5000
    with started(server) as proxy:
        assert ask(proxy, "PUT", "/b/a%20b?x=1", body) == (200, b"")
        assert ask(proxy, "PUT", "/b/a%20b?x=1", b"other") == (412, b"")
        assert ask(proxy, "GET", "/b/a%20b?x=1") == (200, body)
        assert ask(proxy, "GET", "/none") == (404, b"none")
        assert ask(proxy, "PUT", "/chunks", iter([b"ab", b"", b"cde"])) == (200, b"")
        assert server.objects["/chunks"] == b"abcde"
        assert server.hosts == {proxy.url.removeprefix("http://")}, "a signature covers the client's Host"
        assert [request.method for request, _ in proxy.requests] == ["PUT", "PUT", "GET", "GET", "PUT"]
        connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"))
        for _ in range(2):  # on one connection
            connection.request("HEAD", "/chunks")
            reply = connection.getresponse()
            assert (reply.status, reply.headers["Content-Length"], reply.read()) == (200, "5", b"")
        connection.close()


def test_a_lost_request_never_arrives(server: _Objects) -> None:
    with started(server, nth(1, Fault.LOSE_REQUEST)) as proxy:
        with pytest.raises(LOST):
            ask(proxy, "PUT", "/a", b"1")
        assert server.objects == {}
        assert ask(proxy, "PUT", "/a", b"2") == (200, b"")


def test_a_lost_reply_leaves_the_object(server: _Objects) -> None:
    with started(server, nth(1, Fault.LOSE_REPLY)) as proxy:
        with pytest.raises(LOST):
            ask(proxy, "PUT", "/a", b"1")
        assert ask(proxy, "PUT", "/a", b"2") == (412, b"")
        assert server.objects == {"/a": b"1"}


def test_a_held_request_arrives_late(server: _Objects) -> None:
    with started(server, nth(1, Fault.HOLD)) as proxy:
        with pytest.raises(LOST):
            ask(proxy, "PUT", "/a", b"1")
        assert server.objects == {}
        assert proxy.release() == [200]
        assert server.objects == {"/a": b"1"}
        assert proxy.release() == []


def test_replies_are_spoilt(server: _Objects) -> None:
    body = bytes(1000)
    server.objects["/a"] = body
    choices = each(nth(1, Fault.SLOW_DOWN), nth(2, Fault.FLIP), nth(3, Fault.TRUNCATE), nth(4, Fault.DELAY))
    with started(server, choices) as proxy:
        status, text = ask(proxy, "GET", "/a")
        assert status == 503 and b"<Code>SlowDown</Code>" in text
        status, text = ask(proxy, "GET", "/a")
        assert status == 200 and len(text) == 1000 and sum(byte.bit_count() for byte in text) == 1
        with pytest.raises(http.client.IncompleteRead) as error:
            ask(proxy, "GET", "/a")
        assert len(error.value.partial) == 500
        assert ask(proxy, "GET", "/a") == (200, body)
        assert [fault for _, fault in proxy.requests] == [Fault.SLOW_DOWN, Fault.FLIP, Fault.TRUNCATE, Fault.DELAY]


def test_a_delayed_reply_does_not_delay_others(server: _Objects) -> None:
    replies = []
    with started(server, nth(1, Fault.DELAY)) as proxy:
        proxy.delay = 1e9  # until the end of the proxy
        delayed = threading.Thread(target=lambda: replies.append(ask(proxy, "PUT", "/a", b"1")), daemon=True)
        delayed.start()
        while "/a" not in server.objects:
            time.sleep(0.01)
        assert ask(proxy, "GET", "/a") == (200, b"1")
        assert not replies
    delayed.join()
    assert replies == [(200, b"")]


def test_requests_are_chosen(server: _Objects) -> None:
    with started(server, nth(2, Fault.LOSE_REPLY, "PUT", "/log/")) as proxy:
        for method, path in (("PUT", "/log/1"), ("PUT", "/data/1"), ("GET", "/log/1")):
            assert ask(proxy, method, path, b"x" if method == "PUT" else None)[0] == 200
        with pytest.raises(LOST):
            ask(proxy, "PUT", "/log/2", b"x")
        assert ask(proxy, "PUT", "/log/3", b"x")[0] == 200


def test_a_seed_repeats_its_faults() -> None:
    requests = [Request(number, "GET", "/") for number in range(1, 2001)]
    first = [at_random(7, 0.25)(request) for request in requests]
    assert first == [at_random(7, 0.25)(request) for request in requests]
    assert first != [at_random(8, 0.25)(request) for request in requests]
    assert set(first) == {None, *Fault}
    assert 400 < sum(fault is not None for fault in first) < 600


def test_a_server_that_is_gone_ends_the_connection(server: _Objects) -> None:
    with started(server) as proxy:
        server.shutdown()
        server.server_close()
        with pytest.raises(LOST):
            ask(proxy, "GET", "/a")
