"""A Reader serves cold records to stock clients, and no deleted one, however long it was paused."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from cold_topics import AVAILABLE as STORE_AVAILABLE
from cold_topics import (
    BROKERS,
    COLD,
    READERS,
    RECORDS,
    VALUE,
    ConfluentReader,
    KafkaPythonReader,
    ProgramReader,
    cold_topic,
    metric,
    read_bytes,
)
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from local_cluster import RunningCluster, run_cluster, wait

from tests.unit.api import api_requests as kafka
from tidemark.records.batch import iter_headers
from tidemark.wire.connection import KafkaConnection
from tidemark_devcluster import processes
from tidemark_devcluster.processes import ProcessRecord

pytestmark = [pytest.mark.slow, pytest.mark.full]

FETCH_VERSION = 12


#: Two listeners, of which one lists Readers among the replicas.
LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,READERS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,READERS:PLAINTEXT",
    "tidemark.readers.listeners": "READERS",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with run_cluster(tmp_path_factory.mktemp("readers"), entries=LISTENERS) as running:
        yield running


@pytest.fixture(scope="module")
def reader(cluster: RunningCluster) -> Iterator[int]:
    """A Reader beside the three brokers, which is removed at the end."""
    node = cluster.local.next_broker_id()
    name = f"broker-{node}"
    cluster.local.start_reader(node)
    wait(lambda: metric(cluster, node, STORE_AVAILABLE) == 1, "the store of the Reader")
    yield node
    cluster.kube.delete("Broker", name)
    wait(lambda: cluster.kube.get("Broker", name) is None, "the Broker object to be deleted", 10)
    cluster.local.stop_broker(node)
    cluster.local.layout.broker_config(node).unlink()


@pytest.fixture(scope="module")
def topic(cluster: RunningCluster) -> str:
    return cold_topic(cluster)


def bootstrap_of(cluster: RunningCluster, listener: str) -> str:
    """Return the addresses of all brokers at a listener."""
    listeners = {found.name: found.bootstrap for found in cluster.local.addresses().listeners}
    return listeners[listener]


def read_by(
    consumer: ConfluentReader | KafkaPythonReader | ProgramReader,
    cluster: RunningCluster,
    reader: int,
) -> float:
    """Consume each record once, and return the bytes that the Reader has read from the tier."""
    before = read_bytes(cluster, reader)
    try:
        offsets = consumer.offsets()
        assert [next(offsets) for _ in range(RECORDS)] == list(range(RECORDS))
    finally:
        consumer.close()
    return read_bytes(cluster, reader) - before


@pytest.mark.parametrize("listener", ["PLAINTEXT", "READERS"])
@pytest.mark.parametrize("client", READERS)
def test_stock_clients_read_each_record_once_beside_a_reader(
    cluster: RunningCluster, topic: str, reader: int, client: str, listener: str
) -> None:
    """librdkafka follows each redirection, others only to a broker in the replica list."""
    consumer = READERS[client](bootstrap_of(cluster, listener), topic)
    served = read_by(consumer, cluster, reader)
    follows = client == "confluent-kafka" or listener == "READERS"
    assert served >= COLD * len(VALUE) if follows else served == 0


# It leaves its sockets to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("listener", ["PLAINTEXT", "READERS"])
def test_kafka_python_reads_each_record_once_beside_a_reader(
    cluster: RunningCluster, topic: str, reader: int, listener: str
) -> None:
    """Return to the leader after each Fetch from another broker: it serves most records."""
    consumer = KafkaPythonReader(bootstrap_of(cluster, listener), topic)
    served = read_by(consumer, cluster, reader)
    assert (0 < served < COLD * len(VALUE)) == (listener == "READERS")


def test_a_reader_has_no_replicas(cluster: RunningCluster, reader: int) -> None:
    # Of many partitions each broker has a replica.
    topic = cluster.new_topic(partitions=12)
    assert all(set(row.replicas) == set(BROKERS) for row in cluster.view(topic).rows)
    cluster.kube.apply(
        "Topic",
        "four",
        {
            "clusterRef": {"name": cluster.local.settings.cluster},
            "partitions": 1,
            "replicationFactor": 4,
        },
    )
    try:
        # The fourth replica waits for a broker with replicas (KIP-409).
        wait(lambda: bool(cluster.view("four").rows), "the partition to be placed")
        (row,) = cluster.view("four").rows
        assert set(row.replicas) == {*BROKERS, -1}
    finally:
        cluster.kube.delete("Topic", "four")


@dataclass(frozen=True)
class Answer:
    """Result of one Fetch: when it began, and the offsets of the records."""

    began_s: float
    offsets: tuple[int, ...]


class Fetches:
    """Fetches of cold offsets that only the Reader answers, in threads, until :meth:`end`."""

    def __init__(self, record: ProcessRecord, topic: str) -> None:
        host, _, port = str(record.ready["listener"]).rpartition(":")
        self._address = host, int(port)
        self._topic = topic
        self.answers: list[Answer] = []
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._work = self._pool.submit(asyncio.run, self._all())

    async def _all(self) -> None:
        await asyncio.gather(*(self._one(random.Random(seed)) for seed in range(4)))

    async def _one(self, chance: random.Random) -> None:
        connection = await KafkaConnection.connect(*self._address, client_id="test")
        while not self._ended.is_set():
            began_s, offset = time.monotonic(), chance.randrange(COLD)
            request = kafka.fetch(FETCH_VERSION, self._topic, offset, partition_max_bytes=50_000)
            answer = await connection.request(
                request, kafka.answer_type(kafka.FETCH, FETCH_VERSION), 30
            )
            (part,) = answer.responses[0].partitions
            batches = iter_headers(bytes(part.records))
            # A batch may begin before the offset of the request.
            found = tuple(max(offset, header.base_offset) for _, header in batches)
            self.answers.append(Answer(began_s, found))
        await connection.close()

    def end(self) -> None:
        self._ended.set()
        self._work.result(60)
        self._pool.shutdown()


def test_a_paused_reader_serves_no_deleted_record(cluster: RunningCluster, reader: int) -> None:
    """A deletion does not wait for the Reader, and each later Fetch gets nothing of it."""
    topic = cold_topic(cluster)
    record = processes.find(cluster.local.layout, f"broker-{reader}")
    assert record is not None
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    fetches = Fetches(record, topic)
    acknowledged: list[tuple[float, int]] = []
    try:
        for start in range(1_000, 7_000, 1_000):
            count = len(fetches.answers)
            wait(lambda count=count: len(fetches.answers) > count + 20, "Fetches of the Reader")  # type: ignore[misc]
            os.kill(record.pid, signal.SIGSTOP)
            try:
                places = [TopicPartition(topic, 0, start)]
                for future in admin.delete_records(places).values():
                    assert future.result(30).low_watermark == start
                acknowledged.append((time.monotonic(), start))
                # The answers of leaders that the Reader has received meanwhile are too old then.
                time.sleep(1.2)
            finally:
                os.kill(record.pid, signal.SIGCONT)
        count = len(fetches.answers)
        wait(lambda: len(fetches.answers) > count + 20, "Fetches of the Reader")
    finally:
        fetches.end()
    assert sum(bool(answer.offsets) for answer in fetches.answers) > 50
    for acknowledged_s, start in acknowledged:
        wrong = [
            answer
            for answer in fetches.answers
            if answer.began_s > acknowledged_s and answer.offsets and answer.offsets[0] < start
        ]
        assert not wrong
    # A consumer at a deleted offset continues at the first one that is left.
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 10)])
    message = consumer.poll(60)
    assert message is not None
    assert message.offset() == 6_000
    consumer.close()
