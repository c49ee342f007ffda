# SPDX-License-Identifier: BSD-3-Clause
"""`Place`: the objects under a URL, in an object store or a folder.

Keys, endpoint and region come from the usual environment, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL, or from the
profile files of AWS. They are never stored or shown.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any, Protocol, TypeVar

from ..errors import DamagedError, Error, InputOutputError, InvalidError, NotFoundError, ReadOnlyError, UnsupportedError
from .files import FolderClient, Info, MemoryClient, Part

log = logging.getLogger("lmcstore")

PARALLEL = 8
_ATTEMPTS = 6
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_DEFAULT_TIMEOUT_S = 120.0
_LONGEST_TRYING_S = 180.0
_HURRIED_ATTEMPTS, _LONGEST_HURRY_S = 2, 2.0
_EXPECTED_BYTES = 16 << 20
_AT_ONCE_BYTES = 4 << 20
_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_CLOUD = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az", "https": "http", "http": "http"}
_PLAIN = frozenset(("s3", "gs", "az"))
_PATH = re.compile(r"[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9_-][A-Za-z0-9._=-]*)*/?")
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_FINAL_STATUS = re.compile(r"status code: 4(?!08|09|25|29)\d\d")
_FULL = re.compile("QuotaExceeded|InsufficientStorage|StorageFull|status code: 507")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)")
_NO_HOST = "dns error"
_T = TypeVar("_T")


class Forked(Protocol):
    """A thing that is made anew in a forked child."""

    def renew(self) -> None:
        """Replace threads and locks, which the child does not have or can't free."""


forked: weakref.WeakSet[Forked] = weakref.WeakSet()


def _renew() -> None:
    for thing in forked:
        thing.renew()


os.register_at_fork(after_in_child=_renew)


class Client(Protocol):
    """The requests of a kind of place. A missing object is a FileNotFoundError."""

    def get(self, name: str, most: int) -> bytes:
        """Read an object; DamagedError: it is larger than `most` bytes."""

    def get_range(self, name: str, offset: int, count: int) -> Part:
        """Read a range, less where the object ends."""

    def put(self, name: str, *parts: Part) -> None:
        """Write an object durably, over an existing one."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object durably unless it exists; whether it did."""

    def head(self, name: str) -> Info:
        """Describe an object."""

    def list(self, prefix: str) -> Iterator[Info]:
        """List the objects below a folder."""

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is no error."""


class Pace:
    """A limit of the bytes in a second, for several places together."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._turn = threading.Lock()
        self._free_at = 0.0

    def wait(self, count: int) -> None:
        """Wait until some bytes may be sent."""
        with self._turn:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + count / self.rate
        time.sleep(max(0.0, start - time.monotonic()))


