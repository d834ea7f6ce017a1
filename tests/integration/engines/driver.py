"""An engine behind its cluster as users see it: by the objects of the Kubernetes API, and with a
stock Kafka client. Only the start of an engine depends on which one it is."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConfigSource,
)

from tests.conformance.local_cluster import RunningCluster, run_cluster, wait
from tests.integration.kafka_engine.record_production import offset
from tests.kafka_programs import kafka_jars
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark_cli.inspection.topic_rows import condition
from tidemark_devcluster.settings import KAFKA

LONG_S = 120.0
Spec = dict[str, Any]
_numbers = itertools.count(1)


class DrivenEngine:
    """An engine with three brokers at first."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster, self.kube = cluster, cluster.kube
        self._quiet: dict[str, str | int | float | bool] = {
            "bootstrap.servers": cluster.bootstrap,
            "log_level": 1,
        }
        self.admin = AdminClient(self._quiet)

    @property
    def brokers(self) -> list[int]:
        """Return every broker's id."""
        return self.cluster.local.brokers.broker_ids()

    # ------------------------------------------------------------ objects

    def create(self, partitions: int = 1, replicas: int = 1, **spec: Any) -> tuple[str, Spec]:
        """Create a Topic without waiting; return its name, and the spec to change and apply."""
        name = f"topic-{next(_numbers)}"
        return name, self.apply(
            name, {"partitions": partitions, "replicationFactor": replicas, **spec}
        )

    def apply(self, name: str, spec: Spec, **annotations: str) -> Spec:
        """Apply like ``kubectl apply --server-side``: fields that are not named are removed."""
        full_spec = {"clusterRef": {"name": self.cluster.local.settings.cluster}, **spec}
        self.kube.apply("Topic", name, full_spec, annotations=annotations)
        return full_spec

    def delete_records(self, name: str, topic: str, **spec: Any) -> Spec:
        """Create a RecordDeletion and wait for its end; return its status."""
        self.kube.apply("RecordDeletion", name, {"topicRef": {"name": topic}, **spec})
        return self.status(
            name, lambda _: True, kind="RecordDeletion", type_="Succeeded", is_="True|False"
        )

    def ready(self, name: str) -> Spec:
        """Wait until the Topic is Ready in its present generation; return its status."""
        return self.status(name, lambda _: True, type_="Ready", is_="True")

    def status(
        self,
        name: str,
        holds: Callable[[Spec], bool],
        *,
        kind: str = "Topic",
        type_: str = "",
        is_: str = "",
        reason: str = "",
    ) -> Spec:
        """Wait for a status of the present generation that fulfils both conditions."""
        last: Spec = {}

        def look() -> bool:
            nonlocal last
            found = self.kube.get(kind, name)
            last = (found or {}).get("status") or {}
            # A status of an older generation says nothing about the change.
            if found is None or last.get("observedGeneration") != found["metadata"]["generation"]:
                return False
            found_condition = condition(found, type_)
            fits = not type_ or (
                found_condition.get("status") in is_.split("|")
                and reason in ("", found_condition.get("reason"))
            )
            return fits and holds(last)

        try:
            wait(look, f"{kind} {name} {type_}", LONG_S)
        except AssertionError as error:
            # The last status explains most failures.
            raise AssertionError(f"{error}; its last status: {last}") from None
        return last

    def condition_message(
        self, name: str, type_: str, is_: str, reason: str, *, kind: str = "Topic"
    ) -> str:
        """Wait for a condition; return its message."""
        status = self.status(name, lambda _: True, kind=kind, type_=type_, is_=is_, reason=reason)
        return str(condition({"status": status}, type_)["message"])

    def delete_and_wait(self, name: str) -> None:
        """Delete a Topic, and wait until its object no longer exists."""
        self.kube.delete("Topic", name)
        wait(lambda: self.kube.get("Topic", name) is None, f"{name} to be deleted", LONG_S)

    def versions(self) -> dict[str, str]:
        """Return the version of every object: equal versions mean that nothing was written."""
        return {
            f"{kind}/{object_['metadata']['name']}": object_["metadata"]["resourceVersion"]
            for kind in ("Cluster", "Broker", "Topic", "RecordDeletion")
            for object_ in self.kube.objects(kind)
        }

    # ------------------------------------------------------------ what clients see

    def described(self, topic: str) -> Any:
        """Return the topic's description, or None if brokers do not know it."""
        try:
            request = self.admin.describe_topics(TopicCollection([topic]), request_timeout=30)
            return request[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return None

    def topic_id(self, topic: str) -> str:
        """Return the topic's id in the form of statuses; the client uses another alphabet."""
        found = self.described(topic)
        assert found is not None
        return str(found.topic_id).translate(str.maketrans("+/", "-_"))

    def replicas(self, topic: str) -> list[list[int]]:
        """Return the replicas of each partition, whether or not they are in sync; [] if there
        is none.
        """
        found = self.described(topic)
        return (
            [[node.id for node in partition.replicas] for partition in found.partitions]
            if found
            else []
        )

    def wait_for_replicas(self, topic: str, counts: list[int]) -> list[list[int]]:
        """Wait until each partition has its count of distinct replicas; return them.

        A status may be ahead of the broker that answers the client, because brokers of Apache
        Kafka apply the controller's records independently of each other.
        """
        last: list[list[int]] = []

        def look() -> bool:
            nonlocal last
            last = self.replicas(topic)
            return [len(set(replicas)) for replicas in last] == counts

        wait(look, f"{topic} to have {counts} replicas", LONG_S)
        return last

    def config(self, topic: str) -> dict[str, str]:
        """Return the topic's own configuration."""
        request = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = self.admin.describe_configs([request], request_timeout=30)[request].result()
        # Only values of the topic itself, not defaults of the brokers.
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {key: entry.value for key, entry in found.items() if entry.source == own}

    def produce(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Produce with a pause after each record, so that short segments have one record each."""
        refused: list[object] = []
        producer = Producer({**self._quiet, "linger.ms": 0})
        for value in values:
            producer.produce(
                topic,
                value,
                value,
                partition=partition,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
            assert producer.flush(60) == 0
            time.sleep(0.3)
        assert not refused

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Return all values that can be read, from the first record on."""
        consumer = Consumer(
            # An offset that is out of range must be an error, and not a silent reset.
            {**self._quiet, "group.id": "none", "enable.partition.eof": True}
            | {"auto.offset.reset": "error"}
        )
        place, offsets = TopicPartition(topic, partition), []

        # A leader that has just moved is answered with an error, and the client looks again.
        def found_leader() -> bool:
            try:
                offsets[:] = consumer.get_watermark_offsets(place, timeout=60)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                    raise
            return bool(offsets)

        wait(found_leader, f"the leader of {topic}-{partition}")
        first, end = offsets
        consumer.assign([TopicPartition(topic, partition, first)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + 60
        while len(found) < end - first and time.monotonic() < deadline:
            found += [item.value() for item in consumer.consume(100, 0.5) if not item.error()]
        consumer.close()
        return found

    def offset(self, topic: str, special: int, partition: int = 0) -> int:
        """Return an offset of ListOffsets, with earliest-local and latest-tiered, which stock
        clients lack; -2 while it is unknown.
        """

        async def ask() -> int:
            async with KafkaClient(KafkaAccess(tuple(self.cluster.bootstrap.split(",")))) as client:
                return await offset(Admin(client), topic, partition, special)

        return asyncio.run(ask())


class Engines:
    """Each engine is started on first use, and runs until the end."""

    def __init__(self, folder_of: Callable[[str], Path], stack: ExitStack) -> None:
        self._folder_of, self._stack = folder_of, stack
        self._made: dict[str, DrivenEngine] = {}

    def get(self, name: str) -> DrivenEngine:
        """Skips the test where there is no Java, or no Maven, and the engine needs them."""
        if name not in self._made:
            if name == KAFKA:
                kafka_jars()
            # Starting an engine takes a minute, so all tests share it.
            running = run_cluster(self._folder_of(f"engine-{name}"), engine=name)
            self._made[name] = DrivenEngine(self._stack.enter_context(running))
        return self._made[name]


@contextmanager
def engines(folder_of: Callable[[str], Path]) -> Iterator[Engines]:
    """``folder_of`` returns an empty folder for a name."""
    with ExitStack() as stack:
        yield Engines(folder_of, stack)
