"""A transparent proxy between a client and the API server that records the requests as RBAC
rights.
"""

import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from yarl import URL

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}
_RESPONSE_HEADERS = ("Content-Type", "Retry-After")
_REQUEST_HEADERS = ("Accept", "Authorization", "Content-Type")


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource (``plural`` or ``plural/subresource``) of a group."""

    group: str
    resource: str
    verb: str


def right_of(method: str, path: str, query: str) -> Right | None:
    """Return the right that a request needs; None if it concerns no namespaced resource."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    # /api/v1/... is the core group; /apis/GROUP/VERSION/... has its name in the path.
    group, rest = ("", parts[2:]) if parts[0] == "api" else ("".join(parts[1:2]), parts[3:])
    if len(rest) < 3 or rest[0] != "namespaces":
        return None
    resource = "/".join([rest[2], *rest[4:]])
    verb = _VERBS[method]
    # RBAC has verbs of its own for requests on a whole collection.
    if len(rest) == 3 and method in {"GET", "DELETE"}:
        collection = "watch" if "watch=true" in query.lower() else "list"
        verb = collection if method == "GET" else "deletecollection"
    return Right(group, resource, verb)


async def _nothing(right: Right, path: str) -> None:
    """Happens before a request."""


class RightsRecorder:
    """``used``: granted rights of requests; ``refused``: those that were answered with 403.

    ``before`` is called with the right and the path of each request before it is forwarded.
    """

    def __init__(
        self,
        configuration: Configuration,
        before: Callable[[Right, str], Awaitable[None]] = _nothing,
    ) -> None:
        self._before = before
        self._server = str(configuration.host)
        data = configuration.ca_cert_data
        text = data.decode() if isinstance(data, bytes) else data
        self._ssl = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=text)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.used: set[Right] = set()
        self.refused: set[Right] = set()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
            # Watches last as long as the client wants, so there is no total time-out.
        )
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._session is not None
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        path, _, query = request.raw_path.partition("?")
        right = right_of(request.method, path, query)
        # The test may change the object now, so that the forwarded write meets a conflict.
        if right is not None:
            await self._before(right, path)
        headers = {
            name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers
        }
        async with self._session.request(
            request.method,
            URL(self._server + request.raw_path, encoded=True),
            # identity: chunks are passed on as they come, without decompression.
            headers={**headers, "Accept-Encoding": "identity"},
            data=await request.read() or None,
            ssl=self._ssl,
        ) as answer:
            self._note(right, answer.status)
            passed_headers = {
                name: answer.headers[name] for name in _RESPONSE_HEADERS if name in answer.headers
            }
            response = web.StreamResponse(status=answer.status, headers=passed_headers)
            await response.prepare(request)
            # A client may abandon a watch at any time.
            with contextlib.suppress(ConnectionError):
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response

    def _note(self, right: Right | None, status: int) -> None:
        if right is None:
            return
        (self.refused if status == 403 else self.used).add(right)
        if right.verb == "patch" and status == 201:  # an apply that creates needs both
            self.used.add(Right(right.group, right.resource, "create"))


def write_kubeconfig(path: Path, server: str, token: str) -> Path:
    """A kubeconfig (JSON is YAML) with one bearer token."""
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": server}}],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    path.write_text(json.dumps(body), "utf-8")
    return path
