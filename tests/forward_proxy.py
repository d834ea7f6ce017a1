"""Proxy on loopback that sends everything to one server: a forward proxy, or its TLS end."""

import http.client
import ssl
import threading
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True)
class Forwarded:
    """A request that the proxy has received."""

    host: str
    authorization: str
    is_obstore: bool


class ForwardProxy:
    """The proxy. ``requests``: all so far. ``tls``: it answers for the server over TLS."""

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Forwarded] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                # Record the request, with the host that the client wants.
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                url = urllib.parse.urlsplit(self.path)
                outer.requests.append(
                    Forwarded(
                        url.netloc,
                        self.headers.get("Proxy-Authorization", ""),
                        "object_store" in self.headers.get("User-Agent", ""),
                    )
                )
                target = urllib.parse.urlunsplit(("", "", url.path, url.query, ""))
                headers = {k: v for k, v in self.headers.items() if not k.startswith("Proxy-")}
                # Forward it to the one server, with the client's Host, which is signed.
                connection = http.client.HTTPConnection(upstream, timeout=30)
                try:
                    connection.request(self.command, target, body=body or None, headers=headers)
                    answer = connection.getresponse()
                    data = answer.read()
                    # The length of an answer to HEAD is not that of its body.
                    self.send_response(answer.status)
                    for name, value in answer.getheaders():
                        if name.lower() not in ("content-length", "transfer-encoding"):
                            self.send_header(name, value)
                    length = answer.getheader("Content-Length") or str(len(data))
                    self.send_header("Content-Length", length)
                    self.end_headers()
                    self.wfile.write(data)
                finally:
                    connection.close()

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
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
