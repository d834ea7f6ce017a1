"""Small S3 in memory that misbehaves on request, which MinIO does not. It accepts every signature
and does not keep parts of uploads, so bodies are limited to 8 MiB."""

import hashlib
import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tidemark.tier.conditional_writes import RACERS

_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass
class Behaviour:
    """Deviations from S3.

    ``ignored``: request headers without an effect. ``bulk``: status and code with which
    DeleteObjects is answered instead. ``errors``: code for each key that is not deleted, with the
    number of failures (-1: always), in bulk or, with ``singly``, also alone. ``names``: errors have
    their key. ``racing``: by a request header, the part of keys with which conditional writes are
    checked for all writers of a probe, before any of them writes.
    """

    ignored: frozenset[str] = frozenset()
    bulk: tuple[int, str] | None = None
    errors: dict[str, tuple[str, int]] = field(default_factory=dict)
    singly: bool = False
    names: bool = True
    racing: Mapping[str, str] = field(default_factory=dict)


class S3Stub:
    """The store. ``objects``: by bucket and key. ``requests``: method and path of each."""

    def __init__(self) -> None:
        self.behaviour = Behaviour()
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self.checked = threading.Barrier(RACERS, timeout=10)
        outer = self

        class Handler(_Handler):
            stub = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def config(self) -> dict[str, Any]:
        """Return the ``remoteStorage.s3`` of this store."""
        return {
            "endpoint": f"http://127.0.0.1:{self._server.server_port}",
            "region": "us-east-1",
            "buckets": ["stub"],
            "prefix": "p",
            "accessKeyId": "key",
            "secretAccessKey": "secret",
        }

    def refuses(self, key: str) -> str | None:
        """Return the error code for a delete of ``key``, if it is refused now."""
        for part, (code, times) in self.behaviour.errors.items():
            if part in key and times:
                self.behaviour.errors[part] = (code, times - 1)
                return code
        return None

    def __enter__(self) -> "S3Stub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: S3Stub

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>as configured</Message></Error>"
        self._answer(status, text.encode(), Content_Type="application/xml")

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        key = urllib.parse.unquote(path).removeprefix("/stub").lstrip("/")
        with self.stub.lock:
            self.stub.requests.append((self.command, self.path))
            getattr(self, f"_{self.command.lower()}")(key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _condition(self, name: str) -> str | None:
        return None if name in self.stub.behaviour.ignored else self.headers.get(name)

    def _put(self, key: str, _query: str, body: bytes) -> None:
        present = self.stub.objects.get(key)
        if self._condition("If-None-Match") == "*" and present is not None:
            return self._error(412, "PreconditionFailed")
        expected = self._condition("If-Match")
        if expected is not None and (present is None or _tag(present) != expected):
            return self._error(412 if present is not None else 404, "PreconditionFailed")
        racing = self.stub.behaviour.racing
        if any(header in self.headers and part in key for header, part in racing.items()):
            # Other requests are served meanwhile.
            self.stub.lock.release()
            try:
                self.stub.checked.wait()
            finally:
                self.stub.lock.acquire()
        self.stub.objects[key] = body
        return self._answer(200, ETag=_tag(body))

    def _get(self, key: str, query: str, _body: bytes) -> None:
        asked = urllib.parse.parse_qs(query, keep_blank_values=True)
        if not key:
            return self._list(asked)
        data = self.stub.objects.get(key)
        if data is None:
            return self._error(404, "NoSuchKey")
        headers = {"ETag": _tag(data), "Last_Modified": "Sat, 01 Jan 2000 00:00:00 GMT"}
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._answer(200, data, **headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last or len(data)) + 1]
        if not part:
            return self._error(416, "InvalidRange")
        end = int(first) + len(part) - 1
        headers["Content_Range"] = f"bytes {first}-{end}/{len(data)}"
        return self._answer(206, part, **headers)

    _head = _get

    def _list(self, asked: dict[str, list[str]]) -> None:
        if "uploads" in asked:
            return self._answer(200, f'<R xmlns="{_XMLNS}"/>'.encode())
        prefix = asked.get("prefix", [""])[0]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
            f"<LastModified>2000-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(_tag(data))}</ETag></Contents>"
            for key, data in sorted(self.stub.objects.items())
            if key.startswith(prefix)
        )
        text = (
            f'<ListBucketResult xmlns="{_XMLNS}"><IsTruncated>false</IsTruncated>{rows}'
            "</ListBucketResult>"
        )
        return self._answer(200, text.encode(), Content_Type="application/xml")

    def _delete(self, key: str, _query: str, _body: bytes) -> None:
        code = self.stub.refuses(key) if self.stub.behaviour.singly else None
        if code is not None:
            return self._error(400, code)
        self.stub.objects.pop(key, None)
        return self._answer(204)

    def _post(self, _key: str, query: str, body: bytes) -> None:
        if query.rstrip("=") != "delete":
            return self._error(501, "NotImplemented")
        if self.stub.behaviour.bulk is not None:
            return self._error(*self.stub.behaviour.bulk)
        if self.headers.get("Content-MD5") is None:
            return self._error(400, "MissingContentMD5")
        rows = ""
        for element in ElementTree.fromstring(body).iter(f"{{{_XMLNS}}}Key"):
            key = element.text or ""
            code = self.stub.refuses(key)
            if code is None:
                self.stub.objects.pop(key, None)
            else:
                named = f"<Key>{escape(key)}</Key>" if self.stub.behaviour.names else ""
                rows += f"<Error>{named}<Code>{code}</Code></Error>"
        return self._answer(200, f'<DeleteResult xmlns="{_XMLNS}">{rows}</DeleteResult>'.encode())

    def log_message(self, *_: object) -> None:
        pass


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
