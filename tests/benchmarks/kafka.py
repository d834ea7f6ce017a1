"""A real Apache Kafka broker (KRaft, one node) from its published jars."""

import base64
import os
import shutil
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tidemark_cli.ports import free_ports

VERSION = "4.3.1"
_POM = Path(__file__).with_name("kafka-pom.xml")
_START_TIMEOUT_S = 60.0


class KafkaMissing(RuntimeError):
    """Apache Kafka cannot be had here; the message says what is missing."""


@dataclass(slots=True)
class ApacheKafka:
    """A running broker."""

    process: "subprocess.Popen[bytes]"
    bootstrap: str

    def stop(self) -> None:
        """Stop it and wait."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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


def start(jars: Path, folder: Path) -> ApacheKafka:
    """Format a log folder and start a broker on free loopback ports; waits until it listens."""
    client, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(
        "\n".join(
            (
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@127.0.0.1:{controller}",
                f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{client}",
                "controller.listener.names=CONTROLLER",
                f"log.dirs={folder / 'logs'}",
                "offsets.topic.replication.factor=1",
                "auto.create.topics.enable=false",
            )
        ),
        encoding="utf-8",
    )
    java = ["java", "-Xmx1g", "-Xms1g", "-cp", f"{jars}/*"]
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
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
    log = (folder / "kafka.log").open("wb")
    process = subprocess.Popen(
        [*java, "kafka.Kafka", str(settings)], stdout=log, stderr=subprocess.STDOUT
    )
    _await_port(process, client)
    return ApacheKafka(process, f"127.0.0.1:{client}")


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
