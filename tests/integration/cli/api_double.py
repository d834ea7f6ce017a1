"""API server on loopback that records requests and answers with prepared objects."""

import datetime as dt
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.security.client_certificates import Leaf

Json = dict[str, Any]


class ApiDouble:
    """Answers of the server, and the requests that it received."""

    def __init__(self, port: int, scheme: str) -> None:
        self.url = f"{scheme}://127.0.0.1:{port}"
        #: By path. Other paths are lists without objects.
        self.objects: dict[str, Json] = {}
        #: Headers by request, and the subject of the client's certificate.
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.clients: list[str] = []
        #: Clock of the server relative to this machine's; None: answers have no date.
        self.clock_offset: dt.timedelta | None = dt.timedelta()
        #: Authorization headers that are refused.
        self.refused: set[str] = set()
        #: URL to which every request is redirected, "" for none.
        self.redirection = ""


@contextmanager
def api_double(tls: Leaf | None = None) -> Iterator[ApiDouble]:
    """Serve on a port of loopback; ``tls``: with a certificate, and asking clients for theirs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            # Record the request, with the client that TLS has verified.
            path = self.path.partition("?")[0]
            double.requests.append((path, dict(self.headers)))
            if isinstance(self.connection, ssl.SSLSocket):
                shown = self.connection.getpeercert() or {}
                double.clients.append(str(shown.get("subject", "")))
            # Choose the answer: a refusal, a prepared object, or an empty list.
            status = 401 if self.headers.get("Authorization") in double.refused else 200
            body = double.objects.get(path, {"items": [], "metadata": {"resourceVersion": "1"}})
            data = json.dumps(body if status == 200 else {"message": "Unauthorized"}).encode()
            if double.redirection:
                status, data = 302, b""
            # Send it, with the date of the server's own clock.
            self.send_response_only(status)
            if double.redirection:
                self.send_header("Location", double.redirection + path)
            if double.clock_offset is not None:
                now = dt.datetime.now(dt.UTC) + double.clock_offset
                self.send_header("Date", format_datetime(now, usegmt=True))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None: ...

    # The kernel chooses a free port.
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # Clients without a certificate are accepted, as by a real API server.
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.trusted)
        context.load_cert_chain(tls.certificate, tls.key)
        context.verify_mode = ssl.CERT_OPTIONAL
        server.socket = context.wrap_socket(server.socket, server_side=True)
    # Requests are served by a thread until the test ends.
    double = ApiDouble(server.server_port, "https" if tls else "http")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_kubeconfig(
    path: Path,
    cluster: Json,
    user: Json | None = None,
    *,
    name: str = "main",
    namespace: str = "apps",
) -> Path:
    """Write a kubeconfig with one context."""
    # Cluster, user and context have the same name.
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}
        ],
        "current-context": name,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
