"""Calls of the operator to the API server.

A thin layer over ``kubernetes.aio``'s ``ApiClient``: paths and JSON instead of generated models,
one short timeout per request (the client's default is 300 s), and the errors of ``errors``. Nothing
is retried here: the caller of a write with an unknown effect reads the object and decides.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from tidemark.error_text import error_text
from tidemark.tls.trust import with_common_rules
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.errors import ApiServerUnavailable, KubeError, error_of
from tidemark_operator.kube.kinds import Json, Kind, ObjectList, resource_version
from tidemark_operator.kube.own_objects import OwnObjects

REQUEST_TIMEOUT_S = 10.0
LIST_TIMEOUT_S = 60.0
LIST_CHUNK = 500
#: The API server ends a watch after this long; the next one continues at its end.
WATCH_S = 600

_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
#: The field manager of everything that is written without server-side apply. Without a name the
#: API server takes that of the HTTP library.
FIELD_MANAGER = "tidemark-operator"
_AS_OPERATOR = {"fieldManager": FIELD_MANAGER}


class KubeApi:
    """One connection pool to the API server; belongs to the event loop that opened it."""

    def __init__(self, client: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self.own = OwnObjects()

    @classmethod
    async def open(cls, access: KubernetesAccess, timeout_s: float = REQUEST_TIMEOUT_S) -> Self:
        """Open a client with its own connections."""
        client = ApiClient(await access.configuration())
        with_common_rules(client.rest_client.ssl_context)
        return cls(client, timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------ reading

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Return one object, read from the API server's store, not from a cache."""
        return await self._call("GET", kind.path(namespace, name))

    async def list_all(
        self,
        kind: Kind,
        namespace: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        name: str = "",
    ) -> ObjectList:
        """List all objects of a kind in a namespace, as of one resourceVersion.

        With ``name``, return only that object; this works for accounts that may list but not get.
        """
        # All pages are of one version, so the last one's is that of the whole list.
        objects = ObjectList(resource_version=0)
        selectors = {
            "labelSelector": label_selector,
            "fieldSelector": f"metadata.name={name}" if name else field_selector,
        }
        async for page in self.pages(kind, namespace, selectors=selectors):
            objects.extend(page)
            objects.resource_version = page.resource_version
        return objects

    async def pages(
        self, kind: Kind, namespace: str, *, selectors: Mapping[str, str] | None = None
    ) -> AsyncGenerator[ObjectList, None]:
        """List objects of a kind page by page, all as of one resourceVersion.

        Only one page is in memory at a time. At least one is yielded, even without objects. Raises
        ``Expired`` if the caller takes minutes between pages.
        """
        given = {name: text for name, text in (selectors or {}).items() if text}
        query = {"limit": str(LIST_CHUNK), **given}
        while True:
            page = await self._call(
                "GET", kind.path(namespace), query=query, timeout_s=LIST_TIMEOUT_S
            )
            items = page.get("items") or []
            # Items of a list carry neither apiVersion nor kind.
            for item in items:
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.kind)
            yield ObjectList(items, resource_version=resource_version(page))
            # The continue token keeps the later pages at the version of the first one.
            following = page["metadata"].get("continue")
            if not following:
                return
            query["continue"] = following

    async def watch(
        self, kind: Kind, namespace: str, version: int, *, silence_s: float
    ) -> AsyncGenerator[list[Json], None]:
        """Watch a kind: yield lists of events (``type``, ``object``) after ``version``.

        Ends when the server ends the watch. The first list is empty, and shows that the server has
        accepted the watch. Raises ``ApiServerUnavailable`` if nothing arrives for ``silence_s``,
        not even a bookmark.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(WATCH_S),
        }
        path = kind.path(namespace)
        call = f"watch of {path}"
        target = f"{path}?{urlencode(query)}"
        # The total bounds a server that never ends the watch; sock_read detects a silent one.
        timeout = aiohttp.ClientTimeout(
            WATCH_S + silence_s, connect=self._timeout_s, sock_read=silence_s
        )
        try:
            # Read the body as it arrives, because a watch has no end.
            response = await self._send("GET", target, None, _JSON, timeout)
            if response.status != 200:
                data = await response.read()
                raise error_of(response.status, data, response.headers.get("Retry-After"), call)
            try:
                yield []
                async for lines in split_lines(response.response.content.iter_any()):
                    yield [_object(line, call) for line in lines]
            finally:
                _hang_up(response.response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiServerUnavailable(0, f"{call}: {error_text(error)}") from error

    # ------------------------------------------------------------ writing

    async def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        """POST with the labels and annotations of all operator objects.

        Raises ``Conflict`` if the name is taken.
        """

        async def send(marked: Json) -> Json:
            return await self._call("POST", kind.path(namespace), query=_AS_OPERATOR, body=marked)

        return await self.own.write(kind, body, send)

    async def try_create(self, kind: Kind, namespace: str, body: Json) -> None:
        """Send a POST as a dry run: nothing is written, and a refusal is not reported."""
        query = {**_AS_OPERATOR, "dryRun": "All"}
        await self._call("POST", kind.path(namespace), query=query, body=body)

    async def replace(self, kind: Kind, body: Json) -> Json:
        """PUT one of the operator's own objects under its resourceVersion.

        It is marked like a new object, because an admission policy may be newer than the object.
        """
        meta = body["metadata"]
        path = kind.path(meta["namespace"], meta["name"])

        async def send(marked: Json) -> Json:
            return await self._call("PUT", path, query=_AS_OPERATOR, body=marked)

        return await self.own.write(kind, body, send)

    async def replace_status(self, kind: Kind, body: Json) -> Json:
        """PUT the status subresource, under the resourceVersion that ``body`` carries."""
        meta = body["metadata"]
        path = kind.path(meta["namespace"], meta["name"], "status")
        return await self._call("PUT", path, query=_AS_OPERATOR, body=body)

    async def apply(
        self, kind: Kind, body: Json, *, manager: str, force: bool = False, dry_run: bool = False
    ) -> Json:
        """Apply an object server-side with the field manager ``manager``; return the result.

        ``force`` takes over fields of other managers; ``dry_run`` writes nothing. An object without
        a uid may be created, so it gets the labels and annotations of all objects of the operator.
        """
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        meta = body["metadata"]
        path = kind.path(meta["namespace"], meta["name"])

        async def send(applied: Json) -> Json:
            return await self._call("PATCH", path, query=query, body=applied, content_type=_APPLY)

        # With a uid the object exists; its labels belong to other field managers.
        if "uid" in meta:
            return await send(body)
        return await self.own.write(kind, body, send, dry_run=dry_run)

    async def json_patch(self, kind: Kind, namespace: str, name: str, patch: list[Json]) -> Json:
        """Send an RFC 6902 patch; raises ``Invalid`` if a ``test`` operation fails."""
        path = kind.path(namespace, name)
        return await self._call(
            "PATCH", path, query=_AS_OPERATOR, body=patch, content_type=_JSON_PATCH
        )

    async def merge_patch(
        self, kind: Kind, namespace: str, name: str, body: Json, subresource: str = ""
    ) -> Json:
        """Send an RFC 7386 patch."""
        path = kind.path(namespace, name, subresource)
        return await self._call(
            "PATCH", path, query=_AS_OPERATOR, body=body, content_type=_MERGE_PATCH
        )

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", propagation: str = ""
    ) -> Json:
        """DELETE the object, only with this ``uid`` if given.

        ``propagation`` is Kubernetes' ``propagationPolicy``; by default that of the kind.
        """
        options: Json = {"preconditions": {"uid": uid}} if uid else {}
        if propagation:
            options["propagationPolicy"] = propagation
        return await self._call("DELETE", kind.path(namespace, name), body=options)

    # ------------------------------------------------------------ transport

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = _JSON,
        timeout_s: float | None = None,
    ) -> Json:
        """Send a request and return the object in the response. Raises :class:`KubeError`.

        After ``ApiServerUnavailable`` a write may have taken effect.
        """
        call = f"{method} {path}"
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            status, headers, data = await self._request(
                method, target, body, content_type, timeout_s or self._timeout_s
            )
        # Without an answer a write may have taken effect: the caller has to read.
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiServerUnavailable(0, f"{call}: no answer: {error_text(error)}") from error
        if not 200 <= status <= 299:
            raise error_of(status, data, headers.get("Retry-After"), call)
        return _object(data, call)

    async def _request(
        self, method: str, target: str, body: object, content_type: str, timeout_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        # One deadline for the whole exchange: aiohttp's own counts from its start of the request.
        async with asyncio.timeout(timeout_s):
            response = await self._send(
                method, target, body, content_type, aiohttp.ClientTimeout(timeout_s)
            )
            data = await response.read()
        return response.status, response.headers, data

    async def _send(
        self, method: str, target: str, body: object, content_type: str, timeout: Any
    ) -> Any:
        """Return the library's response with its body unread."""
        headers = {"Content-Type": content_type, "Accept": _JSON}
        _, url, headers, _, _ = await self._client.param_serialize(
            method, target, header_params=headers, auth_settings=["BearerToken"]
        )
        return await self._client.call_api(method, url, headers, body, _request_timeout=timeout)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Abort the connection: an endless response is not drained, and TLS is not closed in order."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _object(data: bytes, call: str) -> Json:
    try:
        parsed = json.loads(data)
    except ValueError as error:
        raise ApiServerUnavailable(0, f"{call}: the response is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise KubeError(0, f"{call}: the response is not an object")
    return parsed


#: Several times the largest object that an API server keeps (1.5 MiB in etcd).
LINE_MAX = 8 * 1024 * 1024


class LineTooLong(ValueError):
    """A line has more than ``LINE_MAX`` bytes."""


async def split_lines(pieces: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    """Split a stream of bytes into complete lines; yield those of each piece, without line feeds.

    Empty lines and an unfinished last line are left out. Raises ``LineTooLong``.
    """
    unfinished: list[bytes] = []
    unfinished_bytes = 0
    async for piece in pieces:
        *lines, rest = piece.split(b"\n")
        if lines:
            # The first line feed completes what earlier pieces began.
            lines[0] = b"".join([*unfinished, lines[0]])
            unfinished, unfinished_bytes = [], 0
        unfinished.append(rest)
        unfinished_bytes += len(rest)
        if unfinished_bytes > LINE_MAX or any(len(line) > LINE_MAX for line in lines):
            raise LineTooLong(f"a line exceeds {LINE_MAX} bytes")
        if found := [line for line in lines if line]:
            yield found
