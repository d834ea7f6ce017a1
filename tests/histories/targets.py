"""The clusters that a run may disturb: a local one of Tidemark's, every part the real one, or
Apache Kafka's brokers, which are the control for the checker itself.

A node is a process by its name: ``broker-1`` and so on, and ``operator`` where there is one.
"""

import shutil
import signal
from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse

from tests import apache_kafka as kafka
from tests.conformance.local_cluster import RunningCluster, run_cluster, wait
from tidemark.configuration.broker_keys import REMOTE_READERS, REMOTE_READERS_ANY
from tidemark.tier.metadata.codec import decode_head
from tidemark.tier.metadata.layout import HEADS_PREFIX, head_key, partition_of_head
from tidemark.wire.blocking import BlockingConnection
from tidemark_broker.log.directory_files import read_state
from tidemark_devcluster import processes
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_devcluster.processes import ProcessRecord

BROKERS = 3
OPERATOR = "operator"
REPLICATION = {"min.insync.replicas": "2"}
#: Of tiered topics: closed segments are copied at once, and only the newest stay local.
SEGMENTS = {"segment.ms": "1500"}
TIERING = {"enabled": True, "localRetention": {"size": "1"}}
_ASK_S = 10.0


class DisturbedCluster(Protocol):
    """Operations on a cluster that faults and workload need."""

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All that can be disturbed."""

    @property
    def admin(self) -> AdminClient:
        """To ask who leads."""

    @property
    def logs(self) -> Sequence[Path]:
        """Logs of the nodes."""

    def create_topics(self, partitions: dict[str, int], tiered: Collection[str] = ()) -> None:
        """With a replica on each broker, two of which have to be in sync; waits until all are
        led. ``tiered``: those with a remote tier, where the cluster has one."""

    def kill(self, node: str) -> None:
        """Kill the node with SIGKILL."""

    def stop(self, node: str) -> None:
        """Stop the node with SIGTERM, and wait."""

    def start(self, node: str) -> None:
        """Again, and wait until it says that it is ready; nothing if it runs."""

    def signal(self, node: str, number: int) -> None:
        """Send SIGSTOP or SIGCONT to the node."""

    def back_up(self) -> None:
        """Back up the controller's data, replacing the former backup."""

    def put_back(self) -> None:
        """Restore the controller's data from the backup while the operator runs."""

    def heads(self, topic: str) -> dict[int, bytes]:
        """The manifest heads of a topic in the tier, by partition."""

    def put_head_back(self, topic: str, partition: int, body: bytes) -> bool:
        """Replace a head by an older version. Do nothing and return False unless every replica has
        the present version on its disk: if no later leader knows a commit, nothing shows that it
        was lost."""

    def tier_trouble(self, topics: Collection[str]) -> str:
        """Return why the tier of a topic is not in order; empty if all are."""


class TidemarkTarget:
    """A cluster as `tidemark up` starts it."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._local = cluster.local
        # Followers serve what only the tier has, so faults of theirs are seen by consumers.
        cluster.configure({REMOTE_READERS: REMOTE_READERS_ANY})
        self.bootstrap = cluster.bootstrap
        self.admin = _admin(self.bootstrap)
        self.nodes = (*(f"broker-{number}" for number in range(1, BROKERS + 1)), OPERATOR)

    @property
    def logs(self) -> list[Path]:
        return [self._local.layout.log(node) for node in self.nodes]

    def create_topics(self, partitions: dict[str, int], tiered: Collection[str] = ()) -> None:
        for name, count in partitions.items():
            spec = {
                "clusterRef": {"name": self._local.settings.cluster},
                "partitions": count,
                "replicationFactor": BROKERS,
                "config": REPLICATION,
            }
            # Tiny segments and a local retention of one byte make the leader copy and delete all
            # the time.
            if name in tiered:
                spec |= {"config": {**REPLICATION, **SEGMENTS}, "tiering": TIERING}
            self._cluster.kube.apply("Topic", name, spec)
        _await_led(self.admin, partitions)

    def kill(self, node: str) -> None:
        record = self._record(node)
        if record is not None:
            processes.kill(self._local.layout, record)

    def stop(self, node: str) -> None:
        record = self._record(node)
        if record is not None:
            processes.stop(self._local.layout, record, timeout_s=30)

    def start(self, node: str) -> None:
        if node == OPERATOR:
            self._local.start_operator()
        else:
            self._local.start_broker(_number(node))

    def signal(self, node: str, number: int) -> None:
        record = self._record(node)
        if record is not None:
            record.signal(number)

    def back_up(self) -> None:
        with self._without_control_plane() as etcd:
            shutil.rmtree(self._backup, ignore_errors=True)
            shutil.copytree(etcd, self._backup)

    def put_back(self) -> None:
        with self._without_control_plane() as etcd:
            shutil.rmtree(etcd)
            shutil.copytree(self._backup, etcd)

    def heads(self, topic: str) -> dict[int, bytes]:
        found = {}
        for path in (self._cluster.tier_folder / HEADS_PREFIX).glob("*/*.json"):
            body = path.read_bytes()
            if decode_head(body, str(path)).topic == topic:
                found[partition_of_head(str(path))] = body
        return found

    def put_head_back(self, topic: str, partition: int, body: bytes) -> bool:
        present = self.heads(topic).get(partition)
        if present is None:
            return False
        head, older = decode_head(present, topic), decode_head(body, topic)
        position = head.position
        # Every replica has to have recorded the present head on its disk.
        wanted = {"version": position.version, "commitId": position.commit_id}
        known = [self._known_head(number, topic, partition) for number in range(1, BROKERS + 1)]
        if older.version >= head.version or any(wanted.items() - state.items() for state in known):
            return False
        path = self._cluster.tier_folder / head_key(head.topic_id, partition)
        # A rename is atomic, as a store's PUT is.
        aside = self._cluster.tier_folder.with_name("old-head")
        aside.write_bytes(body)
        aside.rename(path)
        return True

    def tier_trouble(self, topics: Collection[str]) -> str:
        for name in topics:
            found = self._cluster.view(name).condition("TierIntegrity")
            if found.get("status") == "False":
                return f"{name}: {found.get('message')}"
        return ""

    def _known_head(self, node_id: int, topic: str, partition: int) -> dict[str, object]:
        """The position of the newest head in a replica's ``partition.state``."""
        state = read_state(self._cluster.log_folder(node_id, topic, partition)) or {}
        return state.get("head") or {}

    @contextmanager
    def _without_control_plane(self) -> Iterator[Path]:
        """Stop etcd and the API server, and yield etcd's directory."""
        record = self._record("control-plane")
        assert record is not None
        # A kill, as the data must not be younger than what the API server acknowledged.
        processes.kill(self._local.layout, record)
        try:
            yield self._local.layout.control_plane / "etcd"
        finally:
            self._local.start_control_plane()
        wait(self._answers, "the API server to answer")

    def _answers(self) -> bool:
        try:
            return self._cluster.kube.get("Cluster", self._local.settings.cluster) is not None
        except Exception:  # noqa: BLE001 - the request is repeated
            return False

    @property
    def _backup(self) -> Path:
        return self._local.layout.control_plane.with_name("etcd-backup")

    def _record(self, node: str) -> ProcessRecord | None:
        return processes.find(self._local.layout, node)


