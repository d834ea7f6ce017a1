"""Read-only requests to the API server over persistent connections.

A run polls thousands of times, and starting kubectl for each poll costs more than the request
itself. Changes are made with kubectl, as a person makes them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kubernetes import config
from urllib3.exceptions import HTTPError

from e2e.pods.commands import CommandFailed

TIMEOUT_S = 60
JSON = "application/json"
#: All resources of all groups in one answer (https://kubernetes.io/docs/concepts/overview/kubernetes-api/#aggregated-discovery).
DISCOVERY = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
GROUPS = ("/api", "/apis")


class Resource(NamedTuple):
    """``root``: the path of its group and version."""

    root: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of one object, or of all objects in a namespace."""
        where = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{self.root}{where}/{self.plural}{f'/{name}' if name else ''}"


def resources(group_root: str, body: dict[str, Any]) -> Iterator[tuple[str, Resource]]:
    """Map each name that kubectl accepts (plural, singular, plural with group) to its resource.

    Uses the version that the server prefers. ``group_root``: one of :data:`GROUPS`.
    """
    for group in body["items"]:
        name = group["metadata"].get("name", "")
        # The first version is the one that the server prefers.
        version = group["versions"][0]
        root = "/".join(part for part in (group_root, name, version["version"]) if part)
        for resource in version.get("resources", ()):
            plural = resource["resource"]
            found = Resource(root, plural, resource["scope"] == "Namespaced")
            for word in (plural, resource.get("singularResource", ""), f"{plural}.{name}"):
                if word:
                    yield word, found


class Api:
    """The API server of a kubeconfig. Raises CommandFailed where it refuses or does not answer."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client: Any = config.new_client_from_config(  # type: ignore[no-untyped-call]
            str(kubeconfig)
        )
        self._known: dict[str, Resource] = {}

    def raw(self, path: str, accept: str = JSON) -> str:
        """The answer to one GET."""
        path, _, query = path.partition("?")
        method, url, *request = self._client.param_serialize(
            "GET", path, header_params={"Accept": accept}, auth_settings=["BearerToken"]
        )
        url = f"{url}?{query}" if query else url
        try:
            answer = self._client.call_api(method, url, *request, _request_timeout=TIMEOUT_S)
            answer.read()
        except (HTTPError, OSError) as error:
            raise CommandFailed(f"GET {path}: {error}") from error
        text = str(answer.data, "utf-8", "replace")
        if answer.status >= 400:
            raise CommandFailed(f"GET {path}: {answer.status}: {_message(text)}")
        return text

    def object(self, namespace: str, kind: str, name: str) -> dict[str, Any]:
        """One object; ``kind`` as kubectl takes it."""
        return self._json(self._resource(kind).path(namespace, name))

    def objects(self, namespace: str, kind: str) -> list[dict[str, Any]]:
        """All of a kind in a namespace, each with its kind, which a list says once."""
        body = self._json(self._resource(kind).path(namespace))
        of_each = {"kind": body["kind"].removesuffix("List"), "apiVersion": body["apiVersion"]}
        return [of_each | item for item in body["items"]]

    def _resource(self, kind: str) -> Resource:
        if kind not in self._known:
            self._known = {}
            for root in GROUPS:
                for word, found in resources(root, self._json(root, DISCOVERY)):
                    self._known.setdefault(word, found)
        if kind not in self._known:
            raise CommandFailed(f"the API server knows no {kind}")
        return self._known[kind]

    def _json(self, path: str, accept: str = JSON) -> dict[str, Any]:
        body = json.loads(self.raw(path, accept))
        assert isinstance(body, dict)
        return body


def _message(text: str) -> str:
    """Return the message of a Status. A proxied pod may return any text."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text