class Place:
    """The objects under a URL. Several threads may use it.

    Each request is tried several times, for a bounded time. Names are relative to the URL. `pace` limits the bytes
    that are written in a second, and `read_pace` those of ranges that are read. `hurries`: a user waits, so a host that
    is not found is reported soon, unless the server has answered before.
    """

    def __init__(
        self,
        url: str,
        parallel: int = PARALLEL,
        pace: Pace | None = None,
        read_pace: Pace | None = None,
        *,
        hurries: bool = False,
    ) -> None:
        self.url, self._client = _client(url)
        self._parallel, self.pace, self.read_pace = parallel, pace, read_pace
        self._hurries = hurries
        self._expected: dict[str, Future[bytes]] = {}
        self.renew()
        forked.add(self)

    def renew(self) -> None:
        self._workers = ThreadPoolExecutor(self._parallel, "lmcstore-remote")

    def below(self, name: str) -> Place:
        """Return the place of a folder in this one."""
        if isinstance(self._client, FolderClient):
            self._client.check(f"{name}/")
        return Place(f"{self.url}/{name}", self._parallel, self.pace, self.read_pace, hurries=self._hurries)

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_writable(self) -> None:
        """Refuse a URL that is only for reading."""
        if _is_web(self.url):
            raise ReadOnlyError(
                f"{self.url}: an https URL is only for reading; runs are written at s3://, gs://, az:// and file:///"
            )

    def where(self, name: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.url}/{name}"

    def get(self, name: str, most: int = 1 << 30) -> bytes:
        """Read an object; NotFoundError: there is none. DamagedError: it has more than `most` bytes."""
        expected = self._expected.pop(name, None)
        if expected is not None:
            data = expected.result()
            if len(data) <= most:
                return data
        return self._get(name, most)

    def expect(self, name: str) -> None:
        """Begin to read a small object that the next `get` of its name returns."""
        self._expected[name] = self.start(self._get, name, _EXPECTED_BYTES)

    def _get(self, name: str, most: int) -> bytes:
        return self._try(name, "read", lambda: self._client.get(name, most))

    def get_range(self, name: str, offset: int, count: int) -> Part:
        """Read a part of an object; DamagedError: the object is shorter."""
        if count == 0:
            return b""
        if self.read_pace is not None:
            self.read_pace.wait(count)
        data = self._try(name, "read", lambda: self._client.get_range(name, offset, count))
        if len(data) != count:
            raise DamagedError(f"{self.where(name)} is cut short: {count} bytes from {offset} on are missing or less")
        return data

    def get_ranges(self, ranges: Iterable[tuple[str, int, int]]) -> Sequence[Part]:
        """Read parts (name, offset, count) of objects in parallel."""
        return self._all([self._workers.submit(self.get_range, *one) for one in ranges])

    def start(self, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Run a function in one of the place's threads. It must not start another and wait for it."""
        return self._workers.submit(work, *arguments)

    def put(self, name: str, *parts: Part) -> None:
        """Write an object, over an existing one. It is durable when this returns."""
        if self.pace is not None:
            self.pace.wait(sum(map(len, parts)))
        self._try(name, "write", lambda: self._client.put(name, *parts))

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless one of the name exists; whether this call, also in an earlier try, wrote it.

        Two callers never get True, unless their data are equal.
        """

        def create() -> bool:
            if self._client.create(name, data):
                return True
            try:
                return self._client.get(name, len(data)) == data  # an earlier try was answered too late
            except DamagedError:  # longer
                return False
            except FileNotFoundError:  # two at once, of which none won, or it is deleted
                raise _Again(f"{name} exists and does not exist") from None

        return self._try(name, "write", create)

    def exists(self, name: str) -> bool:
        """Whether there is an object of the name."""
        try:
            self.head(name)
        except NotFoundError:
            return False
        return True

    def head(self, name: str) -> Info:
        """Return the size and the time of an object; NotFoundError: there is none."""
        return self._try(name, "read", lambda: self._client.head(name))

    def list(self, prefix: str) -> Sequence[Info]:
        """List the objects below a folder, in order of their names."""
        return self._try(prefix, "list", lambda: sorted(self._client.list(prefix)))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. Missing ones are no error."""

        def delete(name: str) -> None:
            self._try(name, "delete", lambda: self._client.delete(name))

        self._all([self._workers.submit(delete, name) for name in names])

    @staticmethod
    def _all(futures: Sequence[Future[_T]]) -> Sequence[_T]:
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def _try(self, name: str, verb: str, work: Callable[[], _T]) -> _T:
        if _NAME.fullmatch(name) is None or ".." in name.split("/"):
            raise InvalidError(f"{name!r} can't be the name of an object")
        start = time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                done = work()
                self._hurries = False
                return done
            except Exception as error:
                failure = _translated(error, self.where(name), verb)
                if failure is not None:
                    self._hurries = False
                    if isinstance(failure, InputOutputError) and failure.errno == errno.EACCES:
                        self._client = _client(self.url)[1]  # the next request takes new keys, if there are some
                    raise failure from None
                last = error
            is_unknown = self._hurries and _NO_HOST in str(last)
            if is_unknown and (attempt == _HURRIED_ATTEMPTS or time.monotonic() - start > _LONGEST_HURRY_S):
                break
            if time.monotonic() - start > _LONGEST_TRYING_S:
                break
            if attempt < _ATTEMPTS:
                import random

                pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1)
                log.info("%s: try %d to %s it failed (%s)", self.where(name), attempt, verb, _cause(last))
                time.sleep(pause)
        seconds = time.monotonic() - start
        raise InputOutputError(
            f"{self.where(name)}: {attempt} {'try' if attempt == 1 else 'tries'} in {seconds:.0f} s to {verb} it "
            "failed, the last one with: "
            f"{_cause(last)}. Check the network, the endpoint and the keys, and repeat the command"
        )


