"""The two providers of a Kubernetes cluster, and the choice between them.

``kind`` is for people with Docker. ``node`` needs no Docker and no image registry: it runs a
control plane and a kubelet that this project builds, on Debian's containerd, in namespaces that end
with the run. The tests are the same on both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.pods.unsupported_machine import CannotRun, NotHere

KINDS = ("kind", "node")


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of the machine that determine the choice.

    ``programs``: relevant programs in the PATH.
    """

    system: str
    root: bool
    debian: bool
    programs: frozenset[str]
    docker_answers: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A provider, and why it was taken."""

    provider: str
    why: str


def choose(wanted: str, machine: Machine) -> Choice:
    """The provider for ``wanted`` ("" for any); pure. Raises :class:`CannotRun` for another word,
    :class:`NotHere` where the machine lacks what it needs."""
    # Both reasons are determined, so that the message can name both.
    why_not = {"kind": _why_not_kind(machine), "node": _why_not_node(machine)}
    if wanted:
        if wanted not in why_not:
            raise CannotRun(f"PROVIDER={wanted}: it is one of {', '.join(KINDS)}")
        if why_not[wanted]:
            raise NotHere(f"PROVIDER={wanted}: {why_not[wanted]}")
        return Choice(wanted, "requested")
    if not why_not["kind"]:
        return Choice("kind", "kind is installed and Docker answers")
    if not why_not["node"]:
        return Choice("node", f"root on Debian; no kind, for {why_not['kind']}")
    raise NotHere(
        f"no provider can be had here.\n  kind: {why_not['kind']}\n  node: {why_not['node']}"
    )


def _why_not_kind(machine: Machine) -> str:
    missing = [name for name in ("kind", "docker") if name not in machine.programs]
    if missing:
        return f"{' and '.join(missing)} must be installed"
    return "" if machine.docker_answers else "Docker does not answer (`docker info`)"


def _why_not_node(machine: Machine) -> str:
    if machine.system != "linux":
        return "it needs Linux"
    if not machine.root:
        return "it needs root, for namespaces, mounts and cgroups (sudo make e2e)"
    return "" if machine.debian else "it takes containerd, runc and more from Debian's packages"


class Provider(Protocol):
    """A Kubernetes cluster of one node that runs."""

    @property
    def kubeconfig(self) -> Path:
        """Return an administrator's kubeconfig."""

    def load(self, archives: Mapping[str, Path]) -> None:
        """Give the node the images: docker archives by name."""

    def tag(self, image: str, other: str) -> None:
        """Give an image that the node has a second name."""

    def signal(self, container_id: str, name: str) -> None:
        """A signal (SIGKILL, SIGSTOP, ...) to the first process of a container."""

    def way_in(self) -> str:
        """The command, for who runs this, that begins with kubectl on this cluster."""

    def logs(self) -> Sequence[Path]:
        """Return the logs of the node's own programs."""
