"""Start, stop and kill the nodes of a local Apache Kafka, from its published jars.

Nodes are processes of the local cluster, with settings in its folder. A broker is ready when the
metadata that it returns contains itself: then it is registered and unfenced. Processes and their
logs are named ``broker-N`` and ``controller-N``.
"""

import base64
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse

from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError
from tidemark_devcluster import processes
from tidemark_devcluster.kafka_properties import (
    CLIENTS,
    FIRST_CONTROLLER,
    BrokerPorts,
    Plan,
    broker_entries,
    client_address,
    controller_entries,
    properties_text,
)
from tidemark_devcluster.layout import Layout, LayoutError, read_json, write_json
from tidemark_devcluster.ports import HOST, free_ports
from tidemark_devcluster.processes import ProcessRecord
from tidemark_devcluster.toolchain.maven import KAFKA, ensure_jars, java

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 40.0
_REQUEST_TIMEOUT_S = 2.0
_META = "meta.properties"
_LOGGER = "-Dorg.slf4j.simpleLogger"
_LOG_FLAGS = (
    f"{_LOGGER}.defaultLogLevel=warn",
    f"{_LOGGER}.showDateTime=true",
    f"{_LOGGER}.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
)
#: For a JVM that shares a machine: the optimizing compiler pays off only after minutes.
LIGHT = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

#: A dedicated controller, so that any broker may be stopped or killed.
CONTROLLERS = 1
#: Shorter than in production, so that effects are visible within seconds.
QUICK = {
    "remote.log.manager.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "1000",
}


