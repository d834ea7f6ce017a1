"""Real Apache Kafka brokers (KRaft) from its published jars."""

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.jars import JarsMissing, ensure
from tests.security.client_certificates import Leaf
from tidemark_cli.ports import HOST, free_ports

VERSION = "4.3.1"
_POM = Path(__file__).with_name("kafka-pom.xml")
_START_TIMEOUT_S = 60.0
_SETTINGS = "server.properties"
#: Java's options for what is measured, and for what is to start soon and take little.
MEASURED = ("-Xmx1g", "-Xms1g")
LIGHT = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
#: The id of a controller that is no broker.
_CONTROLLER = 100


class KafkaMissing(RuntimeError):
    """Apache Kafka cannot be had here; the message says what is missing."""


@dataclass(slots=True)
class ApacheKafka:
    """Running brokers, in the order of their ids from ``first_node`` on, and where clients reach
    each. ``controller``: its process where it is none of theirs."""

    jars: Path
    folders: list[Path]
    processes: "list[subprocess.Popen[bytes]]"
    listeners: list[str]
    controller: "subprocess.Popen[bytes] | None" = None
    first_node: int = 1
    java: Sequence[str] = ()

    @property
    def bootstrap(self) -> str:
        """All of them."""
        return ",".join(self.listeners)

    def stop_broker(self, node: int) -> None:
        """Shut one down cleanly."""
        _stop(self.processes[node - self.first_node])

    def start_broker(self, node: int) -> None:
        """Start one that was stopped, and wait until it listens; one that runs goes on alone, lest
        two with one id put each other out."""
        number = node - self.first_node
        if self.processes[number].poll() is None:
            return
        process = _run(self, self.folders[number])
        self.processes[number] = process
        _await_port(process, int(self.listeners[number].rpartition(":")[2]))

    def stop(self) -> None:
        """Stop them and wait, the controller last."""
        for process in reversed(self.processes):
            _stop(process)
        if self.controller is not None:
            _stop(self.controller)


def ensure_jars() -> Path:
    """The folder of Kafka's jars. Raises KafkaMissing."""
    try:
        return ensure(_POM, "apache-kafka-tiered", VERSION)
    except JarsMissing as error:
        raise KafkaMissing(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What is encrypted, with a certificate of ``leaf``'s."""

    leaf: Leaf
    clients: bool = False
    replication: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """More about the brokers: ``entries`` of each one's configuration; ``ports`` for clients, of
    the first broker first (none: free ones); ``advertised`` and ``host``: the ports, and the name
    of the loopback, that clients are told instead; ``racks``: of the first broker first; none:
    without. ``first_node``: its id. ``java``: options of each process."""

    entries: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[int] = ()
    advertised: Sequence[int] = ()
    host: str = HOST
    racks: Sequence[str] = ()
    own_controller: bool = False
    first_node: int = 1
    java: Sequence[str] = MEASURED


def start(
    jars: Path,
    folder: Path,
    *,
    brokers: int = 1,
    security: Security | None = None,
    setting: Setting | None = None,
) -> ApacheKafka:
    """Format log folders and start brokers on loopback ports; waits until they listen. The first
    one is the controller, too, unless that has a process of its own."""
    wanted = setting or Setting()
    (controller,) = free_ports(1)
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    first = wanted.first_node
    started = ApacheKafka(jars, [], [], [], first_node=first, java=wanted.java)
    roles = _Roles(controller, _CONTROLLER if wanted.own_controller else first, brokers)
    try:
        if wanted.own_controller:
            own = folder / "kafka-controller"
            own.mkdir()
            _format(started, own, cluster_id, _controller_entries(own, roles))
            started.controller = _run(started, own)
        for number, node in enumerate(range(first, first + brokers)):
            own = folder / f"kafka-{node}"
            own.mkdir()
            client, replication = free_ports(2)
            client = wanted.ports[number] if wanted.ports else client
            entries = _entries(own, node, roles, client, replication)
            if wanted.advertised:
                told = f"CLIENTS://{wanted.host}:{wanted.advertised[number]}"
                entries["advertised.listeners"] = (
                    f"{told},{_addresses({'REPLICATION': replication})}"
                )
            if wanted.racks:
                entries["broker.rack"] = wanted.racks[number]
            if security is not None:
                entries |= _tls(own, security)
            _format(started, own, cluster_id, {**entries, **wanted.entries})
            started.folders.append(own)
            started.listeners.append(f"127.0.0.1:{client}")
            started.processes.append(_run(started, own))
        for process, listener in zip(started.processes, started.listeners, strict=True):
            _await_port(process, int(listener.rpartition(":")[2]))
    except BaseException:
        started.stop()
        raise
    return started


@dataclass(frozen=True, slots=True)
class _Roles:
    """Where the controller listens, which node it is, and how many brokers there are."""

    port: int
    node: int
    brokers: int


def _controller_entries(folder: Path, roles: _Roles) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": str(roles.node),
        "controller.quorum.voters": f"{roles.node}@127.0.0.1:{roles.port}",
        "listeners": _addresses({"CONTROLLER": roles.port}),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": _protocols(),
        "log.dirs": str(folder / "logs"),
    }


