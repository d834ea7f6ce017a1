"""Stock clients read from all replicas what only the tier has, each record once and in order."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from default_clients import CLIENTS
from local_cluster import RunningCluster, wait

from tests.kafka_programs import JAVA, kafka_jars
from tests.suites.packages import Missing, go_program
from tidemark.configuration.broker_keys import REMOTE_READERS
from tidemark_devcluster import processes

pytestmark = [pytest.mark.slow, pytest.mark.full]

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


@pytest.fixture(scope="module")
def topic(cluster: RunningCluster) -> Iterator[str]:
    """A topic of three replicas whose first records are in the tier only."""
    # The setting of the whole cluster is taken back at the end.
    cluster.configure({REMOTE_READERS: "any"})
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
    yield topic
    cluster.configure({REMOTE_READERS: None})


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


def wait_for_tier(cluster: RunningCluster) -> None:
    """Wait until each broker can read the tier; one that has just started verifies it first."""
    for broker in BROKERS:
        wait(
            lambda broker=broker: metric(cluster, broker, AVAILABLE) == 1,  # type: ignore[misc]
            f"the store of broker {broker}",
        )


@contextmanager
def three_readers(
    cluster: RunningCluster, topic: str, client: str
) -> Iterator[tuple[list[Iterator[int]], dict[int, float]]]:
    """Start three consumers, of which each has its first record from another replica.

    Yield the offsets that each will return next, and the figures of before.
    """
    wait_for_tier(cluster)
    # A broker that has just joined the ISR is not known to the leader as live yet.
    wait(lambda: serving(cluster, topic) == set(BROKERS), "all replicas to serve")
    before = {broker: read_bytes(cluster, broker) for broker in BROKERS}
    readers = [READERS[client](cluster.bootstrap, topic) for _ in BROKERS]
    try:
        offsets = [reader.offsets() for reader in readers]
        assert [next(reader) for reader in offsets] == [0, 0, 0]
        assert all(served(cluster, before).values()), before
        yield offsets, before
    finally:
        for reader in readers:
            reader.close()


def served(cluster: RunningCluster, before: Mapping[int, float]) -> dict[int, float]:
    """Return the bytes that each broker has read from the tier since then."""
    return {broker: read_bytes(cluster, broker) - before[broker] for broker in BROKERS}


def read_on(readers: Sequence[Iterator[int]]) -> None:
    """Read every other record once, in order, with all readers at the same time."""
    with ThreadPoolExecutor(len(readers)) as threads:
        for offsets in threads.map(lambda reader: list(islice(reader, RECORDS - 1)), readers):
            assert offsets == list(range(1, RECORDS))


@pytest.mark.parametrize("client", READERS)
def test_three_consumers_read_cold_records_from_three_replicas(
    cluster: RunningCluster, topic: str, client: str
) -> None:
    with three_readers(cluster, topic, client) as (readers, before):
        read_on(readers)
        # Each broker has served one of them.
        for broker, size in served(cluster, before).items():
            assert COLD * len(VALUE) <= size < 1.5 * RECORDS * len(VALUE), (broker, size)


@pytest.mark.parametrize("client", READERS)
def test_consumers_return_to_the_leader_when_followers_may_not_serve_any_more(
    cluster: RunningCluster, topic: str, client: str
) -> None:
    """Each follower redirects its consumer, which must neither loop, nor skip or repeat records."""
    leader = cluster.view(topic).rows[0].leader
    with three_readers(cluster, topic, client) as (readers, before):
        cluster.configure({REMOTE_READERS: "leader"})
        try:
            # New connections show when the leader redirects no more.
            wait(lambda: serving(cluster, topic) == {leader}, "brokers to have the setting")
            read_on(readers)
        finally:
            cluster.configure({REMOTE_READERS: "any"})
        for broker, size in served(cluster, before).items():
            if broker != leader:
                assert size < COLD * len(VALUE) / 2, (broker, size)


def serving(cluster: RunningCluster, topic: str) -> set[int]:
    """Return the brokers from which three new consumers read."""
    before = {broker: read_bytes(cluster, broker) for broker in BROKERS}
    for _ in BROKERS:
        reader = ConfluentReader(cluster.bootstrap, topic)
        assert next(reader.offsets()) == 0
        reader.close()
    return {broker for broker, size in served(cluster, before).items() if size}


def test_consumer_continues_when_the_replica_that_serves_it_is_killed(
    cluster: RunningCluster, topic: str
) -> None:
    leader = cluster.view(topic).rows[0].leader
    killed = next(broker for broker in BROKERS if broker != leader)
    with three_readers(cluster, topic, "confluent-kafka") as (readers, _):
        cluster.local.kill_broker(killed)
        try:
            read_on(readers)
        finally:
            cluster.local.start_broker(killed)
    wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "the killed broker to be in the ISR")