class _Again(Exception):
    """A try that may succeed the next time."""


class _ObstoreClient:
    user: int | None = None
    """The process that uses obstore. Its threads are missing in a forked child, where each request would hang."""

    def __init__(self, store: Any, *, can_write: bool) -> None:
        self._store, self._can_write = store, can_write

    @property
    def _obstore(self) -> ModuleType:
        import obstore

        process = os.getpid()
        if _ObstoreClient.user not in (None, process):
            raise UnsupportedError(
                "object stores can't be used in a forked child of a process that has used one: start processes by "
                '\'spawn\' (multiprocessing.get_context("spawn"), DataLoader(multiprocessing_context="spawn"))'
            )
        _ObstoreClient.user = process
        return obstore

    def get(self, name: str, most: int) -> bytes:
        result = self._obstore.get(self._store, name)
        if result.meta["size"] > most:
            raise DamagedError(f"object {name} has {result.meta['size']} bytes, more than {most}")
        return bytes(result.bytes())

    def get_range(self, name: str, offset: int, count: int) -> Part:
        return memoryview(self._obstore.get_range(self._store, name, start=offset, length=count))

    def put(self, name: str, *parts: Part) -> None:
        self._check(name)
        self._obstore.put(self._store, name, parts[0] if len(parts) == 1 else parts, use_multipart=False)

    def create(self, name: str, data: bytes) -> bool:
        self._check(name)
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError, FileExistsError):
            return False
        return True

    def head(self, name: str) -> Info:
        meta = self._obstore.head(self._store, name)
        return Info(name, meta["size"], meta["last_modified"].timestamp())

    def list(self, prefix: str) -> Iterator[Info]:
        for chunk in self._obstore.list(self._store, prefix=prefix):
            for meta in chunk:
                yield Info(meta["path"], meta["size"], meta["last_modified"].timestamp())

    def delete(self, name: str) -> None:
        self._check(name)
        with contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, name)

    def _check(self, name: str) -> None:
        if not self._can_write:
            raise ReadOnlyError(f"{name} can't be changed: an https URL is only for reading")


class _WebClient(_ObstoreClient):
    def get_range(self, name: str, offset: int, count: int) -> Part:
        """Read a range in parts, since a stranger's server may send more than was asked for."""
        result = self._obstore.get(self._store, name, options={"range": (offset, offset + count)})
        parts: list[Any] = []
        size = 0
        for part in result.stream(min_chunk_size=min(count, _AT_ONCE_BYTES)):
            parts.append(part)
            size += len(part)
            if size > count:
                raise DamagedError(f"the server sends more than the {count} bytes from {offset} on that were asked for")
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


