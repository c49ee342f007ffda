# SPDX-License-Identifier: BSD-3-Clause
"""gs:// and az:// by the requests that obstore makes of them; no server of Google or Microsoft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lmcstore
import pytest
from cloud_server import CloudServer
from lmcstore._remote import sweep
from lmcstore._remote.place import Place
from test_remote_push import expect, fill, pulled

pytest.importorskip("obstore")


@pytest.fixture(params=["gs", "az"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CloudServer, str]]:
    """A server, and the URL of a folder in its bucket."""
    with CloudServer(request.param) as server:
        if request.param == "gs":
            monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
            monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "a-token")
        else:
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
            monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server.url}/account")
        yield server, f"{request.param}://bucket/runs/one"


def test_objects(cloud: tuple[CloudServer, str]) -> None:
    with Place(cloud[1]) as place:
        place.put("data/a/0", b"hello", memoryview(b" again"))
        assert place.get("data/a/0") == b"hello again" and place.get_range("data/a/0", 6, 5) == b"again"
        assert place.create("log/1", b"one") and place.create("log/1", b"one") and not place.create("log/1", b"two")
        assert place.get("log/1") == b"one" and place.exists("log/1") and not place.exists("log/2")
        with pytest.raises(lmcstore.NotFoundError, match="log/2: there is no such object"):
            place.get("log/2")
        with pytest.raises(lmcstore.DamagedError, match="data/a/0 is cut short"):
            place.get_range("data/a/0", 6, 6)
        assert [(info.name, info.bytes) for info in place.list("data")] == [("data/a/0", 11)]
        place.delete(["data/a/0", "data/a/0"])
        assert not place.exists("data/a/0")


def test_there_and_back(cloud: tuple[CloudServer, str], store: lmcstore.Store, tmp_path: Path) -> None:
    server, url = cloud
    fill(store, 1, 4)
    store.push(url, "run@1..3")
    store.push(url)
    assert server.objects and all(name.startswith("runs/one/") for name in server.objects)
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4])
    with lmcstore.open(url) as there:
        assert [snapshot.step for snapshot in there["run"]] == [1, 2, 3, 4]
        there["run"]["latest"].state_dict()
    with Place(url) as place:
        assert sweep.remove(place, ["run@1"], dry_run=False)[0] == 1
    with lmcstore.open(url) as there:
        assert [snapshot.step for snapshot in there["run"]] == [2, 3, 4]
