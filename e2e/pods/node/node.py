"""The node itself: its programs started in order, and what tests ask of it.

Everything here runs inside the namespaces of :mod:`e2e.pods.node.sandbox`.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.pods import archives
from e2e.pods.commands import run
from e2e.pods.kubernetes import Kubernetes, not_ready, wait_for
from e2e.pods.node import configs
from e2e.pods.node.addresses import NODE_NAME
from e2e.pods.node.credentials import write_credentials
from e2e.pods.node.debian import PATH
from e2e.pods.node.layout import CONTAINERD_SOCKET, Layout
from e2e.pods.progress import Failed

READY_TIMEOUT_S = 240
IMPORT_TIMEOUT_S = 300
VOLUMES = 7
LAST_LINES = 15


@dataclass(slots=True)
class Node:
    """``program``: the binary of every part of Kubernetes; ``policies``: what enforces
    NetworkPolicies; ``kubernetes``: the administrator."""

    layout: Layout
    program: Path
    pause: Path
    policies: Path
    kubernetes: Kubernetes
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        return self.kubernetes.kubeconfig

    def start(self) -> None:
        """Until the node is Ready. Raises Failed with the end of a log."""
        # The programs' files, then their credentials.
        for name, text in configs.files(self.layout).items():
            path = self.layout.config(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for name in ("volume-plugins", "pod-logs", "opt", "addresses"):
            self.layout.data(name).mkdir(parents=True, exist_ok=True)
        write_credentials(self.layout)
        # containerd, etcd and the API server first: the others give up without them.
        self._start("containerd", ["containerd", "--config", str(self.layout.containerd_config)])
        for name, arguments in configs.api_server(self.layout).items():
            self._start(name, [str(self.program), name, *arguments])
        self._wait("the API server", self._api_complaint)
        self._wait("containerd", lambda: "" if CONTAINERD_SOCKET.exists() else "no socket")
        # The pause image is made here, as no registry can be reached.
        archive = archives.of_program(
            self.layout.data("pause.tar"), configs.PAUSE_IMAGE, self.pause
        )
        self.load({configs.PAUSE_IMAGE: archive})
        for name, arguments in configs.others(self.layout).items():
            self._start(name, [str(self.program), name, *arguments])
        self._start("policies", [str(self.policies), *configs.policies(self.layout)])
        # Ready includes the pod network and the runtime.
        self._wait("the node", lambda: not_ready(self.kubernetes.get("", "node", NODE_NAME)))
        self._make_volumes()

    def load(self, archives: Mapping[str, Path]) -> None:
        for path in archives.values():
            run([*self._ctr(), "images", "import", path], timeout_s=IMPORT_TIMEOUT_S)

    def tag(self, image: str, other: str) -> None:
        run([*self._ctr(), "images", "tag", "--force", image, other])

    def signal(self, container_id: str, name: str) -> None:
        run([*self._ctr(), "tasks", "kill", "--signal", name, container_id])

    def way_in(self) -> str:
        """Command that enters the namespaces of this side's containerd.

        It selects the oldest match, because a shell in which a person types the same words also
        matches.
        """
        kubectl = " ".join(self.kubernetes.program)
        words = f"containerd --config {self.layout.containerd_config}"
        enter = f"nsenter --mount --net --target $(pgrep --oldest --full '{words}')"
        return f"{enter} {kubectl} --kubeconfig {self.kubeconfig}"

    def logs(self) -> Sequence[Path]:
        return sorted(self.layout.logs.glob("*.log"))

    # ------------------------------------------------------------ parts

    @staticmethod
    def _ctr() -> list[str]:
        return ["ctr", "--address", str(CONTAINERD_SOCKET), "--namespace", "k8s.io"]

    def _start(self, name: str, command: list[str]) -> None:
        with (self.layout.logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": PATH},
            )

    def _wait(self, what: str, look: Callable[[], str]) -> None:
        # A program that has ended will never be ready, so its log is shown at once.
        def complaint() -> str:
            for name, process in self._running.items():
                if process.poll() is not None:
                    lines = (self.layout.logs / f"{name}.log").read_text("utf-8", "replace")
                    end = "\n".join(lines.splitlines()[-LAST_LINES:])
                    raise Failed(f"{name} ended with status {process.returncode}:\n{end}")
            return look()

        wait_for(what, complaint, READY_TIMEOUT_S)

    def _api_complaint(self) -> str:
        said = self.kubernetes.api.raw("/readyz")
        return "" if said == "ok" else said

    def _make_volumes(self) -> None:
        """Folders of the run, as local volumes of a default class: what a claim finds."""
        storage = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "local",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        self.kubernetes.apply(storage, *(self._volume(number) for number in range(VOLUMES)))

    def _volume(self, number: int) -> dict[str, object]:
        folder = self.layout.data("volumes") / str(number)
        folder.mkdir(parents=True)
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"local-{number}"},
            "spec": {
                "capacity": {"storage": "100Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local",
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": str(folder)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        }
