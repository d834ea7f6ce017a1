"""The two sides of a comparison, started alike: a cluster of ours, and Apache Kafka."""

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests import apache_kafka as kafka
from tidemark.configuration.table import BROKER
from tidemark_cli.inspection.topic_rows import topic as topic_info
from tidemark_devcluster import processes
from tidemark_devcluster import settings as local_settings
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.own_brokers import LOCAL_INTERVALS_MS, READY_TIMEOUT_S, LocalOwnBrokers

OURS, KAFKA = "Tidemark", "Apache Kafka"
_POLL_S = 0.05
_TIMEOUT_S = 120.0
#: One client opens thousands of connections; Apache Kafka has no such limits by itself.
_UNLIMITED = {
    "max.connections": "50000",
    "max.connections.per.ip": "50000",
    "tidemark.connection.creation.rate.per.ip": "1000000",
}
#: The defaults, as Kafka's brokers have theirs. A local cluster has shorter ones.
_INTERVALS = {name: BROKER[name].default or "" for name in LOCAL_INTERVALS_MS}
#: Program of a broker that records its stalls.
RECORDER = "tests.benchmarks.latency.stall_recorder"


@dataclass(frozen=True, slots=True)
class BenchmarkSide:
    """Running brokers.

    ``pids``: their processes now; ``create``: create a topic with the given partitions and
    replicas, all led; ``delete``: request the deletion of a topic; ``restart``: stop broker 1, and
    return the function that starts it again; ``metrics``: addresses of the brokers' metrics, none
    for Apache Kafka; ``store_pids``: processes of the remote store.
    """

    name: str
    bootstrap: str
    pids: Callable[[], Sequence[int]]
    create: Callable[[str, int, int], None]
    delete: Callable[[str], object]
    restart: Callable[[], Callable[[], object]]
    stop: Callable[[], object]
    metrics: Callable[[], Sequence[str]] = tuple
    store_pids: Callable[[], Sequence[int]] = tuple
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def topic(self, partitions: int = 1, replicas: int = 1) -> str:
        """Create a topic with a new name."""
        name = f"bench-{next(self._numbers)}"
        self.create(name, partitions, replicas)
        return name


def start_kafka(folder: Path, brokers: int, *, tiered: bool = False) -> BenchmarkSide:
    """Apache Kafka, broker 1 its controller too. ``tiered``: with LocalTieredStorage."""
    options = kafka.KafkaOptions(
        brokers=brokers,
        java=kafka.STRONG,
        tiered=tiered,
        # Segments of a tiered topic leave the local log soon.
        entries=kafka.QUICK if tiered else {},
    )
    started = kafka.start(folder, options)
    # Replication factors are the caller's. Kafka's defaults are of no account here.
    admin = AdminClient({"bootstrap.servers": started.bootstrap, "log_level": 1})

    def create(name: str, partitions: int, replicas: int) -> None:
        admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(60)

        # Brokers answer the creation before they know the topic.
        def led() -> bool:
            found = admin.list_topics(name, timeout=10).topics[name]
            rows = found.partitions.values()
            return len(rows) == partitions and all(len(row.isrs) == replicas for row in rows)

        _wait(led, f"{name} to be led")

    def restart() -> Callable[[], object]:
        started.stop([1])
        return lambda: started.start([1])

    return BenchmarkSide(
        KAFKA,
        started.bootstrap,
        lambda: [found.pid for node in started.broker_ids() if (found := started.find(node))],
        create,
        lambda name: admin.delete_topics([name])[name].result(60),
        restart,
        started.stop_all,
    )


class _Recorded(LocalOwnBrokers):
    """Brokers that record their stalls."""

    def _start(self, node_id: int) -> processes.ProcessRecord:
        config = self._layout.broker_config(node_id)
        self._await_certificate(node_id)
        command = [sys.executable, "-m", RECORDER, "--config", str(config)]
        return processes.ensure(
            self._layout, f"broker-{node_id}", command, timeout_s=READY_TIMEOUT_S
        )


class _Proxied(LocalCluster):
    """Local cluster that may have a proxy before its store."""

    store_proxy: Callable[[str], str] | None = None

    def start_tier(self) -> dict[str, Any]:
        storage = super().start_tier()
        if self.store_proxy is not None:
            storage["s3"]["endpoint"] = self.store_proxy(storage["s3"]["endpoint"])
        return storage


def start_tidemark(
    folder: Path,
    brokers: int,
    *,
    recorded: bool = False,
    tiered: bool = False,
    tier: str = "s3",
    entries: Mapping[str, str] | None = None,
    store_proxy: Callable[[str], str] | None = None,
) -> BenchmarkSide:
    """A whole local cluster; topics are untiered as Kafka's are.

    ``recorded``: brokers write their stalls beside their configuration files when they stop.
    ``tiered``: segments leave the local log soon. ``tier``: where to, ``s3`` for a MinIO, or
    ``directory``. ``entries``: of each broker's configuration. ``store_proxy``: returns the
    endpoint that brokers have instead of the MinIO's.
    """
    layout = Layout(folder / "cluster")
    layout.create()
    settings = local_settings.choose(
        layout, cluster="tidemark", tier=tier if tiered else "directory"
    )
    chosen = (_UNLIMITED if tiered else _UNLIMITED | _INTERVALS) | dict(entries or {})
    cluster = _Proxied(layout, settings, lambda _: None, entries=chosen)
    cluster.store_proxy = store_proxy
    if recorded:
        cluster.brokers = _Recorded(layout, settings, cluster.kubeconfig, chosen)
    addresses = cluster.start(brokers=brokers)
    kube = cluster.kube()

    def create(name: str, partitions: int, replicas: int) -> None:
        spec = {"partitions": partitions, "replicationFactor": replicas}
        kube.apply("Topic", name, {"clusterRef": {"name": "tidemark"}, **spec})

        def led() -> bool:
            rows = topic_info(kube, name).rows
            return len(rows) == partitions and all(len(row.isr) == replicas for row in rows)

        _wait(led, f"{name} to be led")

    # Process ids change with a restart, so they are looked up each time.
    def records(*names: str) -> list[processes.ProcessRecord]:
        found = (processes.find(layout, name) for name in names)
        return [record for record in found if record is not None]

    names = [f"broker-{node}" for node in range(1, brokers + 1)]

    def restart() -> Callable[[], object]:
        cluster.stop_broker(1)
        return lambda: cluster.start_broker(1)

    def stop() -> None:
        kube.close()
        cluster.stop()

    return BenchmarkSide(
        OURS,
        addresses.bootstrap,
        lambda: [record.pid for record in records(*names)],
        create,
        lambda name: kube.delete("Topic", name),
        restart,
        stop,
        lambda: [record.ready["metrics"] for record in records(*names)],
        lambda: [record.pid for record in records("minio")],
    )


STARTS: Mapping[str, Callable[[Path, int], BenchmarkSide]] = {
    KAFKA: start_kafka,
    OURS: start_tidemark,
}


def _wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_TIMEOUT_S:.0f} s for {what}")
        time.sleep(_POLL_S)
