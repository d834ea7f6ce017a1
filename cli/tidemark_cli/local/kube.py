"""The few calls that the command line makes to the Kubernetes API itself.

Objects are applied server-side under an own field manager, as ``kubectl apply --server-side``
would: a second ``up`` changes nothing that is right already.
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tidemark_operator.resources.names import GROUP, OFFERED_ANNOTATION, PLURALS, VERSION

FIELD_MANAGER = "tidemark-cli"
CALL_TIMEOUT_S = 10
#: Objects that one answer of a list brings.
PAGE = 500
#: The status of an answer to a resource version that the API server does not remember any more.
GONE = 410


class KubeError(RuntimeError):
    """The API server refused a call: its HTTP status and message; or it cannot be reached: 0."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Page(NamedTuple):
    """Some of the objects of a list, and the moment that the whole list is of."""

    objects: list[dict[str, Any]]
    resource_version: str


class Changes(NamedTuple):
    """What has become of objects since a moment, oldest first: (``ADDED``, ``MODIFIED`` or
    ``DELETED``, the object); and the moment to go on from."""

    events: list[tuple[str, dict[str, Any]]]
    resource_version: str


def namespace_of(kubeconfig: Path, context: str = "") -> str:
    """The namespace of a kubeconfig's current context, or of the one that is named. Raises
    ValueError for a file without one."""
    from kubernetes import config  # a third of a second, which commands without it do not pay

    try:
        every, active = config.list_kube_config_contexts(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig)
        )
    except config.ConfigException as error:
        raise ValueError(f"{kubeconfig} cannot be used: {error}") from error
    if context:
        active = next((each for each in every if each["name"] == context), None)
        if active is None:
            raise ValueError(f"{kubeconfig} has no context {context!r}")
    return str(active["context"].get("namespace") or "default")


class Kube:
    """A thin, synchronous client for one namespace. Times out after ten seconds a call. Raises
    :class:`KubeError`."""

    def __init__(self, kubeconfig: Path, namespace: str, context: str = "") -> None:
        """``context``: of the kubeconfig; unset: its current one."""
        from kubernetes import config

        self.namespace = namespace
        try:
            self._api: Any = config.new_client_from_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), context=context or None
            )
        except config.ConfigException as error:
            raise KubeError(0, f"{kubeconfig} cannot be used: {error}") from error

    def close(self) -> None:
        """Release the connections."""
        self._api.close()

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """All objects of one of our kinds in the namespace, by name."""
        found = [each for page in self.pages(kind) for each in page.objects]
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def pages(self, kind: str, limit: int = PAGE) -> Iterator[Page]:
        """The same, ``limit`` at a time, as they were at one moment."""
        query, rest = [("limit", str(limit))], ""
        while True:
            answer = self._call("GET", self._path(kind), query=[*query, *_continued(rest)])
            metadata = answer["metadata"]
            yield Page(answer["items"], str(metadata["resourceVersion"]))
            rest = metadata.get("continue", "")
            if not rest:
                return

    def changes(self, kind: str, resource_version: str, wait_s: int) -> Changes:
        """What has changed since a moment, by a watch that ends after ``wait_s``. Status
        :data:`GONE` where that is too long ago: list anew."""
        query = [
            ("watch", "1"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(wait_s)),
            ("allowWatchBookmarks", "true"),
        ]
        found = []
        timeout_s = wait_s + CALL_TIMEOUT_S
        for line in self._text(
            "GET", self._path(kind), query=query, timeout_s=timeout_s
        ).splitlines():
            event = json.loads(line)
            body = event["object"]
            if event["type"] == "ERROR":
                raise KubeError(int(body.get("code", 0)), str(body.get("message")))
            resource_version = str(body["metadata"]["resourceVersion"])
            if event["type"] != "BOOKMARK":
                found.append((str(event["type"]), body))
        return Changes(found, resource_version)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object, or None."""
        try:
            return self._call("GET", self._path(kind, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def apply(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Server-side apply of an object of one of our kinds."""
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
        """Ask for deletion; an object that is not there is fine."""
        try:
            self._call("DELETE", self._path(kind, name))
        except KubeError as error:
            if error.status != 404:
                raise

    def apply_crd(self, crd: Mapping[str, Any]) -> None:
        """Install or renew a CustomResourceDefinition."""
        name = crd["metadata"]["name"]
        self._apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", crd)

    def await_served(self, kind: str, timeout_s: float = 30.0) -> None:
        """Wait until objects of one of our kinds can be listed: a definition that was installed, or
        an API server that was started, just now answers 404 or 429 for a moment."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._call("GET", self._path(kind), query=[("limit", "1")])
            except KubeError as error:
                if error.status not in {404, 429} or time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(0.05)

    def apply_secret(self, name: str, data: Mapping[str, str]) -> None:
        """Create or renew a Secret of plain strings, which is offered to the Cluster."""
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
        """The namespace's Events, oldest first."""
        items = self._call("GET", f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return sorted(items, key=lambda e: str(e["metadata"]["creationTimestamp"]))

    def _path(self, kind: str, name: str = "") -> str:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURALS[kind]}"
        return f"{path}/{name}" if name else path

    def _apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        return self._call(
            "PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml"
        )

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        text = self._text(method, path, query=query, body=body, content_type=content_type)
        value: dict[str, Any] = json.loads(text)
        return value

    def _text(
        self,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> bytes:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        request = self._api.param_serialize(
            method,
            path,
            query_params=query or [],
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=dict(body) if body is not None else None,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(*request, _request_timeout=timeout_s)
            answer.read()
        except (HTTPError, ApiException, OSError) as error:
            host = self._api.configuration.host
            raise KubeError(0, f"the API server {host} does not answer: {_cause(error)}") from error
        if answer.status >= 400:
            raise KubeError(answer.status, _message_of(answer.data))
        data: bytes = answer.data
        return data


def _continued(rest: str) -> list[tuple[str, str]]:
    return [("continue", rest)] if rest else []


def _cause(error: BaseException) -> str:
    """The innermost: around it stand the libraries' words for how often they have tried."""
    while isinstance(getattr(error, "reason", None), BaseException):
        error = error.reason  # type: ignore[attr-defined]
    return str(error)


def _message_of(body: bytes) -> str:
    """What a refusal says: a Status object, or now and then plain text."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or "no message"
