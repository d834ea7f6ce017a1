"""Operations on a Kubernetes cluster: changes by kubectl, and waits that fail with a reason."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.pods.api import Api
from e2e.pods.commands import CommandFailed, run
from e2e.pods.progress import Failed

POLL_S = 0.2


@dataclass(slots=True)
class Kubernetes:
    """A cluster with a kubeconfig, which need not be there yet. ``program``: kubectl's first
    words."""

    program: Sequence[str]
    kubeconfig: Path
    _api: Api | None = field(default=None, init=False)

    @property
    def api(self) -> Api:
        """For what is only looked at."""
        if self._api is None:
            self._api = Api(self.kubeconfig)
        return self._api

    def command(self, *arguments: str) -> list[str]:
        """The words of a kubectl command."""
        return [*self.program, "--kubeconfig", str(self.kubeconfig), *arguments]

    def run(self, *arguments: str, stdin: str = "", timeout_s: float = 120) -> str:
        """kubectl's output. Raises CommandFailed."""
        return run(self.command(*arguments), stdin=stdin, timeout_s=timeout_s)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make or change objects."""
        body = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run("apply", "--filename", "-", stdin=json.dumps(body))

    def get(self, namespace: str, kind: str, name: str = "") -> dict[str, Any]:
        """One object, named by itself or as ``KIND/NAME``. Raises CommandFailed."""
        if not name:
            kind, _, name = kind.partition("/")
        return self.api.object(namespace, kind, name)

    def all(self, namespace: str, *kinds: str) -> list[dict[str, Any]]:
        """Return all objects of the given kinds.

        Raises CommandFailed.
        """
        return [body for kind in kinds for body in self.api.objects(namespace, kind)]

    def log(self, namespace: str, pod: str, since_s: int = 0) -> str:
        """Return the log of a pod's only container, or its last ``since_s`` seconds.

        Raises CommandFailed.
        """
        query = f"?sinceSeconds={since_s}" if since_s else ""
        return self.api.raw(f"/api/v1/namespaces/{namespace}/pods/{pod}/log{query}")

    def names(self, namespace: str, kind: str) -> list[str]:
        """The objects of a kind."""
        return [body["metadata"]["name"] for body in self.all(namespace, kind)]


def wait_for(what: str, look: Callable[[], str], timeout_s: float) -> None:
    """Until ``look`` has nothing to complain of. Raises :class:`Failed` with its last complaint."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        # A command that fails is a complaint as well: the API server may be restarting.
        try:
            complaint = look()
        except CommandFailed as error:
            complaint = str(error)
        if not complaint:
            return
        if time.monotonic() > deadline_s:
            raise Failed(f"{what}: not within {timeout_s:g} s: {complaint}")
        time.sleep(POLL_S)


def condition(body: dict[str, Any], kind: str) -> dict[str, str]:
    """A condition of an object's status; empty where it has none."""
    found = [c for c in body.get("status", {}).get("conditions", []) if c["type"] == kind]
    return found[0] if found else {}


def not_ready(body: dict[str, Any]) -> str:
    """Why an object with a condition Ready is not; "" where it is."""
    ready = condition(body, "Ready")
    if ready.get("status") == "True":
        return ""
    why = f"{ready.get('reason', 'no condition Ready')} {ready.get('message', '')}"
    return f"{body['kind']} {body['metadata']['name']}: {why}"
