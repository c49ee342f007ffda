# SPDX-License-Identifier: BSD-3-Clause
"""A server in memory that has as much of the interfaces of GCS (XML) and Azure's blobs as a run needs. No keys."""

from __future__ import annotations

import re
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from local_server import LocalServer


class CloudServer(LocalServer):
    """Serves at `url`; `top` is the path of the only bucket or container."""

    def __init__(self, kind: str) -> None:
        super().__init__(_Handler)
        self.is_azure = kind == "az"
        self.top = "/account/bucket" if self.is_azure else "/bucket"
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: CloudServer
    protocol_version = "HTTP/1.1"

    def _key(self) -> str | None:
        path = unquote(urlsplit(self.path).path)
        return path.removeprefix(f"{self.server.top}/") if path.startswith(f"{self.server.top}/") else None

    def do_PUT(self) -> None:
        data, key = self.rfile.read(int(self.headers["Content-Length"])), self._key()
        azure = self.server.is_azure
        is_new = (self.headers["If-None-Match"] if azure else self.headers["x-goog-if-generation-match"]) in ("*", "0")
        assert key is not None and (not azure or self.headers["x-ms-blob-type"] == "BlockBlob")
        with self.server.lock:
            exists = key in self.server.objects
            if not (is_new and exists):
                self.server.objects[key] = data
        if is_new and exists:
            code = "BlobAlreadyExists" if azure else "PreconditionFailed"
            self._reply(409 if azure else 412, f"<Error><Code>{code}</Code></Error>".encode())
        else:
            self._reply(201 if azure else 200, b"")

    def do_GET(self) -> None:
        key = self._key()
        data = self.server.objects.get(key or "")
        if key is None:
            self._reply(200, self._listed())
        elif data is None:
            code = "BlobNotFound" if self.server.is_azure else "NoSuchKey"
            self._reply(404, f"<Error><Code>{code}</Code></Error>".encode())
        elif "Range" not in self.headers:
            self._reply(200, data)
        else:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            where = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
            self._reply(206 if part else 416, part, {"Content-Range": where})

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        found = self.server.objects.pop(self._key() or "", None)
        self._reply(404 if found is None else 202 if self.server.is_azure else 204, b"")

    def do_POST(self) -> None:
        """Delete the objects of a batch, as Azure does."""
        batch = self.rfile.read(int(self.headers["Content-Length"])).decode()
        answers = ""
        for number, path in enumerate(re.findall(r"^DELETE (\S+) HTTP/1.1\r$", batch, re.MULTILINE)):
            found = self.server.objects.pop(unquote(path).removeprefix(f"{self.server.top}/"), None)
            status = "404 Not Found\r\nx-ms-error-code: BlobNotFound" if found is None else "202 Accepted"
            head = f"Content-Type: application/http\r\nContent-ID: {number}"
            answers += f"--b\r\n{head}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n"
        self._reply(202, f"{answers}--b--\r\n".encode(), {"Content-Type": "multipart/mixed; boundary=b"})

    def _listed(self) -> bytes:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        rows = [(escape(key), len(data)) for key, data in sorted(self.server.objects.items()) if key.startswith(prefix)]
        if self.server.is_azure:
            blobs = "".join(
                f"<Blob><Name>{key}</Name><Properties><Last-Modified>{formatdate(usegmt=True)}</Last-Modified>"
                f"<Content-Length>{size}</Content-Length><Content-Type>a/b</Content-Type><Etag>1</Etag></Properties>"
                "</Blob>"
                for key, size in rows
            )
            return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>1</ETag></Contents>"
            for key, size in rows
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()

    def _reply(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        named = {"Content-Length": str(len(data)), "ETag": '"1"', "Last-Modified": formatdate(usegmt=True)}
        for name, value in (named | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Write nothing."""
