"""Targets of a suite: a cluster of ours, or Apache Kafka itself, whose result shows which tests
apply.

Both start alike, with the number of brokers and the settings that the suite's authors use. A suite
may require certain ports, or other advertised ports (behind a proxy).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests import apache_kafka as kafka
from tidemark.configuration import table
from tidemark.configuration.broker_keys import UNDER_REPLICATED_CREATION
from tidemark_devcluster import settings as local_settings
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_devcluster.layout import Layout, read_json, write_json
from tidemark_devcluster.own_brokers import LOCAL_INTERVALS_MS
from tidemark_devcluster.ports import HOST

#: The release that suites receive; they leave out newer features.
KAFKA_VERSION = kafka.VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """Requirements of a suite.

    ``entries``: of the configuration, by Kafka's names. ``first_node``: the id of the first broker.
    ``ports`` and ``advertised``: first broker first; none: free ports, advertised as they are
    bound. ``host``: advertised host on the loopback. ``racks``: first broker first; none: no racks.
    ``stops_brokers``: whether the suite stops brokers, so that none of them may be the controller.
    ``kafka_entries``: further entries for Apache Kafka alone, for keys that ours lacks.
    """

    brokers: int = 3
    first_node: int = 1
    entries: Mapping[str, str] = field(default_factory=dict)
    kafka_entries: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[int] = ()
    advertised: Sequence[int] = ()
    host: str = HOST
    racks: Sequence[str] = ()
    stops_brokers: bool = False


class SuiteTarget(Protocol):
    @property
    def name(self) -> str:
        """Name of the software."""

    @property
    def listeners(self) -> Sequence[str]:
        """Bound address of each broker, the first one first; it may differ from the advertised
        one.
        """

    def log_folders(self, topic: str, partition: int) -> list[Path]:
        """Return the log folder of each replica."""

    def log_file(self, node: int) -> Path:
        """Return the log file of a broker."""

    def stop_broker(self, node: int) -> None:
        """Shut it down cleanly."""

    def start_broker(self, node: int) -> None:
        """Start it again, and wait until it serves."""


def bootstrap(target: SuiteTarget) -> str:
    """All of its brokers, as Kafka lists them."""
    return ",".join(target.listeners)


# ---------------------------------------------------------------- ours


@dataclass(frozen=True, slots=True)
class Tidemark:
    """A local cluster: real control plane, operator, broker processes."""

    local: LocalCluster
    listeners: Sequence[str]
    name: str = "Tidemark"

    def log_folders(self, topic: str, partition: int) -> list[Path]:
        brokers = map(self.local.layout.broker_data, self.local.layout.broker_ids())
        return [found for data in brokers for found in data.glob(f"**/{topic}-{partition}")]

    def log_file(self, node: int) -> Path:
        return self.local.layout.log(f"broker-{node}")

    def stop_broker(self, node: int) -> None:
        self.local.stop_broker(node)

    def start_broker(self, node: int) -> None:
        self.local.start_broker(node)


@contextmanager
def tidemark(folder: Path, wants: Wants) -> Iterator[SuiteTarget]:
    """Start a cluster of ours in ``folder``, and stop it at the end."""
    layout = Layout(folder)
    layout.create()
    settings = local_settings.choose(layout, cluster="tidemark", tier="directory")
    local = LocalCluster(layout, settings, lambda _: None)
    nodes = range(wants.first_node, wants.first_node + wants.brokers)
    try:
        # Some of Kafka's broker keys are settings of the Cluster here, and others of each broker.
        cluster, broker = divided(wants.entries)
        # The brokers' files are changed before any of them starts.
        local.start(brokers=0)
        _configure(local, cluster)
        listeners = [_declare(local, node, wants, broker) for node in nodes]
        local.start_brokers(nodes)
        yield Tidemark(local, listeners)
    finally:
        local.stop()


def divided(entries: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Those of the Cluster, and those of each broker's file. Raises ValueError for what is neither,
    so that no suite runs with a setting that nothing obeys."""
    unknown = sorted(set(entries) - set(table.CLUSTER) - set(table.BROKER))
    if unknown:
        raise ValueError(f"our brokers know nothing of {', '.join(unknown)}")
    cluster = {name: value for name, value in entries.items() if name in table.CLUSTER}
    return cluster, {name: value for name, value in entries.items() if name not in cluster}


def _configure(local: LocalCluster, entries: Mapping[str, str]) -> None:
    """Into the Cluster's own configuration, as its user would."""
    kube = local.kube()
    name = local.settings.cluster
    spec = (kube.get("Cluster", name) or {"spec": {}})["spec"]
    # As Apache Kafka, which suites expect: a topic has its replicas, or it is not made.
    config = {**spec.get("config", {}), UNDER_REPLICATED_CREATION: "false", **entries}
    kube.apply("Cluster", name, {**spec, "config": config})
    kube.close()


def _declare(local: LocalCluster, node: int, wants: Wants, entries: Mapping[str, str]) -> str:
    """A broker that is not started yet, on the port that the suite needs; where it will listen."""
    local.brokers.declare_broker(node)
    path = local.layout.broker_config(node)
    settings = read_json(path) or {}
    # Suites expect Kafka's own setting: records dated 1970 would otherwise expire at once.
    kept = {name: settings[name] for name in settings.keys() - LOCAL_INTERVALS_MS.keys()}
    config = {**kept, **entries}
    number = node - wants.first_node
    if wants.ports:
        config["listeners"] = f"127.0.0.1:{wants.ports[number]}"
    # As Apache Kafka is started here: suites look whether the file says it.
    config["advertised.listeners"] = (
        f"{wants.host}:{wants.advertised[number]}" if wants.advertised else config["listeners"]
    )
    if wants.racks:
        config["broker.rack"] = wants.racks[number]
    write_json(path, config)
    return str(config["listeners"])


# ---------------------------------------------------------------- the oracle


@dataclass(frozen=True, slots=True)
class Oracle:
    """Apache Kafka as reference."""

    kafka: KafkaNodes
    name: str = "Apache Kafka"

    @property
    def listeners(self) -> Sequence[str]:
        return [self.kafka.address(node) for node in self.kafka.broker_ids()]

    def log_folders(self, topic: str, partition: int) -> list[Path]:
        folders = map(self.kafka.data, self.kafka.broker_ids())
        return [found for data in folders for found in data.glob(f"{topic}-{partition}")]

    def log_file(self, node: int) -> Path:
        return self.kafka.log(node)

    def stop_broker(self, node: int) -> None:
        self.kafka.stop([node])

    def start_broker(self, node: int) -> None:
        self.kafka.start([node])


@contextmanager
def apache_kafka(folder: Path, wants: Wants) -> Iterator[SuiteTarget]:
    """Start Apache Kafka in ``folder``, and stop it at the end. Raises MavenMissing."""
    wanted = kafka.KafkaOptions(
        brokers=wants.brokers,
        entries={**wants.entries, **wants.kafka_entries},
        ports=wants.ports,
        advertised=[f"{wants.host}:{port}" for port in wants.advertised],
        racks=wants.racks,
        first_node=wants.first_node,
        controllers=1 if wants.stops_brokers else 0,
        java=kafka.STRONG,
    )
    with kafka.running(folder, wanted) as nodes:
        yield Oracle(nodes)