class KafkaNodes:
    """Nodes of one folder, running or not.

    Raises LayoutError for a damaged file, processes.ProcessStartError, and ToolchainError if Kafka
    is not available.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._folder = layout.root / "kafka"

    # ------------------------------------------------------------ settings

    def exists(self) -> bool:
        """Return whether the folder has a cluster."""
        return self._plan_path.exists()

    def create(
        self,
        *,
        controllers: int,
        replicas: int,
        tier: Path | None = None,
        java: Sequence[str] = LIGHT,
        entries: Mapping[str, str] | None = None,
        first_broker: int = 1,
    ) -> None:
        """Write the settings that all nodes of a new cluster share and that never change.

        ``controllers``: number of dedicated controllers; 0 makes the first broker a controller too.
        ``replicas``: replication factor of Kafka's internal topics. ``tier``: folder for
        LocalTieredStorage; None for no remote storage. ``java``: JVM flags. ``entries``: further
        configuration.
        """
        self._folder.mkdir(exist_ok=True, mode=0o700)
        # Without dedicated controllers the range is empty, and the first broker is the only voter.
        nodes = range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers) or [first_broker]
        plan = Plan(
            cluster_id=new_id(),
            voters=dict(zip(nodes, free_ports(len(nodes)), strict=True)),
            replicas=replicas,
            tier="" if tier is None else str(tier),
            java=tuple(java),
            entries=dict(entries or {}),
        )
        voters = {str(node): port for node, port in plan.voters.items()}
        write_json(self._plan_path, {**asdict(plan), "voters": voters})
        for node in plan.voters:
            if node >= FIRST_CONTROLLER:
                self._write(node, controller_entries(plan, node, self._log_dir(node)))

    def prepare(self, brokers: int) -> None:
        """Create the cluster of ``tidemark up`` if the folder has none, and start all its nodes.

        ``brokers``: number of brokers to declare. Raises ToolchainError without Java or Maven.
        """
        if not self.exists():
            self.layout.tier.mkdir(exist_ok=True)
            self.create(
                controllers=CONTROLLERS,
                replicas=min(3, brokers),
                tier=self.layout.tier,
                entries=QUICK,
            )
        for node in range(1, brokers + 1):
            self.declare_broker(node)
        self.start_all()

    def declare_broker(self, node: int, ports: BrokerPorts | None = None) -> None:
        """Choose the ports of a broker, unless it has a configuration."""
        if self._path(node).exists():
            return
        clients, replication = free_ports(2)
        chosen = ports or BrokerPorts(clients=clients, replication=replication)
        self._write(node, broker_entries(self.plan(), node, self._log_dir(node), chosen))

    def plan(self) -> Plan:
        """Return the settings that all nodes share."""
        value = read_json(self._plan_path)
        if value is None:
            raise FileNotFoundError(f"{self.layout.root} contains no Apache Kafka cluster")
        try:
            voters = {int(node): int(port) for node, port in value["voters"].items()}
            return Plan(**{**value, "voters": voters})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LayoutError(
                f"{self._plan_path} was not written by `tidemark up`: remove the folder"
            ) from error

    def broker_ids(self) -> list[int]:
        """Return the ids of all brokers that were ever added to the folder, ascending."""
        node_ids = (int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdigit())
        return sorted(node for node in node_ids if node < FIRST_CONTROLLER)

    def controller_ids(self) -> list[int]:
        """Return the ids of the dedicated controllers."""
        return [node for node in sorted(self.plan().voters) if node >= FIRST_CONTROLLER]

    def address(self, node: int) -> str:
        """Return the address at which this machine reaches a broker, independent of its
        advertised one.
        """
        return f"{HOST}:{client_address(self.entries(node))[0]}"

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all brokers, including stopped ones."""
        return ",".join(map(self.address, self.broker_ids()))

    def entries(self, node: int) -> dict[str, str]:
        """Return the configuration of a node."""
        return dict(read_json(self._path(node)) or {})

    def data(self, node: int) -> Path:
        """Return the log directory of a node."""
        return Path(self._log_dir(node))

    def log(self, node: int) -> Path:
        """Return the path of a node's process log."""
        return self.layout.log(name_of(node))

    def find(self, node: int) -> ProcessRecord | None:
        """Return the process of a node if it runs."""
        return processes.find(self.layout, name_of(node))

    # ------------------------------------------------------------ operations

    def start(self, nodes: Iterable[int]) -> list[ProcessRecord]:
        """Start the nodes that do not run, in parallel, and wait until each is ready."""
        started = list(nodes)
        self._format(started)
        with ThreadPoolExecutor(max(1, len(started))) as pool:
            return list(pool.map(self._start, started))

    def start_all(self) -> list[ProcessRecord]:
        """Start all nodes and wait until the metadata of each broker contains every broker."""
        brokers = self.broker_ids()
        records = self.start([*self.controller_ids(), *brokers])
        self._await_all_known(brokers)
        return records

    def stop(self, nodes: Iterable[int]) -> bool:
        """Shut nodes down cleanly, in parallel; return False if one had to be killed."""
        stopped = list(nodes)
        with ThreadPoolExecutor(max(1, len(stopped))) as pool:
            return all(list(pool.map(self._stop, stopped)))

    def stop_all(self) -> None:
        """Stop all nodes, controllers last, as brokers hand their leaderships over through them."""
        voters = sorted(self.plan().voters)
        self.stop(node for node in self.broker_ids() if node not in voters)
        self.stop(voters)

    def kill(self, node: int) -> bool:
        """Kill a node with SIGKILL; return False if it did not run."""
        record = self.find(node)
        if record is not None:
            processes.kill(self.layout, record)
        return record is not None

    # ------------------------------------------------------------ internals

    @property
    def _plan_path(self) -> Path:
        return self._folder / "cluster.json"

    def _path(self, node: int) -> Path:
        return self._folder / f"{node}.json"

    def _log_dir(self, node: int) -> str:
        return str(self._folder / str(node))

    def _write(self, node: int, entries: Mapping[str, str]) -> None:
        write_json(self._path(node), dict(entries))

    def _java(self) -> list[str]:
        return [
            *(str(java()), *self.plan().java, *_LOG_FLAGS),
            *("-cp", f"{ensure_jars(KAFKA)}/*"),
        ]

    def _start(self, node: int) -> ProcessRecord:
        entries, properties = self.entries(node), self._folder / f"{node}.properties"
        properties.write_text(properties_text(entries), encoding="ascii")
        return processes.ensure(
            self.layout,
            name_of(node),
            [*self._java(), "kafka.Kafka", str(properties)],
            timeout_s=START_TIMEOUT_S,
            ready=_readiness(node, entries),
        )

    def _stop(self, node: int) -> bool:
        record = self.find(node)
        return record is None or processes.stop(self.layout, record, timeout_s=STOP_TIMEOUT_S)

    def _format(self, nodes: Sequence[int]) -> None:
        """Create the missing log directories of the nodes.

        Kafka's tool formats one directory. The others are copies with their own node IDs, as each
        run of the tool costs a JVM.
        """
        missing = [node for node in nodes if not (self.data(node) / _META).exists()]
        if not missing:
            return
        pattern = self._folder / "formatted"
        if not (pattern / _META).exists():
            self._format_pattern(pattern, self.entries(missing[0]))
        for node in missing:
            # A rename publishes the directory, so that a crash never leaves a half-formatted one.
            unpublished = self.data(node).with_suffix(".part")
            shutil.rmtree(unpublished, ignore_errors=True)
            shutil.copytree(pattern, unpublished)
            meta = (unpublished / _META).read_text(encoding="ascii")
            (unpublished / _META).write_text(own_meta(meta, node), encoding="ascii")
            unpublished.rename(self.data(node))

    def _format_pattern(self, folder: Path, entries: Mapping[str, str]) -> None:
        """Format one log directory with Kafka's StorageTool, as the original of all copies.

        ``entries``: configuration of any node. Raises ProcessStartError if the tool fails.
        """
        properties = self._folder / "formatted.properties"
        # The tool formats every directory in ``log.dirs``.
        text = properties_text({**entries, "log.dirs": str(folder)})
        properties.write_text(text, encoding="ascii")
        done = subprocess.run(
            [
                *(*self._java(), "kafka.tools.StorageTool", "format"),
                *("--cluster-id", self.plan().cluster_id, "--config", str(properties)),
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()
            raise processes.ProcessStartError(
                f"Apache Kafka's log directories cannot be formatted: {output[-2000:]}"
            )

    def _await_all_known(self, brokers: Sequence[int]) -> None:
        """Wait until the metadata of each broker contains all brokers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in brokers:
            port, in_clear = client_address(self.entries(node))
            while in_clear and not set(brokers) <= known_brokers(port):
                if time.monotonic() > deadline:
                    raise processes.ProcessStartError(
                        f"broker {node} does not know all of {brokers} after "
                        f"{START_TIMEOUT_S:.0f} s"
                    )
                time.sleep(0.05)


def name_of(node: int) -> str:
    """Return the name of a node's process."""
    return f"controller-{node}" if node >= FIRST_CONTROLLER else f"broker-{node}"


def new_id() -> str:
    """Return a random id in Kafka's format.

    Like Kafka's own ids, it does not start with "-", as Kafka's tools would take it for an option.
    """
    while (new := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode())[0] == "-":
        pass
    return new


def own_meta(text: str, node: int) -> str:
    """Return ``meta.properties`` for a node, derived from that of another node of the cluster."""
    own = {"node.id": str(node), "directory.id": new_id()}
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return "".join(f"{key}={own.get(key, value)}\n" for key, _, value in lines)


def known_brokers(port: int) -> set[int]:
    """Return the broker IDs in the metadata of the broker at a loopback port.

    The result is empty if the broker does not answer.
    """
    request = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    try:
        with BlockingConnection(
            HOST, port, client_id="tidemark", timeout_s=_REQUEST_TIMEOUT_S
        ) as connection:
            answer = connection.request(request, MetadataResponse, _REQUEST_TIMEOUT_S)
    except (OSError, FrameError):
        return set()
    return {int(broker.node_id) for broker in answer.brokers}


def _readiness(node: int, entries: Mapping[str, str]) -> Callable[[], dict[str, Any] | None]:
    """Return a function that checks whether a node is ready to serve.

    The function returns the content for the node's process record, or None while it is not ready.
    """
    if "broker" not in entries["process.roles"]:
        port = int(entries["listeners"].rpartition(":")[2])
        return lambda: {"ready": True} if _listens(port) else None
    # A listener with TLS or SASL cannot be queried without credentials: an open port must suffice.
    port, in_clear = client_address(entries)

    def ready() -> dict[str, Any] | None:
        serves = node in known_brokers(port) if in_clear else _listens(port)
        return {"ready": True, **_listener(port, in_clear=in_clear)} if serves else None

    return ready


def _listener(port: int, *, in_clear: bool) -> dict[str, Any]:
    """Return the listener in the form of Tidemark brokers' ready lines."""
    address = f"{HOST}:{port}"
    clients = {
        "name": CLIENTS,
        "protocol": "PLAINTEXT",
        "proof": "",
        "bound": HOST,
        "address": address,
    }
    return {"listener": address, "clients": [clients] if in_clear else []}


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=_REQUEST_TIMEOUT_S).close()
    except OSError:
        return False
    return True
