# SPDX-License-Identifier: BSD-3-Clause
"""A run on a web server with TLS: it is read as from any place, and never written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import lmcstore
import numpy as np
import pytest
from command import NEEDS_BIN
from lmcstore._remote import state
from lmcstore._remote.place import Place
from test_cli_remote import cli
from test_remote_push import expect, fill, pulled, state_of
from tls_server import Server, make_certificate

pytest.importorskip("obstore")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(autouse=True)
def trust(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))


@pytest.fixture(scope="module")
def bucket_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("https")
    with lmcstore.open(folder / "run.pool", "x", background=False) as store:
        fill(store, 1, 4)
        store["run"].tag(3, "best")
        store.push(f"file://{folder}/bucket/run")
    return folder


@pytest.fixture
def server(bucket_folder: Path, certificate: tuple[Path, Path]) -> Iterator[Server]:
    with Server(bucket_folder / "bucket", certificate[1]) as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url}/run"


def test_reading(url: str, server: Server, tmp_path: Path) -> None:
    with lmcstore.open(url) as store:
        shelf = store["run"]
        assert [snapshot.step for snapshot in shelf] == [1, 2, 3, 4] and shelf.tags == {"best": 3}
        server.requests.clear()
        assert np.array_equal(shelf["best"]["same"], state_of(3)["same"])
        assert server.requests and all("bytes=" in one for one in server.requests)
        expect_states(store)
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4])


def expect_states(store: lmcstore.Store) -> None:
    for snapshot in store["run"]:
        for name, value in state_of(snapshot.step or 0).items():
            assert np.array_equal(snapshot[name], value)


@NEEDS_BIN
@pytest.mark.usefixtures("remote_on_path")
def test_commands(url: str, bucket_folder: Path, tmp_path: Path) -> None:
    assert cli("ls", url).stdout.startswith("run: 4 snapshots\n")
    assert [one["number"] for one in json.loads(cli("log", url, "-n", 2, "--json").stdout)["snapshots"]] == [4, 3]
    assert "safe up to 4" in cli("info", url).stdout
    assert "no damage" in cli("verify", url).stdout
    assert cli("diff", url, "run@3", "run@4").stdout
    assert cli("pull", url, tmp_path / "copy.pool").stdout.startswith("restored 4 snapshots")
    pool = bucket_folder / "run.pool"
    assert "repaired" in cli("scrub", tmp_path / "copy.pool", "--repair", "--from", url).stdout
    for words in (("push", pool, url), ("push", pool, url, "--repair"), ("rm", url, "run@1"), ("rm", url, "--prune")):
        assert f"{url}: an https URL is only for reading" in cli(*words, code=1).stderr


def test_nothing_is_written(url: str, server: Server, bucket_folder: Path) -> None:
    with lmcstore.open(bucket_folder / "run.pool", "r+") as store:
        for options in ({}, {"follow": True}, {"repair": True}):
            with pytest.raises(lmcstore.ReadOnlyError, match="is only for reading; runs are written at s3://"):
                store.push(url, **options)
    with Place(url) as place:
        for change in (lambda: place.put("head", b""), lambda: place.create("x", b""), lambda: place.delete(["head"])):
            with pytest.raises(lmcstore.ReadOnlyError, match="only for reading"):
                change()
    assert server.requests == []


def test_an_unknown_certificate(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(make_certificate(tmp_path)[0]))
    with pytest.raises(lmcstore.InputOutputError, match=r"head: the server's certificate is not valid \((Unk|BadSig)"):
        lmcstore.open(url)
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(lmcstore.InputOutputError, match=r"not valid \(UnknownIssuer\).*set SSL_CERT_FILE"):
        lmcstore.open(url)


@pytest.mark.parametrize(
    ("days", "host", "cause"), [(-1, "localhost", "Expired"), (1, "elsewhere", "NotValidForName")], ids=["old", "other"]
)
def test_a_wrong_certificate(
    days: int, host: str, cause: str, bucket_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority, mine = make_certificate(tmp_path, host=host, days=days)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with (
        Server(bucket_folder / "bucket", mine) as server,
        pytest.raises(lmcstore.InputOutputError, match=rf"certificate is not valid \({cause}"),
    ):
        lmcstore.open(f"{server.url}/run")
    assert server.requests == []


def test_a_server_without_ranges(url: str, server: Server, tmp_path: Path) -> None:
    server.has_ranges = False
    with (
        lmcstore.open(url) as store,
        pytest.raises(lmcstore.UnsupportedError, match="does not send parts of a file"),
    ):
        store["run"].latest.state_dict()
    with pytest.raises(lmcstore.UnsupportedError, match="does not send parts of a file"):
        lmcstore.pull(url, tmp_path / "copy.pool")
    with lmcstore.open(tmp_path / "copy.pool", "r") as copy:
        assert not copy.shelves()


def test_redirects_to_another_server(
    url: str, server: Server, bucket_folder: Path, certificate: tuple[Path, Path]
) -> None:
    with Server(bucket_folder / "bucket", certificate[1]) as other:
        server.redirect = other.url
        with lmcstore.open(url) as store:
            expect_states(store)
        assert len(other.requests) == len(server.requests)


@pytest.mark.parametrize("way", ["http", "loop", "wrong certificate"])
def test_redirects_that_are_refused(way: str, url: str, server: Server, bucket_folder: Path, tmp_path: Path) -> None:
    mine = None if way == "http" else make_certificate(tmp_path)[1]
    with Server(bucket_folder / "bucket", mine) as other:
        server.redirect = server.url if way == "loop" else other.url
        text = {"http": "to http://, which", "loop": "too often"}.get(way, "certificate is not valid")
        with pytest.raises(lmcstore.InputOutputError, match=text):
            lmcstore.open(url)
        assert other.requests == []


def test_a_server_that_sends_more(url: str, server: Server) -> None:
    """Its answer is not kept in memory."""
    with Place(url) as place:
        entry = state.read(place).shelf("run").latest
        assert entry is not None
        server.surplus = 256
        with pytest.raises(lmcstore.DamagedError, match="sends more than the 100 bytes from 5 on"):
            place.get_range(f"{entry.archive.object}/000000", 5, 100)
    assert server.surplus > 128


def test_a_server_without_tls(bucket_folder: Path) -> None:
    with Server(bucket_folder / "bucket", None) as server:
        with pytest.raises(lmcstore.InputOutputError, match="does not speak https on this port"):
            lmcstore.open(f"{server.url}/run".replace("http", "https"))
        with lmcstore.open(f"{server.url}/run") as store:
            expect_states(store)


def test_a_server_that_answers_403_for_missing_files(url: str, server: Server) -> None:
    """A public bucket of S3 whose objects can be read and not be listed."""
    server.missing = 403
    with lmcstore.open(url) as store:
        expect_states(store)
    with Place(url) as place, pytest.raises(lmcstore.NotFoundError, match="no such object, or it is not public"):
        place.get("data/missing")
    with pytest.raises(lmcstore.NotFoundError, match=r"there is no run of lmc-store at .*/none\..*not public"):
        lmcstore.open(f"{server.url}/none")


@pytest.mark.parametrize("status", [404, 500])
def test_other_answers(status: int, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcstore._remote.place._FIRST_PAUSE_S", 0.001)
    server.missing = status
    error = lmcstore.NotFoundError if status == 404 else lmcstore.InputOutputError
    with Place(f"{server.url}/none") as place, pytest.raises(error, match=r"there is no run|6 tries"):
        state.read(place)
