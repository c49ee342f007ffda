# SPDX-License-Identifier: BSD-3-Clause
"""A trainer whose pool is pushed, and other ways to send its states, each in a process of its own."""

import io
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from remote_link import command
from train_run import WARM, Loop, Mark, Stepper, Watch, bytes_of
from train_ways import POOL, SHELF, saver_of

LIMIT_S = 600.0
KEY_LIMIT_S = 120.0


def times_of(url: str) -> dict[int, float]:
    """Return when each snapshot was committed, by the server's clock."""
    from lmcstore._remote import codec
    from lmcstore._remote.place import Place

    found: dict[int, float] = {}
    with Place(url) as place:
        for info in place.list("log"):
            parts = codec.read_state(place.get(info.name, codec.MOST_STORED), info.name)
            for shelf in parts.shelves:
                for entry in shelf.newest:
                    found.setdefault(entry.number, info.time)
    return found


def newest_of(url: str) -> int:
    """Return the number of the newest snapshot; 0: there is none."""
    from lmcstore import NotFoundError
    from lmcstore._remote import state
    from lmcstore._remote.place import Place

    try:
        with Place(url) as place:
            return state.read(place).shelf(SHELF).next - 1
    except NotFoundError:
        return 0


def wait_for(url: str, number: int, pusher: "subprocess.Popen[bytes]") -> None:
    """Wait until a snapshot is at the URL."""
    begin = time.monotonic()
    while newest_of(url) < number:
        if pusher.poll() is not None or time.monotonic() - begin > LIMIT_S:
            raise RuntimeError(f"snapshot {number} was not pushed")
        time.sleep(0.2)


def wait_for_key(url: str) -> None:
    """Wait until the newest snapshot is one archive without payloads of others, as it is after a pause."""
    from lmcstore._remote import state
    from lmcstore._remote.place import Place

    begin = time.monotonic()
    with Place(url) as place:
        while True:
            there = state.read(place).shelf(SHELF)
            assert there.latest is not None
            chain = there.chain(there.latest.number)
            if len(chain) == 1 and chain[0][1].first == 0:
                return
            if time.monotonic() - begin > KEY_LIMIT_S:
                raise RuntimeError("the newest snapshot got no key")
            time.sleep(0.5)


def follow(loop: Loop, url: str | None, rests: bool, mark: Mark) -> dict[str, Any]:
    """Train, and save after each step; push to a URL meanwhile. `rests`: until the newest snapshot has a key."""
    warnings.simplefilter("ignore")
    stepper = Stepper(loop)
    saver = None if loop.way == "none" else saver_of(loop.way, loop.folder, stepper.training.optimizer)
    for number in range(WARM):
        stepper.step()
        if saver is not None and (wait := saver.save(stepper.training.state(), number)) is not None:
            wait()
    pusher = None
    if url is not None:
        pusher = subprocess.Popen(command("push", loop.folder / POOL, url, "--follow"))
        wait_for(url, WARM, pusher)
    watch = Watch()
    offset = time.time() - time.perf_counter()
    begin = time.perf_counter()
    for number in range(WARM, WARM + loop.steps):
        stepper.step()
        if saver is not None:
            watch.add(saver.save(stepper.training.state(), number))
    loop_s = time.perf_counter() - begin
    watch.end()
    if pusher is not None:
        assert url is not None
        wait_for(url, WARM + loop.steps, pusher)
        if rests:
            wait_for_key(url)
        pusher.send_signal(signal.SIGTERM)
        pusher.wait(60)
    if saver is not None:
        saver.close()
    return {
        "loop_s": loop_s,
        "durable": {WARM + index + 1: at + offset for index, at in enumerate(watch.times)},
        "raw_bytes": bytes_of(stepper.training.state()),
    }


# ---- Other ways -----------------------------------------------------------------------------------------------------


def boto3_client() -> Any:
    """Make a client of the environment's server."""
    import boto3

    return boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])


