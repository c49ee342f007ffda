# SPDX-License-Identifier: BSD-3-Clause
"""Pushes and pulls over bad connections, and to servers that refuse."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from lmcstore._remote import files, late, push, state, sweep, upload
from lmcstore._remote.place import _ATTEMPTS, Place
from proxy import Fault, Proxy, Request, at_random, nth
from test_remote_push import expect, fill, pulled

ORDINARY = (Fault.LOSE_REPLY, Fault.SLOW_DOWN, Fault.HOLD)
FAULTS = [pytest.param(one, marks=() if one in ORDINARY else pytest.mark.deep) for one in Fault]


@pytest.fixture
def proxy(bucket: str, object_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that all clients of the test use, and few waits."""
    monkeypatch.setattr("lmcstore._remote.place._FIRST_PAUSE_S", 0.001)
    with Proxy(object_server, delay=0.01) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def count(proxy: Proxy, work: Any) -> int:
    """Return the number of requests that some work takes."""
    before = len(proxy.requests)
    work()
    return len(proxy.requests) - before


NO_HOST = 'Generic HTTP error: error sending request\n\nDebug source:\nConnect, "dns error", failed to lookup address'


def test_an_open_does_not_wait_for_an_unknown_host(store: lmcstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push does, since the network of its machine may come back; so do reads once the server has answered."""
    GenericError = pytest.importorskip("obstore.exceptions").GenericError
    url, tries, answers = f"memory://{secrets.token_hex(8)}", 0, False
    fill(store, 1, 2)
    store.push(url)
    monkeypatch.setattr("lmcstore._remote.place._FIRST_PAUSE_S", 0.001)
    get = files.MemoryClient.get

    def fails(client: files.MemoryClient, name: str, most: int) -> bytes:
        nonlocal tries
        if answers:
            return get(client, name, most)
        tries += name == state.HEAD
        raise GenericError(NO_HOST)

    monkeypatch.setattr(files.MemoryClient, "get", fails)
    for work, most in ((lmcstore.open, 2), (store.push, _ATTEMPTS)):
        tries = 0
        with pytest.raises(lmcstore.InputOutputError, match="the name of its host was not found"):
            work(url)
        assert tries == most
    answers = True
    with lmcstore.open(url) as there:
        answers, tries = False, 0
        with pytest.raises(lmcstore.InputOutputError):
            there._pool.refresh()  # type: ignore[attr-defined]
        assert tries == _ATTEMPTS


def test_a_store_outlives_an_outage_while_it_was_opened(
    store: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/bucket"
    fill(store, 1, 2)
    store.push(url)

    def fails(*_: object) -> Any:
        raise lmcstore.InputOutputError("Connection timed out")

    with monkeypatch.context() as outage:
        outage.setattr(state, "refreshed", fails)
        there = lmcstore.open(url)
        with pytest.raises(lmcstore.InputOutputError, match="timed out"):
            list(there["run"])
    with there:
        assert [snapshot.number for snapshot in there["run"]] == [1, 2]


@pytest.mark.parametrize("follows", [False, True])
def test_snapshots_that_leave_the_pool_during_a_push(
    store: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    """Of a removed snapshot or shelf nothing is sent, and the push goes on."""
    url = f"file://{tmp_path}/bucket"
    for shelf in ("a", "run", "y", "z"):
        fill(store, 1, 4, shelf)
    sent = push._Batch._sent

    def send(batch: push._Batch, number: int) -> Any:
        if (batch._shelf, number) == ("run", 2):
            store["run"].remove(3)
            store["a"].drop()
            store["y"].drop()
        if (batch._shelf, number) == ("a", 3):
            store["a"].remove(4)
        return sent(batch, number)

    monkeypatch.setattr(push._Batch, "_sent", send)
    done = store.push(url, follow=True, timeout=0.5) if follows else store.push(url)
    assert done["snapshots"] == 10
    with lmcstore.open(url) as there:
        found = {shelf: [snapshot.number for snapshot in there[shelf]] for shelf in there}
    assert found == {"a": [1, 2, 3], "run": [1, 2, 4], "z": [1, 2, 3, 4]}


def test_a_shelf_that_is_renamed_during_a_push(
    store: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/bucket"
    fill(store, 1, 4)
    sent = push._Batch._sent

    def send(batch: push._Batch, number: int) -> Any:
        if number == 3 and "run" in store:
            store["run"].rename("tuned")
        return sent(batch, number)

    monkeypatch.setattr(push._Batch, "_sent", send)
    store.push(url)
    store.push(url)
    with lmcstore.open(url) as there:
        assert [(shelf, len(there[shelf])) for shelf in there] == [("tuned", 4)]


def test_snapshots_that_are_named(store: lmcstore.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are sent oldest first; one below those that are there is named in a warning, once; also within a range."""
    url = f"file://{tmp_path}/bucket"
    fill(store, 1, 6)
    assert store.push(url, ["run@5", "run@2", "run@3..4"])["snapshots"] == 4
    assert not caplog.records
    assert store.push(url, ["run@2", "run@1", "run@..6"], follow=True, timeout=0.1)["snapshots"] == 1
    assert [one.getMessage().split(":")[0] for one in caplog.records] == ["run@1 is not sent"]
    fill(store, 7, 12)
    store.push(url, "run@12")
    caplog.clear()
    assert store.push(url, "run@5..9")["snapshots"] == store.push(url)["snapshots"] == 0
    assert [one.getMessage().split(":")[0] for one in caplog.records] == ["run@7..9 is not sent"]
    with pulled(url, tmp_path, "run@..6") as copy:
        expect(copy, [2, 3, 4, 5, 6])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_each_request(
    store: lmcstore.Store, bucket: str, proxy: Proxy, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push and a pull succeed, or name a damage; the next ones complete them."""
    fill(store, 1, 2)
    monkeypatch.setattr(push, "_BATCH_ENTRIES", 1)
    pushes = count(proxy, lambda: store.push(bucket))
    pulls = count(proxy, lambda: pulled(bucket, tmp_path).close())
    assert pushes > 6 and pulls > 3
    for n in range(1, pushes + 1):
        url = f"{bucket}-{n}"
        proxy.choose = nth(n, fault)
        try:
            store.push(url)
        except lmcstore.DamagedError:
            assert fault is Fault.FLIP
        proxy.choose = lambda _: None
        proxy.release()
        store.push(url)
        if n % 3 == 0:
            with pulled(url, tmp_path) as copy:
                expect(copy, [1, 2])
    for n in range(1, pulls + 1):
        proxy.choose = nth(n, fault)
        path = tmp_path / f"{n}.pool"
        try:
            lmcstore.pull(bucket, path)
        except lmcstore.DamagedError:
            assert fault is Fault.FLIP
        proxy.choose = lambda _: None
        lmcstore.pull(bucket, path)
        with lmcstore.open(path, "r") as copy:
            expect(copy, [1, 2])


def test_faults_at_random(store: lmcstore.Store, bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    """While a push follows, a fifth of the requests fails; the trainer goes on, and everything arrives."""
    fill(store, 1, 1)
    store.push(bucket)
    proxy.choose = at_random(1, 0.2, [fault for fault in Fault if fault is not Fault.FLIP])
    results: list[dict[str, Any]] = []

    def work() -> None:
        with lmcstore.open(store.path, "r") as reader:
            results.append(reader.push(bucket, follow=True, timeout=3))

    thread = threading.Thread(target=work)
    thread.start()
    for step in range(2, 9):
        fill(store, step, step)
        time.sleep(0.05)
    thread.join()
    proxy.release()
    assert results and results[0]["snapshots"] == 7
    assert any(fault for _, fault in proxy.requests)
    proxy.choose = lambda _: None
    with pulled(bucket, tmp_path) as copy:
        expect(copy, list(range(1, 9)))


@pytest.mark.parametrize(("what", "follows"), [("/data/", False), ("/data/", True), ("/log/", True)])
def test_a_late_key_that_fails(
    store: lmcstore.Store, bucket: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    what: str, follows: bool,
) -> None:  # fmt: skip
    """All tries of a request fail while the newest state gets its key, or while that is committed: it comes later."""
    monkeypatch.setattr(late, "_LEAST_BYTES", 0)
    monkeypatch.setattr(late, "_PAUSE_S", 0.0)
    monkeypatch.setattr(late, "_FIRST_RETRY_S", 0.1)
    seen: list[str] = []
    failed: list[str] = []

    def choose(request: Request) -> Fault | None:
        kind = next((kind for kind in ("/data/", "/log/") if kind in request.path), "")
        if request.method != "PUT" or not kind:
            return None
        seen.append(kind)
        is_late = "/log/" in seen[:-1] and (kind == "/data/" or "/data/" in seen[seen.index("/log/") :])
        if not is_late or kind != what or len(failed) == _ATTEMPTS:
            return None
        failed.append(request.path)
        return Fault.SLOW_DOWN

    fill(store, 1, 3)
    proxy.choose = choose
    found = store.push(bucket, follow=follows, timeout=2 if follows else None)
    assert (found["snapshots"], found["keys"], len(failed)) == (3, 1, _ATTEMPTS)
    with pulled(bucket, tmp_path) as copy:
        expect(copy, [1, 2, 3])


# ---- Servers that refuse ----


class _Refusing(BaseHTTPRequestHandler):
    """Has no objects, and refuses to write."""

    protocol_version = "HTTP/1.1"
    status, code, seen = 200, "", 0

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(404, "NoSuchKey")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).seen += 1
        self.answer(self.status, self.code)


@pytest.mark.parametrize(
    ("status", "code", "message", "tries"),
    [
        (403, "AccessDenied", "AccessDenied.*Check the keys", 1),
        (400, "ExpiredToken", "ExpiredToken.*Check the keys", 1),
        (403, "QuotaExceeded", "the server has no room left", 1),
        (507, "InsufficientStorage", "the server has no room left", 1),
        (403, "RequestTimeTooSkewed", "the clocks of this machine and of the server differ", 1),
        (404, "NoSuchBucket", "there is no such bucket", 1),
        (503, "SlowDown", "6 tries .*Check the network", 6),
        (500, "InternalError", "6 tries .*Check the network", 6),
    ],
)
def test_a_server_that_refuses(
    store: lmcstore.Store, monkeypatch: pytest.MonkeyPatch, status: int, code: str, message: str, tries: int
) -> None:
    """The message has the reason; final refusals are not tried again."""
    pytest.importorskip("obstore")
    monkeypatch.setattr("lmcstore._remote.place._FIRST_PAUSE_S", 0.001)
    handler = type("Handler", (_Refusing,), {"status": status, "code": code})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
    }.items():
        monkeypatch.setenv(name, value)
    fill(store, 1, 1)
    try:
        with pytest.raises((lmcstore.InputOutputError, lmcstore.NotFoundError), match=message) as caught:
            store.push("s3://bucket/run")
    finally:
        server.shutdown()
        server.server_close()
    assert "a-secret" not in str(caught.value)
    assert handler.seen == tries  # type: ignore[attr-defined]


# ---- Time ----


@pytest.fixture
def url() -> str:
    return f"memory://{secrets.token_hex(8)}"


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_that_is_wrong(
    store: lmcstore.Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """The pusher's clock is off by hours: nothing is swept that it needs, and later commits are seen as later."""
    fill(store, 1, 2)
    store.push(url)
    now = time.time_ns
    monkeypatch.setattr(upload.time, "time_ns", lambda: now() + hours * 3600 * 10**9)
    fill(store, 3, 4)
    store.push(url)
    with Place(url) as place:
        before = place.list("data")
        sweep.remove(place, [], dry_run=True)
        sweep.prune(place, [], store._create, dry_run=False)
        assert place.list("data") == before
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4])