def _entries(
    folder: Path, node: int, roles: _Roles, client: int, replication: int
) -> dict[str, str]:
    listeners = {"CLIENTS": client, "REPLICATION": replication}
    own = {"CONTROLLER": roles.port} if node == roles.node else {}
    replicas = str(min(3, roles.brokers))
    return {
        "process.roles": "broker,controller" if own else "broker",
        "node.id": str(node),
        "controller.quorum.voters": f"{roles.node}@127.0.0.1:{roles.port}",
        "listeners": _addresses(listeners | own),
        "advertised.listeners": _addresses(listeners),
        "inter.broker.listener.name": "REPLICATION",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": _protocols(),
        "log.dirs": str(folder / "logs"),
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, roles.brokers)),
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": str(min(2, roles.brokers)),
        "auto.create.topics.enable": "false",
    }


def _addresses(ports: dict[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def _protocols(*, clients: bool = False, replication: bool = False) -> str:
    kinds = {"CLIENTS": clients, "REPLICATION": replication, "CONTROLLER": False}
    return ",".join(f"{name}:{'SSL' if tls else 'PLAINTEXT'}" for name, tls in kinds.items())


def _tls(folder: Path, security: Security) -> dict[str, str]:
    leaf, store = security.leaf, folder / "broker.pem"
    store.write_text(Path(leaf.key).read_text() + Path(leaf.certificate).read_text())
    return {
        "listener.security.protocol.map": _protocols(
            clients=security.clients, replication=security.replication
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": leaf.trusted,
        "listener.name.replication.ssl.client.auth": "required",
    }


def _java(kafka: ApacheKafka) -> list[str]:
    return ["java", *kafka.java, "-cp", f"{kafka.jars}/*"]


def _format(kafka: ApacheKafka, folder: Path, cluster_id: str, entries: Mapping[str, str]) -> None:
    """Write a node's configuration and make its log folder."""
    settings = folder / _SETTINGS
    lines = (f"{key}={value}" for key, value in entries.items())
    settings.write_text("\n".join(lines), encoding="utf-8")
    subprocess.run(
        [
            *(*_java(kafka), "kafka.tools.StorageTool"),
            *("format", f"--cluster-id={cluster_id}", "-c", str(settings)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _run(kafka: ApacheKafka, folder: Path) -> "subprocess.Popen[bytes]":
    command = [*_java(kafka), "kafka.Kafka", str(folder / _SETTINGS)]
    with (folder / "kafka.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_port(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise KafkaMissing(f"Apache Kafka did not listen within {_START_TIMEOUT_S:.0f} s")
