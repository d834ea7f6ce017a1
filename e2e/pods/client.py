"""Requests to the Kafka client in its pod, whose program is :mod:`e2e.pods.client_program`."""

import json
from dataclasses import dataclass
from pathlib import Path

from e2e.pods.kubernetes import Kubernetes
from e2e.pods.objects import NAMESPACE

BOOTSTRAP = f"tidemark-bootstrap.{NAMESPACE}.svc:9092"
PROGRAM = Path(__file__).with_name("client_program.py")
#: By partition, offset -> the number that was written.
Records = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class Client:
    """The client's pod. All methods raise CommandFailed on failure or timeout."""

    kubernetes: Kubernetes
    timeout_s: float

    def run(self, what: str, *arguments: object) -> str:
        """Run the program and return its output."""
        words = ("--", "python3", "-", what, BOOTSTRAP, *map(str, arguments))
        return self.kubernetes.run(
            *("--namespace", NAMESPACE, "exec", "--stdin", "client", *words),
            stdin=PROGRAM.read_text("utf-8"),
            timeout_s=self.timeout_s,
        )

    def commit(self, topic: str, group: str) -> None:
        """The end of each partition, as the offset of a group."""
        self.run("commit", topic, group)

    def committed(self, topic: str, group: str) -> dict[str, int]:
        """Return the committed offsets of a group by partition."""
        return self._offsets("committed", topic, group)

    def begins(self, topic: str) -> dict[str, int]:
        """Return the first offset of each partition, as clients see it."""
        return self._offsets("begins", topic)

    def ends(self, topic: str) -> dict[str, int]:
        """Return the end offset of each partition, as clients see it."""
        return self._offsets("ends", topic)

    def records(self, topic: str) -> Records:
        """Every record that is there now. Raises CommandFailed."""
        told = json.loads(self.run("records", topic))
        return {
            part: {int(offset): number for offset, number in found} for part, found in told.items()
        }

    def _offsets(self, what: str, topic: str, *arguments: str) -> dict[str, int]:
        told = json.loads(self.run(what, topic, *arguments))
        assert isinstance(told, dict)
        return told
