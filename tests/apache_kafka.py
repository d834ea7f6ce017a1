"""Apache Kafka for tests and benchmarks, as ``tidemark up --engine kafka`` starts it.

``with running(folder, Wanted(brokers=3, controllers=3, tiered=True)) as kafka:`` is a cluster of
one's own, for tests that kill nodes; the fixture ``apache_kafka`` (tests/conftest.py) is the one
that all others share.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import kafka_classes
from tidemark_devcluster.kafka_nodes import QUICK, KafkaNodes
from tidemark_devcluster.kafka_properties import BrokerPorts
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.ports import free_ports
from tidemark_devcluster.toolchain.maven import KAFKA, MavenMissing, ensure_jars

VERSION = KAFKA.version
#: Of JVMs that are measured, or that work for minutes.
STRONG = ("-Xmx1g", "-Xms1g")

__all__ = [
    "KAFKA",
    "QUICK",
    "STRONG",
    "VERSION",
    "KafkaOptions",
    "MavenMissing",
    "jars",
    "running",
    "start",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """``controllers``: nodes that are nothing else; 0: the first broker is the controller, too.
    ``entries``: of each node's configuration. ``ports``, ``racks``, ``advertised`` (as
    ``localhost:19092``): of the first broker first; none: free ports, no racks, what is bound.
    ``first_node``: the first broker's id. ``tiered``: LocalTieredStorage in ``FOLDER/tier``.
    ``java``: flags of each JVM; none: light ones."""

    brokers: int = 1
    controllers: int = 0
    entries: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[int] = ()
    advertised: Sequence[str] = ()
    racks: Sequence[str] = ()
    first_node: int = 1
    tiered: bool = False
    java: Sequence[str] = ()


def jars() -> Path:
    """The folder of Kafka's jars. Raises MavenMissing."""
    return ensure_jars(KAFKA)


def start(folder: Path, wanted: KafkaOptions | None = None) -> KafkaNodes:
    """Create a cluster in a folder and start all of it; the caller stops it.

    Raises MavenMissing.
    """
    wanted = wanted or KafkaOptions()
    layout = Layout(folder)
    layout.create()
    nodes = KafkaNodes(layout)
    nodes.create(
        controllers=wanted.controllers,
        replicas=min(3, wanted.brokers),
        tier=layout.tier if wanted.tiered else None,
        java=wanted.java or kafka_classes.flags(jars()),
        entries=wanted.entries,
        first_broker=wanted.first_node,
    )
    # Free ports unless the caller names some, as a suite may require.
    for number in range(wanted.brokers):
        clients, replication = free_ports(2)
        ports = BrokerPorts(
            clients=wanted.ports[number] if wanted.ports else clients,
            replication=replication,
            advertised=wanted.advertised[number] if wanted.advertised else "",
            rack=wanted.racks[number] if wanted.racks else "",
        )
        nodes.declare_broker(wanted.first_node + number, ports)
    # A node that does not start leaves the others running, so everything is stopped.
    try:
        nodes.start_all()
    except BaseException:
        nodes.stop_all()
        raise
    return nodes


@contextmanager
def running(folder: Path, wanted: KafkaOptions | None = None) -> Iterator[KafkaNodes]:
    """The same, stopped at the end."""
    nodes = start(folder, wanted)
    try:
        yield nodes
    finally:
        nodes.stop_all()
