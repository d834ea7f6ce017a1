"""A REST catalog on the loopback, as Iceberg's own server side has it: ``CatalogHandlers`` over a
catalog in memory, both in the jar that Spark has. What the network sees is served here: routes,
JSON by Iceberg's own codecs, and errors.

Requirements of a commit (a branch is where the client saw it) are checked by Iceberg on this side,
ref by ref, as every REST catalog does.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_REST = "org.apache.iceberg.rest"
_JACKSON = "org.apache.iceberg.shaded.com.fasterxml.jackson"
#: What the protocol says of Iceberg's exceptions; 500 of all others.
_STATUS = {
    "NoSuchTableException": 404,
    "NoSuchNamespaceException": 404,
    "AlreadyExistsException": 409,
    "CommitFailedException": 409,
    "BadRequestException": 400,
    "ValidationException": 400,
    "IllegalArgumentException": 400,
}


class Backend:
    """Iceberg's side of it, in Spark's JVM."""

    def __init__(self, session: SparkSession, properties: Mapping[str, str]) -> None:
        self.jvm: Any = session._jvm
        self._gateway: Any = session.sparkContext._gateway
        iceberg = self.jvm.org.apache.iceberg
        self._mapper = self._object_mapper()
        self._handlers = iceberg.rest.CatalogHandlers
        self._catalog = iceberg.inmemory.InMemoryCatalog()
        self._catalog.initialize("backend", dict(properties))

    def answer(self, method: str, path: str, body: str) -> str | None:
        """JSON, or None where there is nothing to say. Raises Py4JJavaError."""
        for pattern, routes in self._routes().items():
            match = re.fullmatch(pattern, path)
            if match and method in routes:
                answer = routes[method](body, *match.groups())
                return None if answer is None else str(self._mapper.writeValueAsString(answer))
        raise LookupError(f"{method} {path}")

    def _routes(self) -> dict[str, dict[str, Callable[..., Any]]]:
        handlers, catalog = self._handlers, self._catalog
        return {
            # The routes of Iceberg's REST specification that Spark uses, each answered by Iceberg's
            # own handler.
            "v1/namespaces": {
                "POST": lambda body: handlers.createNamespace(
                    catalog, self._read("requests.CreateNamespaceRequest", body)
                )
            },
            "v1/namespaces/([^/]+)": {
                "GET": lambda _, ns: handlers.loadNamespace(catalog, self._namespace(ns)),
                "HEAD": lambda _, ns: handlers.namespaceExists(catalog, self._namespace(ns)),
            },
            "v1/namespaces/([^/]+)/tables": {"POST": self._create},
            "v1/namespaces/([^/]+)/tables/([^/]+)": {
                "GET": lambda _, *of: self._load(*of),
                "HEAD": lambda _, *of: handlers.tableExists(catalog, self._table(*of)),
                "POST": lambda body, *of: handlers.updateTable(
                    catalog, self._table(*of), self._read("requests.UpdateTableRequest", body)
                ),
                "DELETE": lambda _, *of: handlers.dropTable(catalog, self._table(*of)),
            },
            "v1/namespaces/([^/]+)/tables/([^/]+)/metrics": {"POST": lambda *_: None},
        }

    def _create(self, body: str, namespace: str) -> Any:
        request = self._read("requests.CreateTableRequest", body)
        create = self._handlers.createTable
        if request.stageCreate():
            create = self._handlers.stageTableCreate
        return create(self._catalog, self._namespace(namespace), request)

    def _load(self, *of: str) -> Any:
        modes = getattr(self.jvm, f"{_REST}.RESTCatalogProperties$SnapshotMode")
        return self._handlers.loadTable(self._catalog, self._table(*of), modes.ALL)

    def _namespace(self, name: str) -> Any:
        levels = unquote(name).split("\x1f")
        names = self._gateway.new_array(self.jvm.java.lang.String, len(levels))
        for number, level in enumerate(levels):
            names[number] = level
        return self.jvm.org.apache.iceberg.catalog.Namespace.of(names)

    def _table(self, namespace: str, name: str) -> Any:
        identifier = self.jvm.org.apache.iceberg.catalog.TableIdentifier
        return identifier.of(self._namespace(namespace), unquote(name))

    def _read(self, kind: str, body: str) -> Any:
        loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return self._mapper.readValue(body, loader.loadClass(f"{_REST}.{kind}"))

    def _object_mapper(self) -> Any:
        """As Iceberg's client has it, which keeps its own to itself."""
        jvm = self.jvm
        fields = getattr(jvm, f"{_JACKSON}.annotation.PropertyAccessor").FIELD
        every = getattr(jvm, f"{_JACKSON}.annotation.JsonAutoDetect$Visibility").ANY
        kebab = f"{_JACKSON}.databind.PropertyNamingStrategies$KebabCaseStrategy"
        mapper = getattr(jvm, f"{_JACKSON}.databind.ObjectMapper")()
        mapper.setVisibility(fields, every)
        mapper.setPropertyNamingStrategy(getattr(jvm, kebab)())
        getattr(jvm, f"{_REST}.RESTSerializers").registerAll(mapper)
        return mapper


class _Handler(BaseHTTPRequestHandler):
    backend: Backend
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = self.path.partition("?")[0].strip("/")
        if path == "v1/config":
            self._answer(200, json.dumps({"defaults": {}, "overrides": {}}))
            return
        try:
            answer = self.backend.answer(self.command, path, body)
        except LookupError as error:
            self._refuse(404, "NoSuchRoute", str(error))
        except Py4JJavaError as error:
            name = str(error.java_exception.getClass().getSimpleName())
            message = str(error.java_exception.getMessage())
            self._refuse(_STATUS.get(name, 500), name, message)
        else:
            self._answer(204 if answer is None else 200, answer or "")

    do_GET = do_POST = do_HEAD = do_DELETE = _serve

    def _refuse(self, status: int, kind: str, message: str) -> None:
        error = {"message": message, "type": kind, "code": status}
        self._answer(status, json.dumps({"error": error}))

    def _answer(self, status: int, text: str) -> None:
        data = b"" if self.command == "HEAD" else text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Keep the server's log out of the output."""


@contextmanager
def rest_catalog(session: SparkSession, properties: Mapping[str, str]) -> Iterator[str]:
    """Its address. ``properties``: of the catalog behind it (``warehouse``, ``io-impl`` ...)."""
    handler = type("Handler", (_Handler,), {"backend": Backend(session, properties)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="rest-catalog", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
