"""What a run asks a Kubernetes cluster: kubectl, and waiting with a reason when time is up."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.pods.commands import CommandFailed, run
from e2e.pods.progress import Failed

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """kubectl with a kubeconfig. ``program``: its first words."""

    program: Sequence[str]
    kubeconfig: Path

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

    def get(self, namespace: str, *what: str) -> dict[str, Any]:
        """One object, or a list of them."""
        text = self.run("--namespace", namespace, "get", *what, "--output", "json")
        body = json.loads(text)
        assert isinstance(body, dict)
        return body

    def names(self, namespace: str, kind: str) -> list[str]:
        """The objects of a kind."""
        return [body["metadata"]["name"] for body in self.get(namespace, kind)["items"]]


def wait_for(what: str, look: Callable[[], str], timeout_s: float) -> None:
    """Until ``look`` has nothing to complain of. Raises :class:`Failed` with its last complaint."""
    deadline_s = time.monotonic() + timeout_s
    while True:
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
