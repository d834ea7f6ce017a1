"""The tier's objects, as one gets at them who should not, and a store that is slow and busy."""

import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minio import Minio
from minio.error import S3Error

_BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
#: The store rejects one request in this number, and delays each by this time.
_REFUSED_EVERY, _HELD_UP_S = 3, 0.05
_PIECE = 64 * 1024


class Objects:
    """The objects of a tier, by the options that Spark reads it with."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["path"]) if "path" in options else None
        if self._folder is None:
            self._bucket = options["buckets"]
            self._client: Any = Minio(
                urlsplit(options["endpoint"]).netloc,
                access_key=options["accessKeyId"],
                secret_key=options["secretAccessKey"],
                secure=False,
            )

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        if self._folder is not None:
            return (self._folder / key).read_bytes()
        with self._client.get_object(self._bucket, key) as answer:
            return bytes(answer.read())

    def put(self, key: str, data: bytes) -> None:
        """In the place of one."""
        if self._folder is not None:
            (self._folder / key).write_bytes(data)
            return
        import io

        self._client.put_object(self._bucket, key, io.BytesIO(data), len(data))

    def has(self, key: str) -> bool:
        """Return whether the object exists."""
        if self._folder is not None:
            return (self._folder / key).exists()
        try:
            self._client.stat_object(self._bucket, key)
        except S3Error as error:
            if error.code in {"NoSuchKey", "NotFound"}:
                return False
            raise
        return True

    @contextmanager
    def instead(self, key: str, data: bytes) -> Iterator[None]:
        """Other bytes for one, for a while."""
        before = self.get(key)
        self.put(key, data)
        try:
            yield
        finally:
            self.put(key, before)


class BusyStore:
    """Something between Spark and an S3 store that answers 503 to every third request, and holds up
    the others."""

    def __init__(self, endpoint: str) -> None:
        store = urlsplit(endpoint).netloc
        outer = self
        self.refused = self.passed = 0
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                with outer._lock:
                    # Counted under a lock, so that exactly each third request is refused.
                    number = outer.refused + outer.passed
                    busy = number % _REFUSED_EVERY == _REFUSED_EVERY - 1
                    outer.refused, outer.passed = outer.refused + busy, outer.passed + (not busy)
                if busy:
                    self.send_response(503)
                    self.send_header("Content-Type", "application/xml")
                    self.send_header("Content-Length", str(len(_BUSY)))
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(_BUSY)
                    return
                time.sleep(_HELD_UP_S)
                # The signature covers the Host that the client wrote, so it stays as it is.
                onward = http.client.HTTPConnection(store, timeout=60)
                onward.request(self.command, self.path, headers=dict(self.headers.items()))
                answer = onward.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in {"connection", "transfer-encoding", "date", "server"}:
                        self.send_header(name, value)
                # Answers of unknown length are read before they are sent on with their length.
                length = answer.getheader("Content-Length")
                body = None if length is not None or self.command == "HEAD" else answer.read()
                if body is not None:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if body is not None:
                    self.wfile.write(body)
                elif self.command != "HEAD":
                    while piece := answer.read(_PIECE):
                        self.wfile.write(piece)
                onward.close()

            do_GET = do_HEAD = _pass

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """For ``endpoint`` of the source."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "BusyStore":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
