"""What the ``server.properties`` of each node of a local Apache Kafka say.

A node is a broker, a controller, or both: without controllers of their own the first broker is the
controller too, which is the quickest to start; with them any broker may be killed, and with three
any controller. Every broker has a listener for clients and one for the other brokers, so that what
clients have to prove (``entries``) is no matter of replication.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemark_cli.ports import HOST

CLIENTS, REPLICATION, CONTROLLER = "CLIENTS", "REPLICATION", "CONTROLLER"
#: The id of the first controller that is no broker.
FIRST_CONTROLLER = 1000
#: Remote storage in a folder, of Kafka's own tests; it is in a jar of theirs.
LOCAL_TIERED_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
METADATA_PARTITIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all nodes of one cluster have in common. ``voters``: the controllers' ports by node id;
    ``replicas``: of Kafka's own topics; ``tier``: the folder that is the remote storage, "" for a
    cluster without one; ``java``: flags of each JVM; ``entries``: more of their configuration."""

    cluster_id: str
    voters: Mapping[int, int]
    replicas: int
    tier: str = ""
    java: Sequence[str] = ()
    entries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """Where a broker listens on the loopback; ``advertised``: what clients are told instead, as
    ``localhost:19092``; ``rack``: "" for none."""

    clients: int
    replication: int
    advertised: str = ""
    rack: str = ""


def controller_entries(plan: Plan, node: int, log_dir: str) -> dict[str, str]:
    """Of a controller that is no broker."""
    return {
        **_common(plan, node, log_dir),
        "process.roles": "controller",
        "listeners": _addresses({CONTROLLER: plan.voters[node]}),
        **plan.entries,
    }


def broker_entries(plan: Plan, node: int, log_dir: str, ports: BrokerPorts) -> dict[str, str]:
    """Of a broker, which is a controller too where it is one of the voters."""
    listeners = {CLIENTS: ports.clients, REPLICATION: ports.replication}
    own = {CONTROLLER: plan.voters[node]} if node in plan.voters else {}
    told = ports.advertised or f"{HOST}:{ports.clients}"
    replicas, in_sync = str(plan.replicas), str(min(2, plan.replicas))
    entries = {
        **_common(plan, node, log_dir),
        "process.roles": "broker,controller" if own else "broker",
        "listeners": _addresses(listeners | own),
        "advertised.listeners": (
            f"{CLIENTS}://{told},{_addresses({REPLICATION: ports.replication})}"
        ),
        "inter.broker.listener.name": REPLICATION,
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
    """A ``.properties`` file; Java reads it as ISO 8859-1, with backslashes as escapes."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in entries.items())


def client_address(entries: Mapping[str, str]) -> tuple[int, bool]:
    """The port that a broker binds for clients, and whether it speaks to them in clear without
    asking who they are."""
    bound = dict(each.split("://") for each in entries["listeners"].split(","))
    spoken = dict(each.split(":") for each in entries["listener.security.protocol.map"].split(","))
    return int(bound[CLIENTS].rpartition(":")[2]), spoken[CLIENTS] == "PLAINTEXT"


def protocol_map(clients: str = "PLAINTEXT", replication: str = "PLAINTEXT") -> str:
    """``listener.security.protocol.map`` with what clients and other brokers have to speak."""
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
    # The controllers refuse tiered topics where they do not know that there is a remote storage.
    return entries | ({"remote.log.storage.system.enable": "true"} if plan.tier else {})


def _remote_storage(plan: Plan) -> dict[str, str]:
    return {
        "remote.log.storage.manager.class.name": LOCAL_TIERED_STORAGE,
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": plan.tier,
        "remote.log.metadata.manager.listener.name": REPLICATION,
        "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(plan.replicas),
        # A broker that is stopped soon after its start asks itself for that topic until then.
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
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
