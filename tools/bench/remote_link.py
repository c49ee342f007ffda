# SPDX-License-Identifier: BSD-3-Clause
"""The server of S3, in a network namespace whose link can be limited, and its clients."""

import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
INSIDE = "LMCS_BENCH_NAMESPACE"
RATE = 125_000_000
"""Bytes a second of a limited link."""


def enter_namespace() -> None:
    """Start this program again in a network namespace of its own. Without one it goes on, and no link is limited."""
    if INSIDE in os.environ:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    words = [
        "unshare",
        "--net",
        *([] if os.getuid() == 0 else ["--map-root-user"]),
        "--",
    ]
    try:
        tried = subprocess.run([*words, "ip", "link", "set", "lo", "up"], capture_output=True)
    except OSError:
        return
    if tried.returncode == 0:
        os.environ[INSIDE] = "1"
        os.execvp(words[0], [*words, sys.executable, *sys.argv])


class Remote:
    """A server, and the environment of its clients."""

    def __init__(self, folder: Path) -> None:
        self.can_limit = INSIDE in os.environ
        folder.mkdir()
        words = [sys.executable, str(HERE / "remote_server.py"), str(folder)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _ask(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(self.endpoint + path, method=method)
        with urllib.request.urlopen(request) as reply:
            data: bytes = reply.read()
        return data

    @contextmanager
    def bucket(self) -> Iterator[str]:
        """Make a bucket, and remove it with all objects at the end."""
        name = f"runs-{secrets.token_hex(4)}"
        self._ask(f"/{name}", "PUT")
        try:
            yield name
        finally:
            self._ask(f"/{name}", "DELETE")

    def counts(self) -> dict[str, int]:
        """Return the requests by method, and the bytes ``sent`` and ``received`` by the server."""
        found: dict[str, int] = json.loads(self._ask("/-/counters"))
        return found

    @contextmanager
    def counting(self) -> Iterator[dict[str, int]]:
        """Yield a dict that gets the counts of a block, and their sum of ``requests``, at its end."""
        found: dict[str, int] = {}
        before = self.counts()
        yield found
        after = self.counts()
        found |= {name: after[name] - before.get(name, 0) for name in after}
        found["requests"] = sum(number for name, number in found.items() if name.isupper())

    @contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Delay each reply."""
        self._ask(f"/-/delay/{seconds}")
        try:
            yield
        finally:
            self._ask("/-/delay/0")

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Limit all bytes on the link, in both directions together, to 1 Gbit/s."""
        device = ["dev", "lo", "root"]
        limits = ["tbf", "rate", f"{RATE * 8}bit", "burst", "256kb", "limit", "8mb"]
        subprocess.run(["tc", "qdisc", "replace", *device, *limits], check=True)
        try:
            yield
        finally:
            subprocess.run(["tc", "qdisc", "del", *device], check=True)


def command(*words: Any) -> list[str]:
    """Return the words of a command that takes a URL."""
    code = "from lmcstore._remote.command import run; run()"
    return [sys.executable, "-c", code, *map(str, words)]


def packages(folder: Path) -> Path:
    """Install s3torchconnector into a folder; RuntimeError: it can't be had."""
    if not (folder / "s3torchconnector").is_dir():
        names = ["s3torchconnector", "s3torchconnectorclient", "tenacity"]
        words = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(folder),
            *names,
        ]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"s3torchconnector can't be installed: {done.stderr.splitlines()[-1:]}")
    return folder
