"""Servers on loopback in front of a store, or in its place.

A proxy sends everything to one server: a forward proxy, its TLS end, or a way to it with faults.
``serving`` lets a test answer each connection itself.
"""

import contextlib
import http.client
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True)
class Forwarded:
    """A request that the proxy has received."""

    host: str
    authorization: str
    is_obstore: bool
    method: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Fault of the way to the server.

    ``answer``: status and body, in place of the server's answer. ``headers``: values that replace
    those of the request. ``body_bytes``: part of the answer's body that is sent, before the
    connection is closed. ``is_lost``: the request reaches the server, and no answer is sent.
    ``pause_s``: time before the answer.
    """

    answer: tuple[int, str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body_bytes: int | None = None
    is_lost: bool = False
    pause_s: float = 0


_NONE = Deviation()


class ForwardProxy:
    """The proxy. ``requests``: all so far. ``tls``: it answers for the server over TLS.

    ``deviate``: returns what is wrong with a request; None for nothing. It may be replaced while
    the proxy runs.
    """

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Forwarded] = []
        self.deviate: Callable[[Forwarded], Deviation | None] = lambda _: None
        self._closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                # Record the request, with the host that the client wants.
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                url = urllib.parse.urlsplit(self.path)
                target = urllib.parse.urlunsplit(("", "", url.path, url.query, ""))
                request = Forwarded(
                    url.netloc,
                    self.headers.get("Proxy-Authorization", "")
                    or self.headers.get("Authorization", ""),
                    "object_store" in self.headers.get("User-Agent", ""),
                    self.command,
                    target,
                )
                outer.requests.append(request)
                fault = outer.deviate(request) or _NONE
                outer._closing.wait(fault.pause_s)
                if fault.answer is not None:
                    status, text = fault.answer
                    retry = [("Retry-After", "1"), ("Content-Type", "application/xml")]
                    self._reply(status, retry, text.encode(), fault)
                    return
                headers = {k: v for k, v in self.headers.items() if not k.startswith("Proxy-")}
                headers |= {k: fault.headers.get(k.lower(), v) for k, v in headers.items()}
                # Forward it to the one server, with the client's Host, which is signed.
                connection = http.client.HTTPConnection(upstream, timeout=30)
                try:
                    connection.request(self.command, target, body=body or None, headers=headers)
                    answer = connection.getresponse()
                    self._reply(answer.status, answer.getheaders(), answer.read(), fault)
                finally:
                    connection.close()

            def _reply(
                self, status: int, headers: list[tuple[str, str]], data: bytes, fault: Deviation
            ) -> None:
                if fault.is_lost:
                    self.close_connection = True
                    return
                # The length of an answer to HEAD is not that of its body.
                length = dict(headers).get("Content-Length") or str(len(data))
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if fault.body_bytes is not None:
                    self.close_connection = True
                with contextlib.suppress(OSError):
                    self.wfile.write(data[: fault.body_bytes])

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    @property
    def address(self) -> str:
        """Return host and port."""
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that passes each connection to ``answer`` in a thread of its own."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    # Shutting the listener down ends accept with an error.
                    return
                threads.append(threading.Thread(target=answer, args=(connection,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(10)
            for thread in threads:
                thread.join(10)
