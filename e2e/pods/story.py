"""The one story that the pods are put through, step after step, on whichever cluster there is.

Every step needs what the one before has left: an installation, brokers, records. So it is told as a
whole, stops at the first step that fails, and each step that went well has been judged for itself.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from e2e.pods import objects
from e2e.pods.images import Image
from e2e.pods.kubernetes import Kubernetes, condition, not_ready, wait_for
from e2e.pods.objects import NAMESPACE, STORE
from e2e.pods.progress import Failed, Progress
from e2e.pods.providers import Provider
from tests.helm import BASE_CHART, CHART, Helm

BOOTSTRAP = f"tidemark-bootstrap.{NAMESPACE}.svc:9092"
OPERATOR = "tidemark-operator"
FETCHED = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
CLIENT_PROGRAM = Path(__file__).with_name("client_program.py")
# Of a machine that has other work, too.
READY_TIMEOUT_S = 240
CHANGED = {"e2e.tidemark.dev/changed": "once"}
HELM_TIMEOUT_S = READY_TIMEOUT_S + 60
RECORDS = 2000
TIERED_RECORDS = 6000
PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """``reaches_pods``: whether this process does, as one on the node would."""

    provider: Provider
    kubernetes: Kubernetes
    helm: Helm
    images: Mapping[str, Image]
    progress: Progress
    reaches_pods: bool

    def tell(self) -> None:
        """All steps. Raises at the first that fails."""
        with self.progress.step("giving the images to the node"):
            self.provider.load({name: image.archive for name, image in self.images.items()})
        for what, step in self._steps():
            with self.progress.check(what):
                step()

    def _steps(self) -> list[tuple[str, Callable[[], None]]]:
        steps: list[tuple[str, Callable[[], None]]] = [
            ("an object store runs in a restricted namespace", self._store),
            ("both charts are installed, operator and two brokers are Ready", self._install),
            ("a topic with three replicas has placeholders on two brokers", self._placeholders),
            ("no program complains in its log", self._quiet),
            ("a client inside writes and reads", self._inside),
            ("a third broker joins and fills the placeholders", self._third),
        ]
        if self.reaches_pods:
            steps.append(("a client outside every pod writes and reads", self._outside))
        return [
            *steps,
            ("closed segments go to the tier", self._tier),
            ("they leave the brokers' disks and are read from the tier", self._read_tier),
            ("a deleted broker pod comes back and catches up", self._pod_deleted),
            ("a change restarts one broker after the other", self._changed),
            ("a killed broker is started again and catches up", self._killed),
            ("another operator takes over from the one that led", self._failover),
            ("an uninstalled release leaves brokers that serve on", self._uninstall),
            ("the next release finds all records again", self._again),
        ]

    # ------------------------------------------------------------ install

    def _store(self) -> None:
        self.kubernetes.apply(objects.namespace(STORE), objects.namespace(NAMESPACE))
        for name in (STORE, NAMESPACE):
            self._wait(f"the account of {name}", lambda n=name: self._account(n))
        self.kubernetes.apply(*objects.store(), objects.credentials(), objects.client())
        self._pod_ready(STORE, "minio")
        self._pod_ready(NAMESPACE, "client")

    def _account(self, namespace: str) -> str:
        there = self.kubernetes.names(namespace, "serviceaccounts")
        return "" if "default" in there else "no service account yet"

    def _install(self) -> None:
        system = ("--namespace", "tidemark-system", "--create-namespace")
        self.helm.run("install", "tidemark-base", str(BASE_CHART), *system)
        begun = time.monotonic()
        self._helm("install", 2)
        self._all_ready(2)
        self.progress.figure("install to all Ready", f"{time.monotonic() - begun:.0f} s")

    def _quiet(self) -> None:
        """Such as of a library that is missing in the image, and of a user without a name."""
        for name in self.kubernetes.names(NAMESPACE, "pods"):
            log = self.kubernetes.run("--namespace", NAMESPACE, "logs", name)
            for word in ("Traceback", "Warning: "):
                if word in log:
                    raise Failed(f"{name}: {log[log.index(word) :][:2000]}")

    def _helm(self, verb: str, brokers: int, annotations: dict[str, str] | None = None) -> None:
        options = ("--namespace", NAMESPACE, "--wait", "--timeout", f"{READY_TIMEOUT_S}s")
        values = objects.values(brokers, annotations or {})
        self.helm.run(verb, "tidemark", str(CHART), *options, values=values)

    def _all_ready(self, brokers: int) -> None:
        for number in range(2):
            self._pod_ready(NAMESPACE, f"{OPERATOR}-{number}")
        for number in range(1, brokers + 1):
            self._pod_ready(NAMESPACE, f"broker-{number}-0")
            self._ready(f"brokers.tidemark.dev/broker-{number}")
        self._ready("clusters.tidemark.dev/tidemark")
        self._wait("brokers that are not fenced", lambda: self._brokers_complaint(brokers))

    def _brokers_complaint(self, wanted: int) -> str:
        body = self.kubernetes.get(NAMESPACE, "clusters.tidemark.dev", "tidemark")
        found = body.get("status", {}).get("brokers", {})
        return "" if found == {"registered": wanted, "fenced": 0} else str(found)

    # ------------------------------------------------------------ topics and records

    def _placeholders(self) -> None:
        topic = objects.topic("orders", partitions=PARTITIONS, replicationFactor=3)
        self.kubernetes.apply(topic)
        self._ready("topics.tidemark.dev/orders")
        self._wait("two placeholders", lambda: self._replicas("orders", PARTITIONS))

    def _replicas(self, topic: str, placeholders: int) -> str:
        """Why the topic has not just so many placeholders and all else in sync."""
        body = self.kubernetes.get(NAMESPACE, "topics.tidemark.dev", topic)
        found = body.get("status", {}).get("replicas", {})
        desired = PARTITIONS * 3
        in_sync = desired - placeholders
        wanted = {"desired": desired, "inSync": in_sync, "placeholders": placeholders}
        if all(found.get(name) == number for name, number in wanted.items()):
            return ""
        return f"{found}, {condition(body, 'FullyReplicated').get('message', '')}"

    def _inside(self) -> None:
        self._client("produce", "orders", 0, RECORDS)
        self._client("consume", "orders", 0, RECORDS)

    def _third(self) -> None:
        begun = time.monotonic()
        self._helm("upgrade", 3)
        self._all_ready(3)
        self._in_sync("orders")
        self.progress.figure("third broker to in sync", f"{time.monotonic() - begun:.0f} s")

    def _outside(self) -> None:
        producer = Producer({"bootstrap.servers": BOOTSTRAP, "acks": "all"})
        for number in range(RECORDS, 2 * RECORDS):
            producer.produce("orders", b"%08d" % number + bytes(1000))
            producer.poll(0)
        if producer.flush(60):
            raise Failed("not every record was acknowledged within 60 s")
        found = self._consumed("orders", 2 * RECORDS)
        if found != set(range(2 * RECORDS)):
            raise Failed(f"{len(found)} of {2 * RECORDS} records were read")

    def _consumed(self, topic: str, count: int) -> set[int]:
        options = {"bootstrap.servers": BOOTSTRAP, "group.id": "e2e", "enable.auto.commit": False}
        consumer = Consumer(options)
        consumer.assign([TopicPartition(topic, part, 0) for part in range(PARTITIONS)])
        found: set[int] = set()
        deadline_s = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline_s:
            for message in consumer.consume(500, 0.5):
                if message.error() is None:
                    found.add(int(message.value()[:8]))
        consumer.close()
        return found

    def _tier(self) -> None:
        tiering = {"enabled": True, "localRetention": {"size": "1Mi"}}
        config = {"segment.bytes": "1048576", "retention.ms": "-1"}
        topic = objects.topic(
            "kept", partitions=PARTITIONS, replicationFactor=3, config=config, tiering=tiering
        )
        self.kubernetes.apply(topic)
        self._ready("topics.tidemark.dev/kept")
        self._client("produce", "kept", 0, TIERED_RECORDS)
        self._wait("segments in the tier", lambda: self._tier_complaint("kept"))

    def _tier_complaint(self, topic: str) -> str:
        body = self.kubernetes.get(NAMESPACE, "topics.tidemark.dev", topic)
        tiering = body.get("status", {}).get("tiering", {})
        return "" if tiering.get("remoteSegments", 0) >= PARTITIONS else str(tiering)

    def _read_tier(self) -> None:
        def complaint() -> str:
            self._client("consume", "kept", 0, TIERED_RECORDS)
            read = sum(self._metric(f"broker-{n}-0", FETCHED) for n in (1, 2, 3))
            return "" if read else "all records are still read from the brokers' disks"

        self._wait("a read from the tier", complaint)

    def _metric(self, pod: str, name: str) -> float:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics"
        lines = self.kubernetes.run("get", "--raw", path).splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def _client(self, what: str, topic: str, first: int, count: int) -> None:
        """In the client's pod."""
        arguments = ("--", "python3", "-", what, BOOTSTRAP, topic, str(first), str(count))
        self.kubernetes.run(
            *("--namespace", NAMESPACE, "exec", "--stdin", "client", *arguments),
            stdin=CLIENT_PROGRAM.read_text("utf-8"),
            timeout_s=READY_TIMEOUT_S,
        )

    # ------------------------------------------------------------ faults

    def _pod_deleted(self) -> None:
        begun = time.monotonic()
        before = self._pod("broker-1-0")["metadata"]["uid"]
        self.kubernetes.run("--namespace", NAMESPACE, "delete", "pod", "broker-1-0")
        self._wait(
            "a new pod",
            lambda: "" if self._pod("broker-1-0")["metadata"]["uid"] != before else "the old one",
        )
        self._all_ready(3)
        self._in_sync("orders")
        self._in_sync("kept")
        self.progress.figure("pod deleted to in sync", f"{time.monotonic() - begun:.0f} s")

    def _changed(self) -> None:
        begun = time.monotonic()
        self._helm("upgrade", 3, CHANGED)
        away: list[int] = []

        def complaint() -> str:
            pods = self.kubernetes.get(NAMESPACE, "pods")["items"]
            ready = [pod for pod in pods if _is_broker(pod) and not not_ready(pod)]
            away.append(3 - len(ready))
            changed = sum(CHANGED.items() <= _annotations(pod).items() for pod in ready)
            return "" if changed == 3 else f"{changed} of 3 are changed and Ready"

        self._wait("three changed pods", complaint)
        if max(away) > 1:
            raise Failed(f"{max(away)} brokers were away at once")
        self._all_ready(3)
        self._in_sync("orders")
        self._in_sync("kept")
        self.progress.figure("three restarts", f"{time.monotonic() - begun:.0f} s")

    def _killed(self) -> None:
        begun = time.monotonic()
        (status,) = self._pod("broker-2-0")["status"]["containerStatuses"]
        self.provider.kill(status["containerID"].rpartition("/")[2])

        def complaint() -> str:
            (now,) = self._pod("broker-2-0")["status"]["containerStatuses"]
            if now["restartCount"] == status["restartCount"]:
                return "the container has not been started again"
            code = now.get("lastState", {}).get("terminated", {}).get("exitCode")
            return "" if code == 137 else f"its first process ended with {code}, not by kill -9"

        self._wait("another container", complaint)
        self._all_ready(3)
        self._in_sync("orders")
        self._in_sync("kept")
        self.progress.figure("kill -9 to in sync", f"{time.monotonic() - begun:.0f} s")
        self._client("consume", "orders", 0, RECORDS)

    def _failover(self) -> None:
        before = self._leader()
        pod = next((n for n in range(2) if f"{OPERATOR}-{n}" in before), None)
        if pod is None:
            raise Failed(f"the Lease names no pod of the operator: {before!r}")
        begun = time.monotonic()
        # It cannot give its Lease back.
        (status,) = self._pod(f"{OPERATOR}-{pod}")["status"]["containerStatuses"]
        self.provider.kill(status["containerID"].rpartition("/")[2])
        self._wait(
            "another leader",
            lambda: "" if self._leader() not in ("", before) else f"{self._leader()!r} leads",
        )
        topic = objects.topic("after", partitions=PARTITIONS, replicationFactor=3)
        self.kubernetes.apply(topic)
        self._ready("topics.tidemark.dev/after")
        self.progress.figure(
            "operator kill -9 to the next topic Ready", f"{time.monotonic() - begun:.0f} s"
        )
        self._client("produce", "after", 0, RECORDS)
        self._client("consume", "after", 0, RECORDS)
        self._all_ready(3)

    def _leader(self) -> str:
        body = self.kubernetes.get(NAMESPACE, "lease", OPERATOR)
        return str(body["spec"].get("holderIdentity", ""))

    # ------------------------------------------------------------ what stays

    def _uninstall(self) -> None:
        before = self._kept()
        self.helm.run("uninstall", "tidemark", "--namespace", NAMESPACE)
        self._wait("no pod of the operator", self._pods_complaint)
        after = self._kept()
        if after != before:
            raise Failed(f"uninstalling left {after} of {before}")
        self._client("produce", "after", RECORDS, RECORDS)
        self._client("consume", "orders", 0, RECORDS)

    def _kept(self) -> dict[str, str]:
        """What a person would miss, with its uid."""
        kinds = ["clusters", "brokers", "topics"]
        kinds = [*(f"{kind}.tidemark.dev" for kind in kinds), "persistentvolumeclaims", "pods"]
        found = self.kubernetes.get(NAMESPACE, ",".join(kinds))["items"]
        uids = {f"{b['kind']}/{b['metadata']['name']}": b["metadata"]["uid"] for b in found}
        return {name: uid for name, uid in uids.items() if not name.startswith(f"Pod/{OPERATOR}")}

    def _pods_complaint(self) -> str:
        names = self.kubernetes.names(NAMESPACE, "pods")
        return ", ".join(name for name in names if name.startswith(OPERATOR))

    def _again(self) -> None:
        self._helm("install", 3, CHANGED)
        self._all_ready(3)
        for topic, count in (("orders", RECORDS), ("kept", TIERED_RECORDS), ("after", 2 * RECORDS)):
            self._in_sync(topic)
            self._client("consume", topic, 0, count)

    # ------------------------------------------------------------ waiting

    def _pod(self, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        return self.kubernetes.get(namespace, "pod", name)

    def _pod_ready(self, namespace: str, name: str) -> None:
        self._wait(f"pod {name}", lambda: not_ready(self._pod(name, namespace)))

    def _ready(self, what: str) -> None:
        self._wait(what, lambda: not_ready(self.kubernetes.get(NAMESPACE, what)))

    def _in_sync(self, topic: str) -> None:
        self._wait(f"all replicas of {topic}", lambda: self._replicas(topic, 0))

    def _wait(self, what: str, look: Callable[[], str]) -> None:
        wait_for(what, look, READY_TIMEOUT_S)


def _is_broker(body: dict[str, Any]) -> bool:
    return str(body["metadata"]["name"]).startswith("broker-")


def _annotations(body: dict[str, Any]) -> dict[str, str]:
    found = body["metadata"].get("annotations", {})
    assert isinstance(found, dict)
    return found
