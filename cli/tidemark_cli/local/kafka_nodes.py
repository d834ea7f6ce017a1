"""Start, stop and kill the nodes of a local Apache Kafka, from its published jars: processes as any
other of a local cluster (:mod:`tidemark_cli.local.processes`), whose settings stay in its folder.

A broker is ready once it answers a client with itself in the metadata: then it is registered and
unfenced. ``broker-N`` and ``controller-N`` are the names of processes and of their logs.
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
from tidemark_cli.local import processes
from tidemark_cli.local.kafka_properties import (
    CLIENTS,
    FIRST_CONTROLLER,
    BrokerPorts,
    Plan,
    broker_entries,
    client_address,
    controller_entries,
    properties_text,
)
from tidemark_cli.local.layout import Layout, LayoutError, read_json, write_json
from tidemark_cli.local.processes import ProcessRecord
from tidemark_cli.ports import HOST, free_ports
from tidemark_cli.toolchain.maven import KAFKA, ensure_jars, java

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 40.0
_ASK_S = 2.0
_META = "meta.properties"
_LOGGER = "-Dorg.slf4j.simpleLogger"
_SAYS = (
    f"{_LOGGER}.defaultLogLevel=warn",
    f"{_LOGGER}.showDateTime=true",
    f"{_LOGGER}.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
)
#: Of a JVM that shares a machine with others: what is compiled well pays off after minutes only.
LIGHT = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaNodes:
    """The nodes of one folder, whether they run or not. Raises LayoutError for a file of it that is
    not as it was left, processes.StartError, and ToolchainError where Kafka cannot be had."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._folder = layout.root / "kafka"

    # ------------------------------------------------------------ what there is

    def exists(self) -> bool:
        """Is there a cluster in the folder?"""
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
        """Choose what stays for ever. ``controllers``: nodes that are nothing else; 0: the first
        broker is the controller, too. ``replicas``: of Kafka's own topics. ``tier``: a folder for
        LocalTieredStorage; None: no remote storage."""
        self._folder.mkdir(exist_ok=True, mode=0o700)
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

    def declare_broker(self, node: int, ports: BrokerPorts | None = None) -> None:
        """Choose where a broker listens, unless that was done before."""
        if self._path(node).exists():
            return
        clients, replication = free_ports(2)
        chosen = ports or BrokerPorts(clients=clients, replication=replication)
        self._write(node, broker_entries(self.plan(), node, self._log_dir(node), chosen))

    def plan(self) -> Plan:
        """What the nodes have in common."""
        value = read_json(self._plan_path)
        if value is None:
            raise FileNotFoundError(f"there is no Apache Kafka in {self.layout.root}")
        try:
            voters = {int(node): int(port) for node, port in value["voters"].items()}
            return Plan(**{**value, "voters": voters})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LayoutError(
                f"{self._plan_path} is none that `tidemark up` has written: remove the folder"
            ) from error

    def broker_ids(self) -> list[int]:
        """The brokers that were ever added here, ascending."""
        found = (int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdigit())
        return sorted(node for node in found if node < FIRST_CONTROLLER)

    def controller_ids(self) -> list[int]:
        """The controllers that are no brokers."""
        return [node for node in sorted(self.plan().voters) if node >= FIRST_CONTROLLER]

    def address(self, node: int) -> str:
        """Where clients reach a broker, whatever it tells them."""
        return f"{HOST}:{client_address(self.entries(node))[0]}"

    @property
    def bootstrap(self) -> str:
        """All brokers, also those that do not run."""
        return ",".join(map(self.address, self.broker_ids()))

    def entries(self, node: int) -> dict[str, str]:
        """A node's configuration."""
        return dict(read_json(self._path(node)) or {})

    def data(self, node: int) -> Path:
        """Its log directory."""
        return Path(self._log_dir(node))

    def log(self, node: int) -> Path:
        """What it has said."""
        return self.layout.log(name_of(node))

    def find(self, node: int) -> ProcessRecord | None:
        """Its process, where it runs."""
        return processes.find(self.layout, name_of(node))

    # ------------------------------------------------------------ what they do

    def start(self, nodes: Iterable[int]) -> list[ProcessRecord]:
        """Start those that do not run, side by side, and wait until each is ready."""
        wanted = list(nodes)
        self._format(wanted)
        with ThreadPoolExecutor(max(1, len(wanted))) as pool:
            return list(pool.map(self._start, wanted))

    def start_all(self) -> list[ProcessRecord]:
        """All nodes; waits until each broker knows of all."""
        brokers = self.broker_ids()
        records = self.start([*self.controller_ids(), *brokers])
        self._await_all_known(brokers)
        return records

    def stop(self, nodes: Iterable[int]) -> bool:
        """Shut them down cleanly, side by side; False where one had to be killed."""
        wanted = list(nodes)
        with ThreadPoolExecutor(max(1, len(wanted))) as pool:
            return all(list(pool.map(self._stop, wanted)))

    def stop_all(self) -> None:
        """All nodes, controllers last: brokers hand their leaderships over through them."""
        voters = sorted(self.plan().voters)
        self.stop(node for node in self.broker_ids() if node not in voters)
        self.stop(voters)

    def kill(self, node: int) -> bool:
        """SIGKILL; False when it did not run."""
        record = self.find(node)
        if record is not None:
            processes.kill(self.layout, record)
        return record is not None

    # ------------------------------------------------------------ how

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
            *(str(java()), *self.plan().java, *_SAYS),
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
        """Make the log directories that are missing. Kafka's tool makes one; the others are copies
        of it with ids of their own, as the tool costs a JVM each time."""
        missing = [node for node in nodes if not (self.data(node) / _META).exists()]
        if not missing:
            return
        pattern = self._folder / "formatted"
        if not (pattern / _META).exists():
            self._format_pattern(pattern, self.entries(missing[0]))
        for node in missing:
            made = self.data(node).with_suffix(".part")
            shutil.rmtree(made, ignore_errors=True)
            shutil.copytree(pattern, made)
            meta = (made / _META).read_text(encoding="ascii")
            (made / _META).write_text(own_meta(meta, node), encoding="ascii")
            made.rename(self.data(node))

    def _format_pattern(self, folder: Path, entries: Mapping[str, str]) -> None:
        properties = self._folder / "formatted.properties"
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
            said = (done.stdout + done.stderr).strip()
            raise processes.StartError(f"Apache Kafka's log directories: {said[-2000:]}")

    def _await_all_known(self, brokers: Sequence[int]) -> None:
        """Each broker's metadata name all of them."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in brokers:
            port, in_clear = client_address(self.entries(node))
            while in_clear and not set(brokers) <= known_brokers(port):
                if time.monotonic() > deadline:
                    raise processes.StartError(f"broker {node} does not know all of {brokers}")
                time.sleep(0.05)


def name_of(node: int) -> str:
    """Of a node's process."""
    return f"controller-{node}" if node >= FIRST_CONTROLLER else f"broker-{node}"


