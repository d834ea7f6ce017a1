"""Minimal Kubernetes client of the command line.

Objects are applied server-side under its own field manager, like ``kubectl apply --server-side``. A
second ``up`` changes nothing that is already right.
"""

import contextlib
import datetime as dt
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from tidemark_kube.kubeconfig import KubeconfigError, load_context
from tidemark_kube.transport import CALL_TIMEOUT_S, ApiRequest, UnreachableError, connect
from tidemark_operator.resources.names import GROUP, OFFERED_ANNOTATION, PLURALS, VERSION

FIELD_MANAGER = "tidemark-cli"
#: Name of the operator's Lease, unless the operator was started with another ``--lease-name``.
LEASE_NAME = "tidemark-operator"
#: Objects per page of a list.
PAGE = 500
#: HTTP status for a resource version that the API server has already compacted.
GONE = 410
#: HTTP status for a write to an object that has changed since it was read.
CONFLICT = 409


class KubeRequestError(RuntimeError):
    """Failed call, with the HTTP status and message of the API server.

    The status is 0 if the server is unreachable.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ListPage(NamedTuple):
    """Part of a list's objects, and the resource version of the whole list."""

    objects: list[dict[str, Any]]
    resource_version: str


class Changes(NamedTuple):
    """Changes since a resource version, oldest first, and the version to continue from.

    Each event is ``ADDED``, ``MODIFIED`` or ``DELETED``, with the object.
    """

    events: list[tuple[str, dict[str, Any]]]
    resource_version: str


def namespace_of(kubeconfig: Path, context: str = "") -> str:
    """Return the namespace of a kubeconfig's context; the current one by default.

    Raises ValueError if the file has no such context.
    """
    return load_context(str(kubeconfig), context).namespace


