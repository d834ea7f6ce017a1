"""Real Apache Kafka brokers (KRaft) from its published jars."""

import base64
import os
import shutil
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.security.client_certificates import Leaf
from tidemark_cli.ports import free_ports

VERSION = "4.3.1"
_POM = Path(__file__).with_name("kafka-pom.xml")
_START_TIMEOUT_S = 60.0


class KafkaMissing(RuntimeError):
    """Apache Kafka cannot be had here; the message says what is missing."""


@dataclass(slots=True)
class ApacheKafka:
    """Running brokers, and where clients reach each."""

    processes: "list[subprocess.Popen[bytes]]"
    listeners: list[str]

    @property
    def bootstrap(self) -> str:
        """All of them."""
        return ",".join(self.listeners)

    def restart(self, index: int) -> None:
        """Start one that has ended again, with what it has on its disk; waits until it listens."""
        command = [str(each) for each in self.processes[index].args]
        with (Path(command[-1]).parent / "kafka.log").open("ab") as log:
            self.processes[index] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _await_port(self.processes[index], int(self.listeners[index].rpartition(":")[2]))

    def stop(self) -> None:
        """Stop them and wait, the controller last."""
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ensure_jars() -> Path:
    """The folder of Kafka's jars in the user's cache; fetched by Maven when it is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tidemark" / f"apache-kafka-{VERSION}"
    if (folder / ".complete").exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise KafkaMissing("the comparison needs Java 17 or newer and Maven (mvn) on the PATH")
    print(f"fetching the jars of Apache Kafka {VERSION} into {folder}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            maven,
            "-q",
            "-f",
            str(_POM),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}",
        ],
        check=True,
    )
    (folder / ".complete").touch()
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What is encrypted, with a certificate of ``leaf``'s."""

    leaf: Leaf
    clients: bool = False
    replication: bool = False


def start(
    jars: Path, folder: Path, *, brokers: int = 1, security: Security | None = None
) -> ApacheKafka:
    """Format log folders and start brokers on free loopback ports; waits until they listen. The
    first one is the controller, too."""
    (controller,) = free_ports(1)
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    started = ApacheKafka([], [])
    try:
        for node in range(1, brokers + 1):
            own = folder / f"kafka-{node}"
            own.mkdir()
            client, replication = free_ports(2)
            entries = _entries(own, node, controller, client, replication, brokers)
            if security is not None:
                entries |= _tls(own, security)
            started.processes.append(_start_one(jars, own, cluster_id, entries))
            started.listeners.append(f"127.0.0.1:{client}")
        for process, listener in zip(started.processes, started.listeners, strict=True):
            _await_port(process, int(listener.rpartition(":")[2]))
    except BaseException:
        started.stop()
        raise
    return started


def _entries(
    folder: Path, node: int, controller: int, client: int, replication: int, brokers: int
) -> dict[str, str]:
    listeners = {"CLIENTS": client, "REPLICATION": replication}
    own = {"CONTROLLER": controller} if node == 1 else {}
    return {
        "process.roles": "broker,controller" if node == 1 else "broker",
        "node.id": str(node),
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": _addresses(listeners | own),
        "advertised.listeners": _addresses(listeners),
        "inter.broker.listener.name": "REPLICATION",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": _protocols(),
        "log.dirs": str(folder / "logs"),
        "offsets.topic.replication.factor": str(min(3, brokers)),
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


def _start_one(
    jars: Path, folder: Path, cluster_id: str, entries: dict[str, str]
) -> "subprocess.Popen[bytes]":
    settings = folder / "server.properties"
    lines = (f"{key}={value}" for key, value in entries.items())
    settings.write_text("\n".join(lines), encoding="utf-8")
    java = ["java", "-Xmx1g", "-Xms1g", "-cp", f"{jars}/*"]
    subprocess.run(
        [
            *java,
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            "-c",
            str(settings),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with (folder / "kafka.log").open("wb") as log:
        return subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)], stdout=log, stderr=subprocess.STDOUT
        )


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