def new_id() -> str:
    """As Kafka makes its own: none begins as an option does, for its tools would take it for
    one."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode())[0] == "-":
        pass
    return made


def own_meta(text: str, node: int) -> str:
    """``meta.properties`` of a node, from those of another one of its cluster."""
    own = {"node.id": str(node), "directory.id": new_id()}
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return "".join(f"{key}={own.get(key, value)}\n" for key, _, value in lines)


def known_brokers(port: int) -> set[int]:
    """The brokers that the one behind a port of the loopback tells clients of; none while it does
    not answer."""
    asked = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    try:
        with BlockingConnection(HOST, port, client_id="tidemark", timeout_s=_ASK_S) as connection:
            answer = connection.request(asked, MetadataResponse, _ASK_S)
    except (OSError, FrameError):
        return set()
    return {int(broker.node_id) for broker in answer.brokers}


def _readiness(node: int, entries: Mapping[str, str]) -> Callable[[], dict[str, Any] | None]:
    """How it is seen that a node serves: what its record says then, None before."""
    if "broker" not in entries["process.roles"]:
        port = int(entries["listeners"].rpartition(":")[2])
        return lambda: {"ready": True} if _listens(port) else None
    port, in_clear = client_address(entries)

    def ready() -> dict[str, Any] | None:
        serves = node in known_brokers(port) if in_clear else _listens(port)
        return {"ready": True, **_said(port, in_clear=in_clear)} if serves else None

    return ready


def _said(port: int, *, in_clear: bool) -> dict[str, Any]:
    """As our own brokers tell of theirs."""
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
        socket.create_connection((HOST, port), timeout=_ASK_S).close()
    except OSError:
        return False
    return True