class KubeClient:
    """Synchronous client for one namespace, with a timeout of ten seconds per call.

    Raises :class:`KubeRequestError`.
    """

    def __init__(self, kubeconfig: Path, namespace: str, context: str = "") -> None:
        """Load a kubeconfig; ``context`` "" is its current context."""
        self.namespace = namespace
        # Time of the API server's latest answer, and that of the monotonic clock.
        self._clock: tuple[dt.datetime, float] | None = None
        try:
            self._transport = connect(str(kubeconfig), context)
        except KubeconfigError as error:
            raise KubeRequestError(0, str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connections to the API server."""
        self._transport.close()

    def now(self) -> dt.datetime:
        """Return the API server's time, or this machine's before the first answer.

        The times in objects are those of the control plane, from which this machine's may differ.
        """
        if self._clock is None:
            return dt.datetime.now(dt.UTC)
        answered, monotonic_s = self._clock
        return answered + dt.timedelta(seconds=time.monotonic() - monotonic_s)

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """Return all objects of one of our kinds in the namespace, by name."""
        objects = [body for page in self.pages(kind) for body in page.objects]
        return sorted(objects, key=lambda item: str(item["metadata"]["name"]))

    def pages(self, kind: str, limit: int = PAGE) -> Iterator[ListPage]:
        """Yield the objects of a kind, ``limit`` at a time, as one consistent snapshot."""
        query = [("limit", str(limit))]
        while query:
            answer = self.read_json(self._path(kind), query)
            metadata = answer["metadata"]
            yield ListPage(answer["items"], str(metadata["resourceVersion"]))
            token = metadata.get("continue")
            query = [("limit", str(limit)), ("continue", token)] if token else []

    def changes(self, kind: str, resource_version: str, wait_s: int) -> Changes:
        """Return the changes of a kind since a resource version, from one watch request.

        The watch ends after ``wait_s`` seconds. Raises KubeRequestError with status :data:`GONE` if
        the version is too old; the caller must list again.
        """
        query = [
            ("watch", "1"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(wait_s)),
            ("allowWatchBookmarks", "true"),
        ]
        events = []
        watch = ApiRequest("GET", self._path(kind), query, timeout_s=wait_s + CALL_TIMEOUT_S)
        for line in self._send(watch).splitlines():
            event = json.loads(line)
            body = event["object"]
            if event["type"] == "ERROR":
                raise KubeRequestError(int(body.get("code", 0)), str(body.get("message")))
            # Bookmarks carry no object, but their version keeps a quiet watch from becoming too
            # old.
            resource_version = str(body["metadata"]["resourceVersion"])
            if event["type"] != "BOOKMARK":
                events.append((str(event["type"]), body))
        return Changes(events, resource_version)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return one object, or None if it does not exist."""
        return self._found(self._path(kind, name))

    def apply(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Apply an object of one of our kinds server-side; return the resulting object."""
        metadata: dict[str, Any] = {"name": name, "namespace": self.namespace}
        if annotations:
            metadata["annotations"] = dict(annotations)
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": kind,
            "metadata": metadata,
            "spec": dict(spec),
        }
        return self._apply(self._path(kind, name), body)

    def delete(self, kind: str, name: str) -> None:
        """Request deletion; a missing object is no error."""
        try:
            self._send(ApiRequest("DELETE", self._path(kind, name)))
        except KubeRequestError as error:
            if error.status != 404:
                raise

    def apply_crd(self, crd: Mapping[str, Any]) -> None:
        """Install or update a CustomResourceDefinition."""
        name = crd["metadata"]["name"]
        self._apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", crd)

    def await_served(self, kind: str, timeout_s: float = 30.0) -> None:
        """Wait until the API server serves one of our kinds, so that its objects can be listed.

        A new definition, or an API server that has just started, answers 404 or 429 for a moment.
        Raises KubeRequestError after ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.read_json(self._path(kind), [("limit", "1")])
            except KubeRequestError as error:
                if error.status not in {404, 429} or time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(0.05)

    def apply_secret(self, name: str, data: Mapping[str, str]) -> None:
        """Create or update a Secret of plain strings that the Cluster may use."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "annotations": {OFFERED_ANNOTATION: "Cluster"},
            },
            "stringData": dict(data),
        }
        self._apply(f"/api/v1/namespaces/{self.namespace}/secrets/{name}", body)

    def events(self) -> list[dict[str, Any]]:
        """Return the namespace's Events, oldest first."""
        items = self.read_json(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return sorted(items, key=lambda e: str(e["metadata"]["creationTimestamp"]))

    def lease(self, name: str) -> dict[str, Any] | None:
        """Return a Lease of the namespace, or None if it does not exist."""
        return self._found(self._lease_path(name))

    def free_lease(self, name: str) -> None:
        """Remove the holder of a Lease, so that the next operator leads without waiting.

        Only for a holder that has ended: a live one stops leading.
        """
        lease = self.lease(name)
        if lease is None or not (lease.get("spec") or {}).get("holderIdentity"):
            return
        # The version makes the write fail if another operator has taken the Lease meanwhile.
        version = lease["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}}
        try:
            self.merge_patch(self._lease_path(name), body)
        except KubeRequestError as error:
            if error.status != CONFLICT:
                raise

    def merge_patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Change the fields of the object at a path that ``body`` has (JSON Merge Patch)."""
        content_type = "application/merge-patch+json"
        self._send(ApiRequest("PATCH", path, body=body, content_type=content_type))

    def read_json(self, path: str, query: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """Return the JSON object at a path of the API server."""
        value: dict[str, Any] = json.loads(self._send(ApiRequest("GET", path, query)))
        return value

    def read_text(self, path: str, query: Sequence[tuple[str, str]] = ()) -> str:
        """Return the text at a path, such as a pod's log."""
        return self._send(ApiRequest("GET", path, query)).decode(errors="replace")

    def _path(self, kind: str, name: str = "") -> str:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURALS[kind]}"
        return f"{path}/{name}" if name else path

    def _lease_path(self, name: str) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{name}"

    def _found(self, path: str) -> dict[str, Any] | None:
        """Return the object at a path, or None if it does not exist."""
        try:
            return self.read_json(path)
        except KubeRequestError as error:
            if error.status == 404:
                return None
            raise

    def _apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        content_type = "application/apply-patch+yaml"
        answer = self._send(ApiRequest("PATCH", path, query, body, content_type))
        applied: dict[str, Any] = json.loads(answer)
        return applied

    def _send(self, request: ApiRequest) -> bytes:
        """Send one HTTP request and return the response's body.

        Raises :class:`KubeRequestError` for a refusal, and with status 0 without a response.
        """
        try:
            answer = self._transport.send(request)
        except UnreachableError as error:
            raise KubeRequestError(
                0, f"the API server {self._transport.server} is unreachable: {error}"
            ) from error
        # The header of a watch is as old as the watch.
        if request.timeout_s == CALL_TIMEOUT_S:
            self._set_clock(answer.date)
        # The API server explains refusals in a Status object. Redirections are not followed.
        if answer.status >= 300:
            raise KubeRequestError(answer.status, _message_of(answer.data))
        return answer.data

    def _set_clock(self, date: str) -> None:
        # A proxy may send an answer without a date, or with one that is none.
        with contextlib.suppress(ValueError):
            # HTTP dates are always GMT.
            at = parsedate_to_datetime(date).replace(tzinfo=dt.UTC)
            self._clock = at, time.monotonic()


def _message_of(body: bytes) -> str:
    """Return the message of an error response: of a Status object, or occasionally plain text."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or "no message"
