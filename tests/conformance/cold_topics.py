"""Topics whose first records are only in the tier, and stock clients that read them."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from default_clients import CLIENTS
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from local_cluster import RunningCluster, wait

from tests.kafka_programs import JAVA, kafka_jars
from tests.suites.packages import Missing, go_program
from tidemark_devcluster import processes

RECORDS = 12_000
VALUE = b"x" * 1000
#: Records that are in the tier only once local retention has run.
COLD = 10_000
BROKERS = (1, 2, 3)
AVAILABLE = "tidemark_broker_remote_store_available"
READ_BYTES = "kafka_server_brokertopicmetrics_remotefetchbytes_total"


class ConfluentReader:
    """librdkafka, with a small queue: most records are fetched only while the test reads."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 500,
                "fetch.max.bytes": 200_000,
                "message.max.bytes": 100_000,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def offsets(self) -> Iterator[int]:
        """Yield the offset of each record."""
        while (message := self._consumer.poll(60)) is not None:
            assert message.error() is None, message.error()
            yield message.offset()

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonReader:
    """kafka-python, with small fetches."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            group_id=None,
            consumer_timeout_ms=60_000,
            fetch_max_bytes=200_000,
            max_partition_fetch_bytes=200_000,
        )
        place = PythonTopicPartition(topic, 0)
        self._consumer.assign([place])
        self._consumer.seek(place, 0)

    def offsets(self) -> Iterator[int]:
        """Yield the offset of each record."""
        for message in self._consumer:
            assert message.value == VALUE
            yield message.offset

    def close(self) -> None:
        self._consumer.close()


class ProgramReader:
    """A client whose program prints records, and waits while the test does not read its output."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        # Standard error is discarded: nothing reads it, and a full pipe would stop the program.
        self._program = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def offsets(self) -> Iterator[int]:
        """Yield the offset of each record."""
        assert self._program.stdout is not None
        for line in self._program.stdout:
            offset, _, value = line.removeprefix(b"Offset:").partition(b"\t")
            assert value.rstrip() == VALUE
            yield int(offset)

    def close(self) -> None:
        self._program.kill()
        self._program.communicate()


def java_reader(bootstrap: str, topic: str) -> ProgramReader:
    console = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    return ProgramReader(
        [
            *(*JAVA, "-cp", f"{kafka_jars()}/*", console, "--bootstrap-server", bootstrap),
            *("--topic", topic, "--partition", "0", "--offset", "earliest"),
            *("--max-messages", str(RECORDS), "--timeout-ms", "60000"),
            *("--formatter-property", "print.offset=true"),
        ]
    )


def franz_reader(bootstrap: str, topic: str) -> ProgramReader:
    try:
        program = go_program(CLIENTS / "go", "./cold")
    except Missing as error:
        pytest.skip(str(error))
    return ProgramReader([program, bootstrap, topic, str(RECORDS)])


READERS: Mapping[str, Callable[[str, str], ConfluentReader | ProgramReader]] = {
    "confluent-kafka": ConfluentReader,
    "java": java_reader,
    "franz-go": franz_reader,
}


def cold_topic(cluster: RunningCluster) -> str:
    """Return a new topic of three replicas whose first records are in the tier only."""
    topic = cluster.new_topic(
        tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
        config={"segment.bytes": str(1024 * 1024), "retention.ms": "-1"},
    )
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5})
    for _ in range(RECORDS):
        producer.produce(topic, VALUE, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    # Each replica has only its newest segments left.
    for broker in BROKERS:
        folder = cluster.log_folder(broker, topic)
        wait(lambda folder=folder: _first_local(folder) >= COLD, f"retention on {broker}")  # type: ignore[misc]
    return topic


def _first_local(folder: Path) -> int:
    return min(int(file.stem) for file in folder.glob("*.log"))


def metric(cluster: RunningCluster, broker: int, name: str) -> float:
    """Return a metric without labels of a broker."""
    record = processes.find(cluster.local.layout, f"broker-{broker}")
    assert record is not None
    with urllib.request.urlopen(f"http://{record.ready['metrics']}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def read_bytes(cluster: RunningCluster, broker: int) -> float:
    """Return the bytes that a broker has read from the tier for consumers."""
    return metric(cluster, broker, READ_BYTES)