class KafkaTarget:
    """Apache Kafka's brokers; the controller, a process of its own, is left alone."""

    def __init__(self, running: KafkaNodes) -> None:
        self._running = running
        self.bootstrap = running.bootstrap
        self.admin = _admin(self.bootstrap)
        self.nodes = tuple(f"broker-{number}" for number in range(1, BROKERS + 1))

    @property
    def logs(self) -> list[Path]:
        return [self._running.log(_number(node)) for node in self.nodes]

    def create_topics(self, partitions: dict[str, int], tiered: Collection[str] = ()) -> None:
        wanted = [
            NewTopic(name, count, BROKERS, config=REPLICATION) for name, count in partitions.items()
        ]
        for made in self.admin.create_topics(wanted).values():
            made.result(30)
        _await_led(self.admin, partitions)

    def kill(self, node: str) -> None:
        self._running.kill(_number(node))

    def stop(self, node: str) -> None:
        self._running.stop([_number(node)])

    def start(self, node: str) -> None:
        self._running.start([_number(node)])

    def signal(self, node: str, number: int) -> None:
        record = self._running.find(_number(node))
        if record is not None:
            record.signal(number)

    def back_up(self) -> None:
        raise NotImplementedError("no plan does this to Apache Kafka")

    def put_back(self) -> None:
        raise NotImplementedError("no plan does this to Apache Kafka")

    def heads(self, topic: str) -> dict[int, bytes]:
        return {}

    def put_head_back(self, topic: str, partition: int, body: bytes) -> bool:
        raise NotImplementedError("no plan does this to Apache Kafka")

    def tier_trouble(self, topics: Collection[str]) -> str:
        return ""


def _number(node: str) -> int:
    return int(node.rpartition("-")[2])


@contextmanager
def tidemark(folder: Path) -> Iterator[DisturbedCluster]:
    """Stopped at the end."""
    with run_cluster(folder, brokers=BROKERS) as cluster:
        yield TidemarkTarget(cluster)


@contextmanager
def apache_kafka(folder: Path) -> Iterator[DisturbedCluster]:
    """Stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = kafka.KafkaOptions(brokers=BROKERS, controllers=1, java=kafka.STRONG)
    with kafka.running(folder, wanted) as running:
        target = KafkaTarget(running)
        try:
            yield target
        finally:
            # A process that is paused does not react to SIGTERM.
            for node in target.nodes:
                target.signal(node, signal.SIGCONT)


def served(bootstrap: str) -> Set[int]:
    """The API keys that the first broker names."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    with BlockingConnection(host, int(port), client_id="histories", timeout_s=_ASK_S) as connection:
        answer = connection.request(ApiVersionsRequest(), ApiVersionsResponse, _ASK_S)
    return frozenset(int(api_key.api_key) for api_key in answer.api_keys)


def leaders(admin: AdminClient, topics: list[str]) -> dict[tuple[str, int], str]:
    """Return the leader of each existing partition of the topics; nothing while no broker
    answers.
    """
    try:
        found = admin.list_topics(timeout=5).topics
    except KafkaException:
        return {}
    return {
        (name, number): f"broker-{partition.leader}"
        for name in topics
        if name in found
        for number, partition in found[name].partitions.items()
        if partition.leader > 0
    }


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 1})


def _await_led(admin: AdminClient, partitions: dict[str, int]) -> None:
    wanted = {(name, number) for name, count in partitions.items() for number in range(count)}
    wait(lambda: wanted <= leaders(admin, list(partitions)).keys(), "all topics to be led")
