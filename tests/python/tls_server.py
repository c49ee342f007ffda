# SPDX-License-Identifier: BSD-3-Clause
"""A web server with TLS for the files of a folder, and an authority for its certificate."""

from __future__ import annotations

import datetime
import ipaddress
import re
import ssl
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from local_server import LocalServer


def make_certificate(folder: Path, *, host: str = "localhost", days: int = 1) -> tuple[Path, Path]:
    """Write the certificate of a new authority, and one for a host with its key; return the paths of both files.

    The host's expires after `days`, which may be negative.
    """
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> Any:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def sign(text: str, key: Any, issuer: Any, *extensions: Any, end: int) -> Any:
        made = x509.CertificateBuilder().subject_name(name(text)).issuer_name(name("authority")).public_key(key)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(9))
        for extension in extensions:
            made = made.add_extension(extension, critical=False)
        return made.not_valid_after(now + datetime.timedelta(end)).sign(issuer, hashes.SHA256())

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = sign("authority", authority.public_key(), authority, x509.BasicConstraints(ca=True, path_length=0), end=1)
    names = x509.SubjectAlternativeName([x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = sign(host, key.public_key(), authority, names, x509.BasicConstraints(ca=False, path_length=None), end=days)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "authority.pem").write_bytes(ca.public_bytes(pem))
    (folder / "host.pem").write_bytes(leaf.public_bytes(pem) + private)
    return folder / "authority.pem", folder / "host.pem"


class Server(LocalServer):
    """Serves a folder at `url`."""

    def __init__(self, folder: Path, certificate: Path | None) -> None:
        super().__init__(_Handler)
        self.folder = folder
        self.has_ranges = True
        self.redirect = ""
        """A URL to which all requests are redirected, with their path."""
        self.missing = 404
        """The status for a missing file."""
        self.surplus = 0
        """How many MiB are sent behind a range; counts down."""
        self.requests: list[str] = []
        """Method, path and range of each."""
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://localhost:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients refuse its certificate."""


class _Handler(SimpleHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        wanted = self.headers.get("Range", "")
        self.server.requests.append(f"{self.command} {self.path} {wanted}".rstrip())
        if self.server.redirect:
            self._reply(302, b"", {"Location": self.server.redirect + self.path}, has_body)
            return
        path = self.server.folder / self.path.lstrip("/")
        if not path.is_file():
            self._reply(self.server.missing, b"nothing here", {}, has_body)
            return
        data = path.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted) if self.server.has_ranges else None
        if match is None:
            self._reply(200, data, {}, has_body)
            return
        first, last = int(match.group(1)), min(int(match.group(2)), len(data) - 1)
        if first >= len(data):
            self._reply(416, b"", {"Content-Range": f"bytes */{len(data)}"}, has_body)
            return
        self._reply(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"}, has_body)

    def _reply(self, status: int, data: bytes, headers: dict[str, str], has_body: bool) -> None:
        self.send_response(status)
        surplus = self.server.surplus if status == 206 else 0
        for name, value in {"Content-Length": str(len(data) + (surplus << 20)), **headers}.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", self.date_time_string())
        self.end_headers()
        if has_body:
            self.wfile.write(data)
            for _ in range(surplus):
                self.wfile.write(bytes(1 << 20))
                self.server.surplus -= 1

    def log_message(self, format: str, *arguments: object) -> None:
        """Write nothing."""