def is_url(text: str) -> bool:
    """Whether text is a URL rather than a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def _is_web(url: str) -> bool:
    return url.lower().startswith("http")


def _client(url: str) -> tuple[str, Client]:
    """Return the URL without a slash at its end, and its client."""
    if not isinstance(url, str):
        raise UnsupportedError(f"a URL must be a str, not {type(url).__qualname__!r}")
    if not url.isprintable() or " " in url:
        raise InvalidError(f"{url!r:.100} has characters that no URL has")
    scheme = url.partition("://")[0]
    if scheme in _PLAIN and _PATH.fullmatch(url, len(scheme) + 3) is not None:  # most are; the rest takes 2 ms to load
        shown = url.rstrip("/")
        return shown, _cloud_client(_CLOUD[scheme], shown)
    import urllib.parse

    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError as error:
        raise InvalidError(f"{url!r} is no URL ({error})") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidError(
            "a URL of a run has no user, password, query or fragment: keys come from the environment, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from ~/.aws"
        )
    scheme, path = parts.scheme.lower(), parts.path.strip("/")
    if any(part in (".", "..") for part in urllib.parse.unquote(path).split("/")):
        raise InvalidError(f"{url!r} has a '.' or '..' in its path")
    shown = url.rstrip("/") if path or parts.netloc else url
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or not path:
            raise InvalidError(f"{url!r} is no folder: write file:///path")
        return shown, FolderClient("/" + urllib.parse.unquote(path))
    if scheme == "memory":
        return shown, MemoryClient(parts.netloc + "/" + path)
    if scheme not in _CLOUD or not parts.netloc:
        raise UnsupportedError(f"{url!r}: a run can be at s3://, gs://, az://, file:/// or, to read it, at https://")
    return shown, _cloud_client(_CLOUD[scheme], shown)


def _cloud_client(kind: str, url: str) -> Client:
    try:
        from obstore import store as stores
    except ImportError as error:
        raise UnsupportedError(
            f"{url}: object stores need the package obstore ({error}): pip install lmcstore[remote]"
        ) from None
    timeout = _timeout()
    options: dict[str, Any] = {
        "connect_timeout": f"{max(1, round(min(10.0, timeout) * 1e3))} ms",
        "timeout": f"{max(1, round(timeout * 1e3))} ms",
    }
    retries: Any = {"max_retries": 0}
    config: dict[str, str] = {}
    if kind == "s3":
        config = _aws_config()
    named = (os.environ.get(name, "") for name in _ENDPOINTS.get(kind, ()))
    if (config.get("endpoint") or next(filter(None, named), "")).lower().startswith("http://"):
        options["allow_http"] = True
    if kind == "http":
        options["allow_http"] = url.lower().startswith("http://")
        return _WebClient(
            stores.HTTPStore(url, client_options=options, retry_config=retries),  # type: ignore[arg-type]
            can_write=False,
        )
    try:
        from_url: Callable[..., Any] = stores.from_url
        store = from_url(url, config=config, client_options=options, retry_config=retries)
    except Exception as error:
        raise InvalidError(f"{url} can't be used: {_cause(error)}") from None
    return _ObstoreClient(store, can_write=True)


def _timeout() -> float:
    text = os.environ.get("LMC_STORE_REMOTE_TIMEOUT", "")
    try:
        seconds = float(text) if text else _DEFAULT_TIMEOUT_S
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 86400:
        raise InvalidError(f"LMC_STORE_REMOTE_TIMEOUT is {text!r}: it must be seconds, above 0 and at most 86400")
    return seconds


def _aws_config() -> dict[str, str]:
    """Return the settings of AWS's profile files that the environment lacks."""
    profile = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    keys: dict[str, str] = {}
    for variable, default, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", profile if profile == "default" else f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", profile),
    ):
        path = os.path.expanduser(os.environ.get(variable) or default)
        if not os.path.exists(path):
            continue
        import configparser

        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (OSError, ValueError, configparser.Error):
            raise InvalidError(f"{path} is no profile file of AWS") from None
        if parser.has_section(section):
            keys.update(parser.items(section))
    config: dict[str, str] = {}
    if not os.environ.get("AWS_ACCESS_KEY_ID") and "aws_access_key_id" in keys:
        config["access_key_id"] = keys["aws_access_key_id"]
        config["secret_access_key"] = keys.get("aws_secret_access_key", "")
        if "aws_session_token" in keys:
            config["session_token"] = keys["aws_session_token"]
    if not os.environ.get("AWS_REGION") and not os.environ.get("AWS_DEFAULT_REGION") and "region" in keys:
        config["region"] = keys["region"]
    has_endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not has_endpoint and "endpoint_url" in keys:
        config["endpoint"] = keys["endpoint_url"]
    return config