def by_boto3(bucket: str, state: dict[str, Any], step: int, peers: Path) -> None:
    """Send what torch.save writes."""
    out = io.BytesIO()
    torch.save(state, out)
    out.seek(0)
    boto3_client().upload_fileobj(out, bucket, f"torch/{step}")


def from_boto3(bucket: str, model: dict[str, Any], step: int, peers: Path) -> None:
    """Read it back."""
    data = io.BytesIO()
    boto3_client().download_fileobj(bucket, f"torch/{step}", data)
    data.seek(0)
    torch.load(data, weights_only=False)


def _storage(kind: str, bucket: str, step: int, peers: Path) -> Any:
    sys.path.append(str(peers))
    from s3torchconnector import S3ClientConfig, dcp
    from s3torchconnector._s3client import S3Client

    config = S3ClientConfig(force_path_style=True)
    storage = getattr(dcp, kind)("us-east-1", f"s3://{bucket}/dcp/{step}/", s3client_config=config)
    storage.fs._client = S3Client("us-east-1", endpoint=os.environ["AWS_ENDPOINT_URL"], s3client_config=config)
    return storage


def by_dcp(bucket: str, state: dict[str, Any], step: int, peers: Path) -> None:
    """Send a distributed checkpoint."""
    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=_storage("S3StorageWriter", bucket, step, peers))


def from_dcp(bucket: str, model: dict[str, Any], step: int, peers: Path) -> None:
    """Load it into another state's memory."""
    import torch.distributed.checkpoint as dcp

    dcp.load(model, storage_reader=_storage("S3StorageReader", bucket, step, peers))


def restic(bucket: str, peers: Path, *words: str) -> None:
    """Run restic on a repository in the bucket."""
    environment = os.environ | {
        "RESTIC_REPOSITORY": f"s3:{os.environ['AWS_ENDPOINT_URL']}/{bucket}/restic",
        "RESTIC_PASSWORD": "bench",
    }
    done = subprocess.run(
        ["restic", *words, "-q", "--no-cache"],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"restic: {done.stderr.strip()[-200:]}")


def by_restic(bucket: str, state: dict[str, Any], step: int, peers: Path) -> None:
    """Back up a file of torch.save."""
    file = peers.parent / "restic.pt"
    if step == 0:
        restic(bucket, peers, "init")
    torch.save(state, file)
    restic(bucket, peers, "backup", str(file))


def from_restic(bucket: str, model: dict[str, Any], step: int, peers: Path) -> None:
    """Restore the file and load it."""
    folder = peers.parent / "restic-out"
    restic(bucket, peers, "restore", "latest", "--target", str(folder))
    torch.load(next(folder.rglob("restic.pt")), weights_only=False)


Send = Callable[[str, dict[str, Any], int, Path], None]
WAYS: dict[str, tuple[Send, Send]] = {
    "torch.save, boto3": (by_boto3, from_boto3),
    "DCP, s3torchconnector": (by_dcp, from_dcp),
    "torch.save, restic": (by_restic, from_restic),
}


def send(loop: Loop, way: str, bucket: str, peers: Path, mark: Mark) -> dict[str, Any]:
    """Send the state after each step; return the seconds of each."""
    warnings.simplefilter("ignore")
    stepper, seconds = Stepper(loop), []
    for step in range(loop.steps):
        stepper.step()
        begin = time.perf_counter()
        WAYS[way][0](bucket, stepper.training.state(), step, peers)
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds, "raw_bytes": bytes_of(stepper.training.state())}


def receive(loop: Loop, way: str, bucket: str, peers: Path, mark: Mark) -> float:
    """Read the newest state; return the seconds."""
    warnings.simplefilter("ignore")
    stepper = Stepper(loop)
    stepper.step()
    model = stepper.training.state()
    begin = time.perf_counter()
    WAYS[way][1](bucket, model, loop.steps - 1, peers)
    return time.perf_counter() - begin
