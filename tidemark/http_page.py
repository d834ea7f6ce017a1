"""HTTP server for metrics and health of any process.

It serves ``/metrics``, ``/healthz`` and further pages of the process; anything else is 404. It runs
in a thread of its own, so that it answers even while the main loop of the process is blocked.
"""

import http.server
import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 5.0
POLL_S = 0.2

#: Whether the process is well, and one line that says why.
Verdict = tuple[bool, str]


class HttpPage:
    """Server of the pages ``/metrics`` and ``/healthz``, and of further ones.

    ``metrics`` returns text in Prometheus' format. ``health`` returns a verdict, which becomes
    status 200 or 503. ``more``: other pages by path. All are called in the server's threads.
    """

    def __init__(
        self,
        *,
        metrics: Callable[[], bytes],
        health: Callable[[], Verdict],
        more: Mapping[str, Callable[[], bytes]] | None = None,
    ) -> None:
        self._metrics = metrics
        self._more = dict(more or {})
        self._health = health
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen, and return the bound port (0 picks a free one). Raises ``OSError``."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = _Server(family, (host, port), self)
        # A daemon thread does not keep a process alive that ends without ``stop``.
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": POLL_S},
            name="http",
            daemon=True,
        )
        self._thread.start()
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Stop listening (blocking, a fraction of a second)."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def answer(self, path: str) -> tuple[HTTPStatus, bytes]:
        """Return the status and the text of a page."""
        # Parameters after "?" select nothing here.
        match path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, self._metrics()
            case path if path in self._more:
                return HTTPStatus.OK, self._more[path]()
            case "/healthz":
                well, why = self._health()
                status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
                return status, f"{why}\n".encode()
            case _:
                return HTTPStatus.NOT_FOUND, b"/metrics or /healthz\n"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], page: HttpPage
    ) -> None:
        self.address_family = family
        self.page = page
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a failed answer.

        A client that did not wait is normal: a probe's time is short, and this process may have
        been suspended.
        """
        if isinstance(sys.exception(), ConnectionError | TimeoutError):
            logger.debug("%s did not wait for the page", client_address)
        else:
            logger.exception("a page for %s failed", client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        """Serve one page; the connection ends with it."""
        status, body = self.server.page.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log requests at level DEBUG only, because scrapes are frequent."""
        logger.debug(format, *args)