def _cause(error: Exception) -> str:
    """Shorten the text of a failure, and leave out parts that may contain a key."""
    text = str(error).split("\n\nDebug source:")[0]
    code = re.search(r"<Code>([^<]{1,100})</Code>", text)
    text = re.sub(r"\?[^\s\"')]*", "?...", text.split("\n")[0].split(": <?xml")[0])
    source = re.search(r"(Connect|Timeout|TimedOut|ConnectionRefused)", str(error))
    if _NO_HOST in str(error):
        return f"{text[:400]}, since the name of its host was not found"
    more = [part.group(1) for part in (code, source) if part is not None and part.group(1) not in text]
    return ", ".join([text[:400] or type(error).__name__, *more])


def _translated(error: Exception, where: str, verb: str) -> Exception | None:
    """Return the error of lmcstore for a failure; None: the next try may succeed."""
    text = str(error)
    if isinstance(error, _Again):
        return None
    if isinstance(error, FileNotFoundError) and not isinstance(error, InputOutputError):
        if "NoSuchBucket" in text or "ContainerNotFound" in text:
            return NotFoundError(f"{where}: there is no such bucket")
        return NotFoundError(f"{where}: there is no such object")
    if (wrong := _wrong_server(error, where)) is not None:
        return wrong
    if isinstance(error, DamagedError):
        return DamagedError(f"{where} is damaged: {error}")
    if isinstance(error, InvalidError | ReadOnlyError | UnsupportedError | InputOutputError):
        return error
    kind = type(error).__name__
    if _FULL.search(text) is not None:
        failure = InputOutputError(f"{where}: the server has no room left ({_cause(error)})")
        failure.errno = errno.ENOSPC
        return failure
    if "RequestTimeTooSkewed" in text:
        return InputOutputError(
            f"{where}: the server refused to {verb} it, since the clocks of this machine and of the server differ "
            f"({_cause(error)}). Set the clock"
        )
    if kind in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError") or "ExpiredToken" in text:
        failure = InputOutputError(
            f"{where}: the server refused to {verb} it ({_cause(error)}). Check the keys in the environment, or the "
            "profile, and their rights"
        )
        failure.errno = errno.EACCES
        return failure
    if "status code: 416" in text:
        return DamagedError(f"{where} is cut short: it ends before the bytes that are needed")
    if kind in ("NotSupportedError", "NotImplementedError"):
        return UnsupportedError(f"{where}: this server can't {verb} it so ({_cause(error)})")
    if isinstance(error, OSError):
        failure = InputOutputError(f"{where}: it is impossible to {verb} it ({error.strerror or error})")
        failure.errno = error.errno or 0
        return failure
    if kind.endswith("Error") and type(error).__module__.startswith("obstore") and _FINAL_STATUS.search(text) is None:
        return None
    return InputOutputError(f"{where}: it is impossible to {verb} it ({_cause(error)})")


def _wrong_server(error: Exception, where: str) -> Error | None:
    """Return the error for an answer that no try will change: of a web server, or a wrong one."""
    text = str(error)
    if _is_web(where) and type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        # a public bucket of S3 answers so where an object is missing
        return NotFoundError(f"{where}: there is no such object, or it is not public")
    certificate = _CERTIFICATE.search(text)
    if certificate is not None:
        return InputOutputError(
            f"{where}: the server's certificate is not valid ({certificate.group(1)}). If it is of an authority of "
            "yours, set SSL_CERT_FILE to a file of the authorities that you trust"
        )
    if "InvalidMessage" in text:
        return InputOutputError(f"{where}: the server does not speak https on this port")
    if "error following redirect" in text:
        kind = "to http://" if "BadScheme" in text else "too often"
        return InputOutputError(f"{where}: the server redirects the request {kind}, which is not followed")
    if "RangeNotSupported" in text or "UnexpectedRange" in text:
        return UnsupportedError(
            f"{where}: this server does not send parts of a file (range requests), so runs can't be read from it"
        )
    if "MissingContentLength" in text:
        return UnsupportedError(f"{where}: this server does not tell the size of a file, so runs can't be read from it")
    return None
