"""kubectl on one API server, with JSON in and out.

Each run costs a fifth of a CPU second, so one call requests or creates many objects.
"""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark_devcluster.controlplane.programs import run_kubectl

_numbers = itertools.count(1)
#: As `kubectl label namespace` sets it: https://kubernetes.io/docs/concepts/security/pod-security-admission/
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class KubectlRefused(RuntimeError):
    """kubectl failed; the text is its error output."""


@dataclass(frozen=True, slots=True)
class KubectlClient:
    kubeconfig: Path

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Return kubectl's standard output; raises :class:`KubectlRefused`."""
        done = run_kubectl(arguments, kubeconfig=self.kubeconfig, stdin=stdin)
        if done.returncode != 0:
            raise KubectlRefused(done.stderr)
        return done.stdout

    def get(self, namespace: str, what: str) -> dict[str, Any]:
        """Return one object (``kind/name``)."""
        found: dict[str, Any] = json.loads(self.run("-n", namespace, "get", what, "-o", "json"))
        return found

    def all(self, namespace: str, *what: str) -> list[dict[str, Any]]:
        """Return the objects of a kind, or the named ones, all of which must exist."""
        found = json.loads(self.run("-n", namespace, "get", *what, "-o", "json"))
        return list(found["items"]) if found["kind"] == "List" else [found]

    def names(self, namespace: str, kind: str) -> list[str]:
        """Return the names of all objects of a kind, ``kind.group/name``."""
        return self.run("-n", namespace, "get", kind, "-o", "name").split()

    def create(self, body: dict[str, Any], *options: str) -> None:
        self.run("create", "-f", "-", *options, stdin=json.dumps(body))

    def create_all(self, bodies: list[dict[str, Any]], *options: str) -> None:
        """Create objects; a refused one does not stop the others."""
        self.create({"apiVersion": "v1", "kind": "List", "items": bodies}, *options)

    def namespace(self) -> str:
        """Create a namespace that admits only pods of the `restricted` standard."""
        name = f"chart-{next(_numbers)}"
        made = {"name": name, "labels": RESTRICTED}
        # No controller manager runs here, so the default account has to be created.
        account = {"name": "default", "namespace": name}
        self.create_all(
            [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": made},
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
            ]
        )
        return name
