# SPDX-License-Identifier: BSD-3-Clause
"""A server with the interface of S3, for measurements: little work for each byte, no checks of keys.

    remote_server.py FOLDER: prints its port, and serves until its input ends

Objects are files in a folder. It has conditional puts, ranges, lists, deletions and multipart uploads, and counts
requests and bytes, headers included: `GET /-/counters`. After `GET /-/delay/SECONDS` it delays each reply.
"""

import contextlib
import itertools
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BLOCK = 1 << 20
MOST_HEAD = 1 << 16


class Object(NamedTuple):
    """A stored object."""

    path: Path
    size: int
    tag: str
    time: float


class Request(NamedTuple):
    """A request without its body."""

    method: str
    bucket: str
    key: str
    query: dict[str, list[str]]
    headers: dict[str, str]


class Server:
    """The buckets, and a thread for each connection."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._names = folder, itertools.count()
        self._buckets: dict[str, dict[str, Object]] = {}
        self._uploads: dict[str, dict[int, Object]] = {}
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.delay = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]

    def run(self) -> None:
        """Serve."""
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def count(self, what: str, number: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self.counts[what] += number

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, contextlib.suppress(OSError, ValueError, EOFError):
            client = Client(self, connection)
            while (request := client.request()) is not None:
                self._answer(client, request)

    def _answer(self, client: "Client", request: Request) -> None:
        if request.bucket == "-":
            what, _, value = request.key.partition("/")
            if what == "delay":
                self.delay = float(value)
            client.reply(200, json.dumps(self.counts).encode(), quiet=True)
            return
        self.count(request.method)
        body = client.body(request, self._folder / str(next(self._names)))
        time.sleep(self.delay)
        method = getattr(self, f"_{request.method.lower()}", None)
        if method is None:
            client.reply(405, b"")
        else:
            method(client, request, body)

    def _put(self, client: "Client", request: Request, body: Object) -> None:
        if not request.key:
            with self._lock:
                self._buckets.setdefault(request.bucket, {})
            client.reply(200, b"")
            return
        if "x-amz-copy-source" in request.headers:
            source = unquote(request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
            old = self._buckets[source[0]][source[2]]
            body.path.write_bytes(old.path.read_bytes())
            self._store(request, body._replace(size=old.size))
            client.xml("CopyObjectResult", f"<ETag>{body.tag}</ETag>")
            return
        if "partNumber" in request.query:
            self._uploads[request.query["uploadId"][0]][int(request.query["partNumber"][0])] = body
        elif not self._store(request, body):
            client.error(412, "PreconditionFailed")
            return
        client.reply(200, b"", {"ETag": body.tag})

    def _store(self, request: Request, body: Object) -> bool:
        with self._lock:
            bucket = self._buckets[request.bucket]
            old = bucket.get(request.key)
            if old is not None and request.headers.get("if-none-match") == "*":
                return False
            bucket[request.key] = body
        if old is not None:
            old.path.unlink(missing_ok=True)
        return True

    def _post(self, client: "Client", request: Request, body: Object) -> None:
        if "uploads" in request.query:
            upload = secrets.token_hex(16)
            self._uploads[upload] = {}
            text = f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key><UploadId>{upload}</UploadId>"
            client.xml("InitiateMultipartUploadResult", text)
        elif "uploadId" in request.query:
            parts = self._uploads.pop(request.query["uploadId"][0])
            with body.path.open("wb") as out:
                for _, part in sorted(parts.items()):
                    with part.path.open("rb") as file:
                        while os.sendfile(out.fileno(), file.fileno(), None, BLOCK):
                            pass
                    part.path.unlink()
            whole = body._replace(size=body.path.stat().st_size)
            self._store(request, whole)
            client.xml(
                "CompleteMultipartUploadResult",
                f"<Key>{escape(request.key)}</Key><ETag>{whole.tag}</ETag>",
            )
        elif "delete" in request.query:
            for key in re.findall(r"<Key>(.*?)</Key>", body.path.read_text()):
                self._remove(request.bucket, key)
            client.xml("DeleteResult", "")
        else:
            client.reply(405, b"")

    def _remove(self, bucket: str, key: str) -> None:
        with self._lock:
            gone = self._buckets.get(bucket, {}).pop(key, None)
        if gone is not None:
            gone.path.unlink(missing_ok=True)

    def _delete(self, client: "Client", request: Request, body: Object) -> None:
        if request.key:
            self._remove(request.bucket, request.key)
        else:  # with all in it
            for key in list(self._buckets.get(request.bucket, {})):
                self._remove(request.bucket, key)
        client.reply(204, b"")

    def _head(self, client: "Client", request: Request, body: Object) -> None:
        self._get(client, request, body)

    def _get(self, client: "Client", request: Request, body: Object) -> None:
        bucket = self._buckets.get(request.bucket)
        if bucket is None:
            client.error(404, "NoSuchBucket")
        elif "location" in request.query:
            client.xml("LocationConstraint", "us-east-1")
        elif not request.key:
            self._list(client, request, bucket)
        elif (found := bucket.get(request.key)) is None:
            client.error(404, "NoSuchKey", with_body=request.method != "HEAD")
        else:
            client.send(request, found)

    def _list(self, client: "Client", request: Request, bucket: dict[str, Object]) -> None:
        first = {name: values[0] for name, values in request.query.items()}
        prefix, delimiter = first.get("prefix", ""), first.get("delimiter", "")
        after = first.get("continuation-token") or first.get("start-after", "")
        most, parts, folders, last = int(first.get("max-keys", "1000")), [], [], ""
        with self._lock:
            keys = sorted(key for key in bucket if key.startswith(prefix) and key > after)
        is_cut = False
        for key in keys:
            folder = prefix + key[len(prefix) :].split(delimiter)[0] + delimiter if delimiter else ""
            if delimiter and delimiter in key[len(prefix) :]:
                if folder not in folders:
                    folders.append(folder)
                continue
            if len(parts) >= most:
                is_cut = True
                break
            last, found = key, bucket[key]
            seconds, milliseconds = divmod(int(found.time * 1000), 1000)
            stamp = time.strftime(f"%Y-%m-%dT%H:%M:%S.{milliseconds:03}Z", time.gmtime(seconds))
            parts.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified><ETag>{found.tag}</ETag>"
                f"<Size>{found.size}</Size></Contents>"
            )
        text = "".join(parts + [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders])
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_cut else ""
        head = f"<Name>{request.bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(parts)}</KeyCount>"
        client.xml(
            "ListBucketResult",
            f"{head}<IsTruncated>{str(is_cut).lower()}</IsTruncated>{more}{text}",
        )


class Client:
    """A connection."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self._server, self._socket = server, connection
        self._kept = bytearray()
        self._is_head = False

    def _more(self) -> None:
        data = self._socket.recv(BLOCK)
        if not data:
            raise EOFError
        self._server.count("received", len(data))
        self._kept += data

    def _take(self, count: int) -> bytes:
        data = bytes(self._kept[:count])
        del self._kept[:count]
        return data

    def _line(self) -> bytes:
        while (end := self._kept.find(b"\r\n")) < 0:
            self._more()
        return self._take(end + 2)[:-2]

    def request(self) -> Request | None:
        """Read a request up to its body; None: the connection has ended."""
        while (end := self._kept.find(b"\r\n\r\n")) < 0:
            if len(self._kept) > MOST_HEAD:
                return None
            try:
                self._more()
            except EOFError:
                return None
        first, *lines = self._take(end + 4)[:-4].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        parts = urlsplit(target)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        self._is_head = method == "HEAD"
        if headers.get("expect", "").lower() == "100-continue":
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(
            method,
            bucket,
            unquote(key),
            parse_qs(parts.query, keep_blank_values=True),
            headers,
        )

    def body(self, request: Request, path: Path) -> Object:
        """Write the request's body into a file, if it has one."""
        headers = request.headers
        left, size = int(headers.get("content-length", "0")), 0
        if left or "transfer-encoding" in headers:
            with path.open("wb", buffering=0) as file:
                if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
                    size = self._chunks(file)
                else:
                    size = self._copy(file, left)
        elif request.method in ("PUT", "POST"):
            path.touch()
        return Object(path, size, f'"{secrets.token_hex(16)}"', time.time())

    def _copy(self, file: BinaryIO, count: int) -> int:
        left = count
        if self._kept:
            data = self._take(min(left, len(self._kept)))
            file.write(data)
            left -= len(data)
        block = memoryview(bytearray(min(BLOCK, left)))
        received = 0
        while left:
            now = self._socket.recv_into(block[: min(left, BLOCK)])
            if now == 0:
                raise EOFError
            file.write(block[:now])
            left -= now
            received += now
        self._server.count("received", received)
        return count

    def _chunks(self, file: BinaryIO) -> int:
        """Read chunks with signatures, and the lines after the last one."""
        size = 0
        while count := int(self._line().split(b";")[0], 16):
            size += self._copy(file, count)
            self._line()
        while self._line():
            pass
        return size

    def _send(self, data: bytes, *, quiet: bool = False) -> None:
        if not quiet:
            self._server.count("sent", len(data))
        self._socket.sendall(data)

    def reply(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        """Send a reply."""
        found = {"Content-Length": str(len(body)), **(headers or {})}
        text = "".join(f"{name}: {value}\r\n" for name, value in found.items())
        self._send(
            f"HTTP/1.1 {status} x\r\n{text}\r\n".encode() + (b"" if self._is_head else body),
            quiet=quiet,
        )

    def xml(self, name: str, text: str) -> None:
        """Send a reply of S3."""
        xmlns = "http://s3.amazonaws.com/doc/2006-03-01/"
        body = f'<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="{xmlns}">{text}</{name}>'
        self.reply(200, body.encode(), {"Content-Type": "application/xml"})

    def error(self, status: int, code: str, *, with_body: bool = True) -> None:
        """Send an error of S3."""
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>" if with_body else ""
        self.reply(status, body.encode(), {"Content-Type": "application/xml"})

    def send(self, request: Request, found: Object) -> None:
        """Send an object, or a range of it."""
        first, last, status = 0, found.size - 1, 200
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        stamp = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(found.time))
        headers = {"ETag": found.tag, "Last-Modified": stamp, "Accept-Ranges": "bytes"}
        if match is not None:
            status = 206
            if match.group(1):
                first, last = (
                    int(match.group(1)),
                    min(int(match.group(2) or last), last),
                )
            else:
                first = max(0, found.size - int(match.group(2)))
            if first > last:
                self.error(416, "InvalidRange")
                return
            headers["Content-Range"] = f"bytes {first}-{last}/{found.size}"
        count = last - first + 1
        text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._send(f"HTTP/1.1 {status} x\r\nContent-Length: {count}\r\n{text}\r\n".encode())
        if not self._is_head and count:
            self._server.count("sent", count)
            with found.path.open("rb") as file:
                self._socket.sendfile(file, first, count)


if __name__ == "__main__":
    server = Server(Path(sys.argv[1]))
    threading.Thread(target=server.run, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()
