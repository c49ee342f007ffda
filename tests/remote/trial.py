# SPDX-License-Identifier: BSD-3-Clause
"""Tries what a run in an object store needs of Ceph: puts with a condition, ranges, lists, and the stop of an OSD.

trial.py FOLDER: of `ceph.sh start`. Stops and starts one of its OSDs, at last while a push follows a trainer of
LMC_STORE_TRIAL_STEPS steps (60).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from proxy import Fault, Proxy, at_random

PIECE = 16 * 2**20
SCRIPT = Path(__file__).with_name("ceph.sh")


def connect(url: str) -> S3Store:
    return S3Store(
        "runs",
        endpoint=url,
        access_key_id="k",
        secret_access_key="s",
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": timedelta(seconds=60)},
        retry_config={
            "max_retries": 3,
            "backoff": {"init_backoff": timedelta(milliseconds=20), "max_backoff": timedelta(seconds=1), "base": 2},
        },
    )


def read(store: S3Store, path: str) -> bytes:
    return bytes(store.get(path).bytes())


def create(store: S3Store, path: str, body: bytes) -> bool:
    """Whether the object is this client's, also where a reply got lost."""
    for _ in range(10):
        try:
            store.put(path, body, mode="create")
            return True
        except AlreadyExistsError:
            break
        except BaseError:
            continue
    for _ in range(10):
        try:
            return read(store, path) == body
        except BaseError:
            continue
    raise AssertionError(f"no answer about {path}")


def race(stores: list[S3Store], folder: str, numbers: int) -> None:
    """One client wins each number, and its bytes stay there."""
    winners: list[list[int]] = [[] for _ in range(numbers)]

    def run(client: int) -> None:
        for number in range(numbers):
            if create(stores[client], f"{folder}/{number:016}", b"%d" % client):
                winners[number].append(client)

    threads = [threading.Thread(target=run, args=(client,)) for client in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, won in enumerate(winners):
        assert len(won) == 1, (folder, number, won)
        assert read(stores[0], f"{folder}/{number:016}") == b"%d" % won[0]


def try_conditions(url: str) -> None:
    store = connect(url)
    store.put("a", b"1", mode="create")
    try:
        store.put("a", b"2", mode="create")
        raise AssertionError("an object was created twice")
    except AlreadyExistsError:
        pass
    assert read(store, "a") == b"1"
    store.put("a", b"3")
    assert read(store, "a") == b"3"
    race([connect(url) for _ in range(6)], "race", 20)


def try_faults(url: str) -> None:
    """The race through a proxy that spoils a fifth of the requests, but no bytes, which the client does not check."""
    faults = [fault for fault in Fault if fault is not Fault.FLIP]
    with Proxy(url, at_random(1, 0.2, faults)) as proxy:
        race([connect(url), *(connect(proxy.url) for _ in range(3))], "faults", 20)
        assert any(fault for _, fault in proxy.requests)
        held = proxy.release()
        assert all(status in (200, 206, 404, 412) for status in held), held


def try_ranges(url: str) -> None:
    store = connect(url)
    body = b"".join(n.to_bytes(8, "big") for n in range(PIECE // 8))
    store.put("piece", body)
    assert read(store, "piece") == body
    for start, end in ((0, 1), (12345, 23456), (PIECE - 3, PIECE)):
        assert bytes(store.get_range("piece", start=start, end=end)) == body[start:end]
    parts = store.get_ranges("piece", starts=[5, PIECE // 2], ends=[50, PIECE // 2 + 50])
    assert [bytes(part) for part in parts] == [body[5:50], body[PIECE // 2 : PIECE // 2 + 50]]
    found = store.head("piece")
    assert found["size"] == PIECE and found["last_modified"]


def try_lists(url: str) -> None:
    store = connect(url)
    names = [f"log/{number:016}" for number in range(1, 1301)]  # more than a page of 1,000

    def put(some: list[str]) -> None:
        for name in some:
            store.put(name, b"")

    threads = [threading.Thread(target=put, args=(names[first::8],)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry["path"] for page in store.list("log/") for entry in page] == names
    after = [entry["path"] for page in store.list("log/", offset=names[1200]) for entry in page]
    assert after == names[1201:]
    for name in names[:10]:
        store.delete(name)
    assert [entry["path"] for page in store.list("log/") for entry in page] == names[10:]


def try_stops(url: str, folder: str) -> None:
    """One OSD stops: the others have all objects, and take new ones."""
    store = connect(url)
    before = {f"stop/{n}": bytes([n]) * 100_000 for n in range(20)}
    after = {f"stop/{n}": bytes([n]) * 100_000 for n in range(20, 40)}
    for path, body in before.items():
        store.put(path, body)
    subprocess.run([SCRIPT, "stop-osd", folder, "1"], check=True)
    for path, body in after.items():
        assert create(store, path, body)
    for path, body in (before | after).items():
        assert read(store, path) == body
    race([connect(url) for _ in range(3)], "stopped", 10)
    subprocess.run([SCRIPT, "start-osd", folder, "1"], check=True)
    for path, body in (before | after).items():
        assert read(store, path) == body
    race([connect(url) for _ in range(3)], "started", 10)


def try_pushes(url: str, folder: str, steps: int) -> None:
    """A push follows a trainer while an OSD stops and starts again; all snapshots arrive, and are read."""
    import lmcstore
    import numpy as np
    from lmcstore._remote.place import Place
    from lmcstore._remote.verify import verify

    os.environ |= {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "LMC_STORE_REMOTE_TIMEOUT": "15",
    }
    there, generator, failures = "s3://runs/pushed", np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as top, lmcstore.open(f"{top}/run.pool", "x") as store:

        def push() -> None:
            try:
                with lmcstore.open(store.path, "r") as reader:
                    reader.push(there, follow=True, timeout=15)
            except BaseException as error:
                failures.append(error)

        weights = generator.normal(0, 1, 250_000).astype(np.float32)
        store["run"].snapshot({"w": weights}, step=0)
        pusher = threading.Thread(target=push)
        pusher.start()
        for step in range(1, steps):
            weights += generator.normal(0, 1e-3, weights.size).astype(np.float32)
            store["run"].snapshot({"w": weights}, step=step)
            if step in (steps // 3, 2 * steps // 3):
                command = "stop-osd" if step == steps // 3 else "start-osd"
                # The one of try_stops: the others have the newest copies of all objects.
                subprocess.run([SCRIPT, command, folder, "1"], check=True)
            time.sleep(0.1)
        pusher.join()
        assert not failures, failures
        lmcstore.pull(there, f"{top}/copy.pool")
        with lmcstore.open(f"{top}/copy.pool", "r") as copy:
            assert [one._handle.digest() for one in copy["run"]] == [one._handle.digest() for one in store["run"]]
            assert len(list(copy["run"])) == steps
        with Place(there) as place:
            assert verify(place, (), store._create)["damages"] == []


def main() -> None:
    folder = sys.argv[1]
    url = Path(folder, "url").read_text().strip()
    for trial in (try_conditions, try_ranges, try_lists, try_faults):
        trial(url)
        print("ok:", trial.__name__, flush=True)
    try_stops(url, folder)
    print("ok: try_stops", flush=True)
    try_pushes(url, folder, int(os.environ.get("LMC_STORE_TRIAL_STEPS", "30")))
    print("ok: try_pushes")


if __name__ == "__main__":
    main()
