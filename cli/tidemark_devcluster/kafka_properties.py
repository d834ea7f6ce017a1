"""Contents of ``server.properties`` for each node of a local Apache Kafka.

A node is a broker, a controller, or both. Without dedicated controllers the first broker is the
controller, which starts fastest. With one, any broker may be killed; with three, any controller
too. Clients and brokers have separate listeners, so that authentication of clients (``entries``)
does not affect replication.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemark_devcluster.ports import HOST

CLIENTS, REPLICATION, CONTROLLER = "CLIENTS", "REPLICATION", "CONTROLLER"
#: Node id of the first dedicated controller.
FIRST_CONTROLLER = 1000
#: Remote storage in a folder, from Kafka's test jar.
LOCAL_TIERED_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
METADATA_PARTITIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings that all nodes of a cluster share.

    ``voters``: controller ports by node id. ``replicas``: replication factor of Kafka's internal
    topics. ``tier``: folder of the remote storage, "" for none. ``java``: JVM flags. ``entries``:
    further configuration.
    """

    cluster_id: str
    voters: Mapping[int, int]
    replicas: int
    tier: str = ""
    java: Sequence[str] = ()
    entries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """Loopback ports of a broker.

    ``advertised``: address that clients receive instead, such as ``localhost:19092``. ``rack``: ""
    for none.
    """

    clients: int
    replication: int
    advertised: str = ""
    rack: str = ""


def controller_entries(plan: Plan, node: int, log_dir: str) -> dict[str, str]:
    """Return the configuration of a dedicated controller."""
    return {
        **_common(plan, node, log_dir),
        "process.roles": "controller",
        "listeners": _addresses({CONTROLLER: plan.voters[node]}),
        **plan.entries,
    }


def broker_entries(plan: Plan, node: int, log_dir: str, ports: BrokerPorts) -> dict[str, str]:
    """Return the ``server.properties`` of a broker.

    The broker is also a controller if it is among the plan's voters.
    """
    listeners = {CLIENTS: ports.clients, REPLICATION: ports.replication}
    own = {CONTROLLER: plan.voters[node]} if node in plan.voters else {}
    advertised = ports.advertised or f"{HOST}:{ports.clients}"
    replicas, in_sync = str(plan.replicas), str(min(2, plan.replicas))
    entries = {
        **_common(plan, node, log_dir),
        "process.roles": "broker,controller" if own else "broker",
        "listeners": _addresses(listeners | own),
        "advertised.listeners": (
            f"{CLIENTS}://{advertised},{_addresses({REPLICATION: ports.replication})}"
        ),
        "inter.broker.listener.name": REPLICATION,
        # Kafka's defaults (factor 3, min ISR 2) would block the internal topics of a smaller
        # cluster.
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "auto.create.topics.enable": "false",
    }
    if ports.rack:
        entries["broker.rack"] = ports.rack
    if plan.tier:
        entries |= _remote_storage(plan)
    return {**entries, **plan.entries}


def properties_text(entries: Mapping[str, str]) -> str:
    """Return a ``.properties`` file; Java reads it as ISO 8859-1, with backslash escapes."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in entries.items())


def client_address(entries: Mapping[str, str]) -> tuple[int, bool]:
    """Return the port that a broker binds for clients, and whether that listener is PLAINTEXT."""
    bound = dict(listener.split("://") for listener in entries["listeners"].split(","))
    protocols = dict(
        listener.split(":") for listener in entries["listener.security.protocol.map"].split(",")
    )
    return int(bound[CLIENTS].rpartition(":")[2]), protocols[CLIENTS] == "PLAINTEXT"


def protocol_map(clients: str = "PLAINTEXT", replication: str = "PLAINTEXT") -> str:
    """Return ``listener.security.protocol.map`` for the given protocols of clients and brokers."""
    return f"{CLIENTS}:{clients},{REPLICATION}:{replication},{CONTROLLER}:PLAINTEXT"


def _common(plan: Plan, node: int, log_dir: str) -> dict[str, str]:
    voters = ",".join(f"{voter}@{HOST}:{port}" for voter, port in sorted(plan.voters.items()))
    entries = {
        "node.id": str(node),
        "controller.quorum.voters": voters,
        "controller.listener.names": CONTROLLER,
        "listener.security.protocol.map": protocol_map(),
        "log.dirs": log_dir,
    }
    # Controllers validate topic configs: without this they refuse tiered topics.
    return entries | ({"remote.log.storage.system.enable": "true"} if plan.tier else {})


def _remote_storage(plan: Plan) -> dict[str, str]:
    return {
        "remote.log.storage.manager.class.name": LOCAL_TIERED_STORAGE,
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": plan.tier,
        "remote.log.metadata.manager.listener.name": REPLICATION,
        "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(plan.replicas),
        # A broker that stops soon after its start waits for the metadata topic for this long.
        "rlmm.config.remote.log.metadata.common.client.default.api.timeout.ms": "3000",
        "rlmm.config.remote.log.metadata.common.client.request.timeout.ms": "2000",
    }


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())


def _escaped(value: str) -> str:
    return "".join(map(_escaped_char, value))


def _escaped_char(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if " " <= char <= "~":
        return char
    # Java escapes UTF-16 code units, so a character outside the BMP needs two escapes.
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
