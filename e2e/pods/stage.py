"""Installation in a namespace, and the operations on it that every chapter uses.

A chapter (:mod:`e2e.pods.chapters`) describes what happens. This module implements it and waits for
it, so that all waits have the same timeout and report the last state that they saw.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.pods import objects
from e2e.pods.client import Client
from e2e.pods.commands import CommandFailed
from e2e.pods.images import Image
from e2e.pods.kubernetes import Kubernetes, condition, not_ready, wait_for
from e2e.pods.load import Load, Outcome
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed, Progress
from e2e.pods.providers import Provider
from e2e.pods.watching import watched
from tests.helm import CHART, Helm

OPERATOR = "tidemark-operator"
OPERATORS = 2
TOPICS = "topics.tidemark.dev"
BROKERS = 3
PARTITIONS = 2
RECORDS = 2000
#: Three segments of each partition of a tiered topic (:func:`e2e.pods.objects.tiered`): the last is
#: open, and no three of the others have this many bytes.
TIERED_RECORDS = 6000
TIERED_BYTES = 3 << 20
#: What a person would miss.
KEPT_KINDS = (
    "clusters.tidemark.dev",
    "brokers.tidemark.dev",
    "topics.tidemark.dev",
    "persistentvolumeclaims",
)
#: Of a machine that has other work, too.
READY_TIMEOUT_S = 240
#: After which a wait says what for.
LONG_S = 20
HELM_TIMEOUT_S = READY_TIMEOUT_S + 60


def replicas_complaint(topic: dict[str, Any], placeholders: int) -> str:
    """Return why a Topic lacks the given number of placeholders or has other replicas out of
    sync.
    """
    found = topic.get("status", {}).get("replicas", {})
    desired = topic["spec"]["partitions"] * topic["spec"]["replicationFactor"]
    in_sync = desired - placeholders
    wanted = {"desired": desired, "inSync": in_sync, "placeholders": placeholders}
    if all(found.get(name) == number for name, number in wanted.items()):
        return ""
    return f"{found}, {condition(topic, 'FullyReplicated').get('message', '')}"


@dataclass(slots=True, kw_only=True)
class Stage:
    """An installation.

    ``reaches_pods``: whether this process reaches pods, as one on the node does. ``written``: the
    number of records in each topic that a chapter has left. ``values``: the chart's values of the
    last ``helm`` command, so that a chapter changes only its own. ``load``: records that are
    written and read meanwhile.
    """

    provider: Provider
    kubernetes: Kubernetes
    helm: Helm
    images: Mapping[str, Image]
    progress: Progress
    reaches_pods: bool
    written: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=lambda: objects.values(BROKERS))
    load: Load | None = None

    # ------------------------------------------------------------ the release

    def install(self, verb: str = "upgrade", *, wait: bool = True) -> None:
        """``helm install`` or ``upgrade`` with :attr:`values`. Raises HelmRefused."""
        options = ["--namespace", NAMESPACE]
        if wait:
            options += ["--wait", "--timeout", f"{READY_TIMEOUT_S}s"]
        self.helm.run(verb, "tidemark", str(CHART), *options, values=self.values)

    def revision(self) -> int:
        """Return the revision of the release, for ``helm rollback``."""
        told = self.helm.run("status", "tidemark", "--namespace", NAMESPACE, "--output", "json")
        return int(json.loads(told)["version"])

    @property
    def brokers(self) -> int:
        """Number of brokers in the release."""
        return int(self.values["brokerPods"]["replicas"])

    def all_ready(self) -> None:
        """Operators, brokers, the Cluster, in one look. Raises Failed."""
        self.wait("operators, brokers and the Cluster", self._not_all_ready)

    def _not_all_ready(self) -> str:
        found = self.kubernetes.all(NAMESPACE, "pods", "brokers.tidemark.dev")
        by_name = {(body["kind"], body["metadata"]["name"]): body for body in found}
        brokers = [("Broker", f"broker-{number}") for number in range(1, self.brokers + 1)]
        for broker in (*(("Pod", name) for name in self._pods()), *brokers):
            complaint = (
                not_ready(by_name[broker]) if broker in by_name else f"no {' '.join(broker)}"
            )
            if complaint:
                return complaint
        return self._cluster_complaint()

    def _pods(self) -> tuple[str, ...]:
        return *self.operator_pods(), *self.broker_pods()

    def _cluster_complaint(self) -> str:
        body = self.kubernetes.get(NAMESPACE, "clusters.tidemark.dev", "tidemark")
        found = body.get("status", {}).get("brokers", {})
        if found != {"registered": self.brokers, "fenced": 0}:
            return f"of its brokers the Cluster says {found}"
        return not_ready(body)

    def recovered(self) -> None:
        """All Ready and every replica of every topic in sync. Raises Failed."""
        self.all_ready()
        self.wait("all replicas of all topics", self._not_in_sync)

    def _not_in_sync(self) -> str:
        left = set(self.written)
        for body in self.kubernetes.all(NAMESPACE, TOPICS):
            name = body["metadata"]["name"]
            if name in left and (complaint := replicas_complaint(body, 0)):
                return f"{name}: {complaint}"
            left.discard(name)
        return f"no {', '.join(sorted(left))}" if left else ""

    @property
    def client(self) -> Client:
        """In the client's pod."""
        return Client(self.kubernetes, READY_TIMEOUT_S)

    # ------------------------------------------------------------ topics and records

    def make_topic(self, name: str, **spec: Any) -> None:
        """A Topic, of three replicas where nothing else is said, that is Ready. Raises Failed."""
        self.change_topic(name, **spec)
        self.ready(f"topics.tidemark.dev/{name}")
        self.written.setdefault(name, 0)

    def change_topic(self, name: str, **spec: Any) -> None:
        """``kubectl apply`` of another manifest of a topic that :meth:`make_topic` has made."""
        spec = {"partitions": PARTITIONS, "replicationFactor": 3, **spec}
        self.kubernetes.apply(objects.topic(name, **spec))

    def make_tiered_topic(self, name: str) -> None:
        """One whose records leave the brokers' disks a megabyte at a time. Raises Failed."""
        self.make_topic(name, **objects.tiered())

    def topic(self, name: str) -> dict[str, Any]:
        """The Topic as it is."""
        return self.object(f"topics.tidemark.dev/{name}")

    def replicas(self, topic: str, placeholders: int) -> str:
        """Wait until the topic has the given number of placeholders and all other replicas in
        sync.
        """
        return replicas_complaint(self.topic(topic), placeholders)

    def in_sync(self, topic: str) -> None:
        """Every replica is. Raises Failed."""
        self.wait(f"all replicas of {topic}", lambda: self.replicas(topic, 0))

    def produce(self, topic: str, count: int = RECORDS) -> None:
        """Produce more records, numbered consecutively, from the client's pod with acks=all."""
        first = self.written.setdefault(topic, 0)
        self.client.run("produce", topic, first, count)
        self.written[topic] = first + count

    def consume(self, topic: str) -> None:
        """Every record written so far, in the client's pod. Raises CommandFailed."""
        self.client.run("consume", topic, self.written[topic])

    def consume_all(self) -> None:
        """The same of every topic that chapters have left. Raises CommandFailed."""
        self.client.run("consume", *(item for pair in self.written.items() for item in pair))

    def begin_load(self, topic: str) -> None:
        """Records of this topic are written and read until :meth:`end_load`."""
        self.load = Load(self.kubernetes, topic, group=f"load-{topic}")
        self.load.begin(self.written[topic])

    def end_load(self) -> Outcome:
        """Raises Failed where a send failed, or a record is not there once."""
        assert self.load is not None
        load, self.load = self.load, None
        outcome = load.end()
        self.written[load.topic] = outcome.next
        return outcome

    # ------------------------------------------------------------ the tier

    def fetched_from_tier(self) -> float:
        """Bytes that the brokers have read there for clients since they were started."""
        return self._sum("kafka_server_brokertopicmetrics_remotefetchbytes_total")

    def copied_to_tier(self) -> float:
        """Bytes of segments that they have copied there. A Topic's status tells such figures once a
        minute."""
        return self._sum("kafka_server_brokertopicmetrics_remotecopybytes_total")

    def _sum(self, metric: str) -> float:
        return sum(self.metric(f"broker-{n}-0", metric) for n in range(1, self.brokers + 1))

    def produce_to_tier(self, topic: str) -> None:
        """Fill a tiered topic until each partition has closed segments in the tier.

        Raises Failed.
        """
        before = self.copied_to_tier()
        self.produce(topic, TIERED_RECORDS)

        def complaint() -> str:
            copied = self.copied_to_tier() - before
            return "" if copied >= TIERED_BYTES else f"{copied:.0f} bytes were copied"

        self.wait("segments in the tier", complaint)

    def reads_tier(self, topic: str) -> None:
        """Until a reader of all of a topic has something from the tier only. Raises Failed."""

        def complaint() -> str:
            before = self.fetched_from_tier()
            self.consume(topic)
            read = self.fetched_from_tier() > before
            return "" if read else "all records are still read from the brokers' disks"

        self.wait("a read from the tier", complaint)

    # ------------------------------------------------------------ objects

    def patch(self, what: str, change: dict[str, Any]) -> None:
        """A merge patch of an object, such as ``topics.tidemark.dev/orders``."""
        words = ("patch", what, "--type", "merge", "--patch", json.dumps(change))
        self.kubernetes.run("--namespace", NAMESPACE, *words)

    def annotate(self, what: str, name: str, value: str) -> None:
        """Set an annotation of an object."""
        self.patch(what, {"metadata": {"annotations": {name: value}}})

    def delete(self, what: str, *, wait: bool = True) -> None:
        """``kubectl delete``. Raises CommandFailed."""
        words = ("delete", what, f"--wait={str(wait).lower()}")
        self.kubernetes.run("--namespace", NAMESPACE, *words)

    def object(self, what: str) -> dict[str, Any]:
        """Such as ``topics.tidemark.dev/orders``, as it is."""
        return self.kubernetes.get(NAMESPACE, what)

    def watched(self, what: str, path: str) -> AbstractContextManager[list[str]]:
        """The values of a field of an object from now on (:mod:`e2e.pods.watching`)."""
        return watched(self.kubernetes, what, path)

    def uids(self, *kinds: str) -> dict[str, str]:
        """Return the uids of the objects of the given kinds, by kind and name."""
        found = self.kubernetes.all(NAMESPACE, *kinds)
        return {f"{b['kind']}/{b['metadata']['name']}": b["metadata"]["uid"] for b in found}

    def python(self, pod: tuple[str, str], program: Path, *arguments: str) -> str:
        """Run a program in a pod, given as namespace and name, and return its output.

        Raises CommandFailed.
        """
        where, name = pod
        return self.kubernetes.run(
            *("--namespace", where, "exec", "--stdin", name, "--", "python3", "-", *arguments),
            stdin=program.read_text("utf-8"),
            timeout_s=READY_TIMEOUT_S,
        )

    def broker_pods(self) -> list[str]:
        return [f"broker-{number}-0" for number in range(1, self.brokers + 1)]

    def operator_pods(self) -> list[str]:
        return [f"{OPERATOR}-{number}" for number in range(OPERATORS)]

    def ports(self, pod: str) -> dict[str, str]:
        """Address and port of a pod's one container, by the port's name."""
        body = self.pod(pod)
        (container,) = body["spec"]["containers"]
        address = body["status"]["podIP"]
        return {port["name"]: f"{address}:{port['containerPort']}" for port in container["ports"]}

    def pod(self, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        return self.kubernetes.get(namespace, "pod", name)

    def container(self, pod: str) -> dict[str, Any]:
        """The status of a pod's one container. Raises CommandFailed for a pod so new that it has
        none."""
        found: list[dict[str, Any]] = self.pod(pod)["status"].get("containerStatuses", [])
        if not found:
            raise CommandFailed(f"pod {pod} has no container yet")
        (status,) = found
        return status

    def kill(self, pod: str) -> None:
        """``kill -9`` to the first process of a pod's container, which cannot say goodbye."""
        self.signal(pod, "SIGKILL")

    def signal(self, pod: str, name: str) -> None:
        """Send a signal to that process."""
        self.provider.signal(self.container(pod)["containerID"].rpartition("/")[2], name)

    def replace(self, pod: str) -> None:
        """Delete a pod, until its StatefulSet has made another one. Raises Failed."""
        before = self.pod(pod)["metadata"]["uid"]
        self.kubernetes.run("--namespace", NAMESPACE, "delete", "pod", pod)
        self.wait(
            "a new pod",
            lambda: "" if self.pod(pod)["metadata"]["uid"] != before else "the old one",
        )

    def metric(self, pod: str, name: str) -> float:
        """The sum of a metric's samples without labels, as the pod answers now."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics"
        lines = self.kubernetes.api.raw(path).splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def restarted(self, pod: str, before: int) -> None:
        """Wait until the restart count exceeds ``before``.

        Raises Failed.
        """
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
        """Return the holder of the operators' Lease, or "" if there is none."""
        body = self.kubernetes.get(NAMESPACE, "lease", OPERATOR)
        return str(body["spec"].get("holderIdentity", ""))

    # ------------------------------------------------------------ waiting

    def account(self, namespace: str) -> None:
        """Wait for the default account of a new namespace, which pods require.

        Raises Failed.
        """

        def complaint() -> str:
            there = self.kubernetes.names(namespace, "serviceaccounts")
            return "" if "default" in there else "no service account yet"

        self.wait(f"the account of {namespace}", complaint)

    def pod_ready(self, namespace: str, name: str) -> None:
        """Wait until a pod is Ready.

        Raises Failed.
        """
        self.wait(f"pod {name}", lambda: not_ready(self.pod(name, namespace)))

    def ready(self, what: str) -> None:
        """An object with a condition Ready, such as ``topics.tidemark.dev/orders``."""
        self.wait(what, lambda: not_ready(self.kubernetes.get(NAMESPACE, what)))

    def wait(self, what: str, look: Callable[[], str], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until ``look`` returns no complaint.

        Long waits print the current complaint from time to time.

        Raises Failed.
        """
        next_s = time.monotonic() + LONG_S

        def look_and_tell() -> str:
            nonlocal next_s
            complaint = look()
            if complaint and time.monotonic() > next_s:
                self.progress.say(f"waiting for {what}: {complaint}")
                next_s = time.monotonic() + LONG_S
            return complaint

        wait_for(what, look_and_tell, timeout_s)
