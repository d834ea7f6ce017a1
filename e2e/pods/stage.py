"""What every chapter finds: an installation in a namespace, and the words to ask it something.

A chapter (:mod:`e2e.pods.chapters`) says what happens; here stands how it is brought about and how
long one waits for it, so that each waiting has the same patience and tells what it last saw.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.pods import objects
from e2e.pods.images import Image
from e2e.pods.kubernetes import Kubernetes, condition, not_ready, wait_for
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed, Progress
from e2e.pods.providers import Provider
from tests.helm import CHART, Helm

BOOTSTRAP = f"tidemark-bootstrap.{NAMESPACE}.svc:9092"
OPERATOR = "tidemark-operator"
OPERATORS = 2
BROKERS = 3
PARTITIONS = 2
RECORDS = 2000
CLIENT_PROGRAM = Path(__file__).with_name("client_program.py")
#: Of a machine that has other work, too.
READY_TIMEOUT_S = 240
HELM_TIMEOUT_S = READY_TIMEOUT_S + 60


@dataclass(slots=True, kw_only=True)
class Stage:
    """``reaches_pods``: whether this process does, as one on the node would.

    ``written``: how many records stand in each topic that a chapter has left. ``values``: the
    chart's, as the last ``helm`` had them, so that a chapter changes what it means and no more.
    """

    provider: Provider
    kubernetes: Kubernetes
    helm: Helm
    images: Mapping[str, Image]
    progress: Progress
    reaches_pods: bool
    written: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=lambda: objects.values(BROKERS))

    # ------------------------------------------------------------ the release

    def install(self, verb: str = "upgrade") -> None:
        """``helm install`` or ``upgrade`` with :attr:`values`. Raises HelmRefused."""
        options = ("--namespace", NAMESPACE, "--wait", "--timeout", f"{READY_TIMEOUT_S}s")
        self.helm.run(verb, "tidemark", str(CHART), *options, values=self.values)

    @property
    def brokers(self) -> int:
        """How many the release asks for."""
        return int(self.values["brokerPods"]["replicas"])

    def all_ready(self) -> None:
        """Operators, brokers, the Cluster. Raises Failed."""
        for number in range(OPERATORS):
            self.pod_ready(NAMESPACE, f"{OPERATOR}-{number}")
        for number in range(1, self.brokers + 1):
            self.pod_ready(NAMESPACE, f"broker-{number}-0")
            self.ready(f"brokers.tidemark.dev/broker-{number}")
        self.ready("clusters.tidemark.dev/tidemark")
        self.wait("brokers that are not fenced", self._brokers_complaint)

    def _brokers_complaint(self) -> str:
        body = self.kubernetes.get(NAMESPACE, "clusters.tidemark.dev", "tidemark")
        found = body.get("status", {}).get("brokers", {})
        return "" if found == {"registered": self.brokers, "fenced": 0} else str(found)

    def recovered(self) -> None:
        """All Ready and every replica of every topic in sync. Raises Failed."""
        self.all_ready()
        for topic in self.written:
            self.in_sync(topic)

    # ------------------------------------------------------------ topics and records

    def make_topic(self, name: str, **spec: Any) -> None:
        """A Topic of three replicas that is Ready. Raises Failed."""
        spec = {"partitions": PARTITIONS, "replicationFactor": 3, **spec}
        self.kubernetes.apply(objects.topic(name, **spec))
        self.ready(f"topics.tidemark.dev/{name}")
        self.written.setdefault(name, 0)

    def make_tiered_topic(self, name: str) -> None:
        """One whose records leave the brokers' disks a megabyte at a time. Raises Failed."""
        config = {"segment.bytes": "1048576", "retention.ms": "-1"}
        tiering = {"enabled": True, "localRetention": {"size": "1Mi"}}
        self.make_topic(name, config=config, tiering=tiering)

    def tier_complaint(self, topic: str) -> str:
        """Why it has not as many segments in the tier as partitions."""
        tiering = self.topic(topic).get("status", {}).get("tiering", {})
        return "" if tiering.get("remoteSegments", 0) >= PARTITIONS else str(tiering)

    def topic(self, name: str) -> dict[str, Any]:
        """The Topic as it is."""
        return self.kubernetes.get(NAMESPACE, "topics.tidemark.dev", name)

    def replicas(self, topic: str, placeholders: int) -> str:
        """Why the topic has not just so many placeholders and all else in sync."""
        body = self.topic(topic)
        found = body.get("status", {}).get("replicas", {})
        desired = PARTITIONS * 3
        in_sync = desired - placeholders
        wanted = {"desired": desired, "inSync": in_sync, "placeholders": placeholders}
        if all(found.get(name) == number for name, number in wanted.items()):
            return ""
        return f"{found}, {condition(body, 'FullyReplicated').get('message', '')}"

    def in_sync(self, topic: str) -> None:
        """Every replica is. Raises Failed."""
        self.wait(f"all replicas of {topic}", lambda: self.replicas(topic, 0))

    def produce(self, topic: str, count: int = RECORDS) -> None:
        """That many more records, numbered on, from the client's pod with acks=all."""
        first = self.written.setdefault(topic, 0)
        self._client("produce", topic, first, count)
        self.written[topic] = first + count

    def consume(self, topic: str) -> None:
        """Every record written so far, each once, in the client's pod. Raises CommandFailed."""
        self._client("consume", topic, 0, self.written[topic])

    def _client(self, what: str, topic: str, first: int, count: int) -> None:
        arguments = ("--", "python3", "-", what, BOOTSTRAP, topic, str(first), str(count))
        self.kubernetes.run(
            *("--namespace", NAMESPACE, "exec", "--stdin", "client", *arguments),
            stdin=CLIENT_PROGRAM.read_text("utf-8"),
            timeout_s=READY_TIMEOUT_S,
        )

    # ------------------------------------------------------------ pods

    def pod(self, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        """As it is."""
        return self.kubernetes.get(namespace, "pod", name)

    def container(self, pod: str) -> dict[str, Any]:
        """The status of a pod's one container."""
        (status,) = self.pod(pod)["status"]["containerStatuses"]
        assert isinstance(status, dict)
        return status

    def kill(self, pod: str) -> None:
        """``kill -9`` to the first process of a pod's container, which cannot say goodbye."""
        self.signal(pod, "SIGKILL")

    def signal(self, pod: str, name: str) -> None:
        """Send a signal to that process."""
        self.provider.signal(self.container(pod)["containerID"].rpartition("/")[2], name)

    def metric(self, pod: str, name: str) -> float:
        """The sum of a metric's samples without labels, as the pod answers now."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics"
        lines = self.kubernetes.run("get", "--raw", path).splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def restarted(self, pod: str, before: int) -> None:
        """Wait for another container than that of so many restarts. Raises Failed."""
        self.wait(
            f"another container of {pod}",
            lambda: (
                "" if self.container(pod)["restartCount"] > before else "it is not started again"
            ),
        )

    def leading_pod(self) -> str:
        """The operator's pod that holds the Lease. Raises Failed."""
        holder = self.leader()
        for number in range(OPERATORS):
            if holder.startswith(f"{OPERATOR}-{number}-"):
                return f"{OPERATOR}-{number}"
        raise Failed(f"the Lease names no pod of the operator: {holder!r}")

    def leader(self) -> str:
        """Who holds the operators' Lease; "" for nobody."""
        body = self.kubernetes.get(NAMESPACE, "lease", OPERATOR)
        return str(body["spec"].get("holderIdentity", ""))

    # ------------------------------------------------------------ waiting

    def pod_ready(self, namespace: str, name: str) -> None:
        """Raises Failed."""
        self.wait(f"pod {name}", lambda: not_ready(self.pod(name, namespace)))

    def ready(self, what: str) -> None:
        """An object with a condition Ready, such as ``topics.tidemark.dev/orders``."""
        self.wait(what, lambda: not_ready(self.kubernetes.get(NAMESPACE, what)))

    def wait(self, what: str, look: Callable[[], str], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until ``look`` has nothing to complain of. Raises Failed."""
        wait_for(what, look, timeout_s)
