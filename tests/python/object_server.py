# SPDX-License-Identifier: BSD-3-Clause
"""An object store of S3 in this process, and `Flaky`, a place that dies or lies at a chosen request."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

import pytest

_names = itertools.count()


@pytest.fixture(scope="session")
def object_server() -> Iterator[str]:
    """Start the server, and yield its URL."""
    pytest.importorskip("obstore")
    server_of = pytest.importorskip("moto.server")
    server = server_of.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(object_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a bucket, set the environment for it, and return the URL of a folder in it."""
    boto3 = pytest.importorskip("boto3")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": object_server,
    }.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{next(_names)}-{secrets.token_hex(4)}"
    boto3.client("s3", endpoint_url=object_server).create_bucket(Bucket=name)
    return f"s3://{name}/runs/one"