@pytest.mark.parametrize("hours", [-300, 0, 300])
def test_a_server_whose_clock_is_wrong(
    store: lmcstore.Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Ages are differences of the server's times: a sweep leaves an upload under way, and deletes old ones."""
    now, passed = time.time, [float(hours)]
    monkeypatch.setattr(files.time, "time", lambda: now() + passed[0] * 3600)
    fill(store, 1, 2)
    store.push(url)
    passed[0] += 30
    finish = upload.Upload.finish

    def sweeps(self: upload.Upload) -> None:
        finish(self)
        passed[0] += 11
        with Place(url) as place:
            assert sweep.prune(place, [], store._create, dry_run=False)[1] == 0

    with monkeypatch.context() as patch, Place(url) as place:
        patch.setattr(upload.Upload, "finish", sweeps)
        fill(store, 3, 4)
        store.push(url)
        place.put(f"data/{7:020d}-{'a' * 16}/000000", b"of a pusher that died")
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4])
    passed[0] += 40
    with Place(url) as place:
        assert sweep.prune(place, [], store._create, dry_run=False)[1] == 1
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4])


def test_a_key_that_took_twelve_hours_is_given_up(
    store: lmcstore.Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, slept, late = time.clock_gettime, [0.0], set[str]()
    monkeypatch.setattr(upload.time, "clock_gettime", lambda which: clock(which) + slept[0])
    key = upload.Upload.key

    def sleeps(self: upload.Upload, *arguments: Any) -> Any:
        found = key(self, *arguments)
        if not late:
            slept[0] += 13 * 3600
            late.add(found.id)
        return found

    monkeypatch.setattr(upload.Upload, "key", sleeps)
    store["run"].policy = "links=2"
    fill(store, 1, 4)
    store.push(url)
    with Place(url) as place:
        entries = list(state.read(place).shelf("run").entries())
    assert late and not late & {entry.key.id for entry in entries if entry.key is not None}
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4])


def test_an_upload_that_took_twelve_hours_is_sent_again(
    store: lmcstore.Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine sleeps between the upload and its commit."""
    fill(store, 1, 3)
    clock, slept = time.clock_gettime, [0.0]
    monkeypatch.setattr(upload.time, "clock_gettime", lambda which: clock(which) + slept[0])
    finish = upload.Upload.finish

    def sleeps(self: upload.Upload) -> None:
        finish(self)
        slept[0] += 0 if slept[0] else 13 * 3600

    monkeypatch.setattr(upload.Upload, "finish", sleeps)
    assert store.push(url)["snapshots"] == 3
    with Place(url) as place:
        assert len({info.name.split("/")[1] for info in place.list("data")}) == 2
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3])
