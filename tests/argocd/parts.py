"""The parts of Argo CD that carry a repository over: Redis, the repository server, and the
application controller, with Argo CD's objects on a cluster of ours.

There is neither its API server nor its user interface. All of it ends with the context manager.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import yaml

from tests.argocd.program import ensure_argocd, find_redis, sources
from tidemark_devcluster.controlplane.process import ServerProcess
from tidemark_devcluster.controlplane.programs import find_programs
from tidemark_devcluster.ports import HOST, free_ports

NAMESPACE = "argocd"
STOP_S = 20.0
CALL_S = 60
_PART_OF = {"app.kubernetes.io/part-of": "argocd"}
#: What Argo CD's own manifests would make, without what it needs in a cluster alone.
_OBJECTS: tuple[dict[str, Any], ...] = (
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm"}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-rbac-cm"}},
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "argocd-secret"},
        "stringData": {"server.secretkey": "for tests"},
    },
    {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AppProject",
        "metadata": {"name": "default"},
        "spec": {
            "sourceRepos": ["*"],
            "destinations": [{"namespace": "*", "server": "*"}],
            "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
        },
    },
)


class Kubectl:
    """kubectl on a cluster."""

    def __init__(self, kubeconfig: Path) -> None:
        self._command = (*find_programs().kubectl, "--kubeconfig", str(kubeconfig))

    def __call__(self, *arguments: str, body: Mapping[str, Any] | None = None) -> str:
        """Its output; ``body`` goes in as JSON. Raises CalledProcessError, which says why."""
        return subprocess.run(
            [*self._command, *arguments],
            input="" if body is None else json.dumps(body),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            timeout=CALL_S,
        ).stdout

    def apply(self, namespace: str, body: Mapping[str, Any]) -> None:
        """As ``kubectl apply --server-side`` does."""
        self("apply", "--server-side", "--namespace", namespace, "-f", "-", body=body)

    def get(self, namespace: str, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("get", kind, name, "-n", namespace, "-o", "json"))
        return found


class ArgoCd:
    """Running Argo CD in a folder of its own.

    ``config_map`` is applied as docs/how-to/argocd.md describes.
    """

    def __init__(self, kubeconfig: Path, folder: Path, config_map: Path) -> None:
        self.kubectl = Kubectl(kubeconfig)
        self._kubeconfig, self._folder, self._config_map = kubeconfig, folder, config_map
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._install()
        (self._folder / ".kube").mkdir()
        (self._folder / ".kube" / "config").symlink_to(self._kubeconfig)
        redis, repository, others = free_ports(3), free_ports(2), free_ports(1)
        self._spawn(
            "redis",
            [str(find_redis()), "--bind", HOST, "--port", str(redis[0]), "--save", ""],
        )
        # Three programs of one binary: Redis is their cache, the repo server renders, the
        # controller syncs.
        shared = ["--redis", f"{HOST}:{redis[0]}", "--loglevel", "info"]
        self._spawn(
            "repo-server",
            [
                *(str(ensure_argocd()), "--disable-tls", *shared),
                *("--address", HOST, "--port", str(repository[0])),
                *("--metrics-address", HOST, "--metrics-port", str(repository[1])),
                *("--revision-cache-expiration", "1s"),
            ],
        )
        self._spawn(
            "application-controller",
            [
                *(str(ensure_argocd()), "--kubeconfig", str(self._kubeconfig)),
                *("--namespace", NAMESPACE, *shared),
                *("--repo-server", f"{HOST}:{repository[0]}", "--repo-server-plaintext"),
                *("--metrics-port", str(others[0])),
                # Short intervals, so that a commit is seen within seconds.
                *("--app-resync", "5", "--app-resync-jitter", "0"),
                *("--self-heal-timeout-seconds", "1", "--persist-resource-health"),
            ],
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _install(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.kubectl.apply(NAMESPACE, namespace)
        definitions = sorted((sources() / "manifests" / "crds").glob("*-crd.yaml"))
        for path in definitions:
            self.kubectl("apply", "--server-side", "-f", str(path))
        names = [
            f"crd/{yaml.safe_load(path.read_text())['metadata']['name']}" for path in definitions
        ]
        self.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
        for body in _OBJECTS:
            body["metadata"]["labels"] = _PART_OF
            self.kubectl.apply(NAMESPACE, body)
        self.kubectl("apply", "--server-side", "-n", NAMESPACE, "-f", str(self._config_map))

    def _spawn(self, name: str, command: list[str]) -> None:
        environ = {
            **os.environ,
            "ARGOCD_BINARY_NAME": f"argocd-{name}",
            "ARGOCD_GPG_ENABLED": "false",
            # https://kubernetes.default.svc is the server of ~/.kube/config.
            "ARGOCD_FAKE_IN_CLUSTER": "true",
            "HOME": str(self._folder),
            "TMPDIR": str(self._folder),
        }
        process = ServerProcess.spawn(
            name,
            [sys.executable, "-m", "tidemark_devcluster.controlplane.supervisor", *command],
            errors=self.log(name),
            detached=False,
            environ=environ,
        )
        self._stack.callback(process.stop, timeout_s=STOP_S)

    def log(self, name: str) -> Path:
        """Return the log of a part."""
        return self._folder / "logs" / f"{name}.log"

    # ------------------------------------------------------------ offline

    @staticmethod
    def overrides(config_map: Path, *arguments: str | Path) -> str:
        """Return the output of ``argocd admin settings resource-overrides``, which needs no
        server.
        """
        done = subprocess.run(
            [
                *(str(ensure_argocd()), "admin", "settings", "resource-overrides"),
                *(str(argument) for argument in arguments),
                *("--argocd-cm-path", str(config_map)),
            ],
            env={**os.environ, "ARGOCD_BINARY_NAME": "argocd", "KUBECONFIG": os.devnull},
            stdout=subprocess.PIPE,
            check=False,
            text=True,
            timeout=CALL_S,
        )
        return done.stdout
