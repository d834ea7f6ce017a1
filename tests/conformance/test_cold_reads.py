"""Stock clients read from all replicas what only the tier has, each record once and in order."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from default_clients import CLIENTS
from local_cluster import RunningCluster, wait

from tests.kafka_programs import java, kafka_jars
from tests.suites.packages import Missing, go_program
from tidemark.configuration.broker_keys import REMOTE_READERS
from tidemark_devcluster import processes
from tidemark_operator.resources.names import GROUP, PLURALS, VERSION

pytestmark = [pytest.mark.slow, pytest.mark.full]

RECORDS = 12_000
VALUE = b"x" * 1000
#: Records that are in the tier only once local retention has run.
COLD = 10_000
BROKERS = (1, 2, 3)
AVAILABLE = "tidemark_broker_remote_store_available"
READ_BYTES = "kafka_server_brokertopicmetrics_remotefetchbytes_total"

#: Arguments: bootstrap address, topic. Result: offsets in the order of the records.
Read = Callable[[str, str], list[int]]


def _settings(bootstrap: str) -> dict[str, str | bool | int]:
    return {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}


def read_confluent(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer(_settings(bootstrap))
    consumer.assign([TopicPartition(topic, 0, 0)])
    offsets: list[int] = []
    while len(offsets) < RECORDS:
        for message in consumer.consume(1000, timeout=30):
            assert message.error() is None, message.error()
            offsets.append(message.offset())
    consumer.close()
    return offsets


def read_java(bootstrap: str, topic: str) -> list[int]:
    said = java(
        kafka_jars(),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0"),
        *("--offset", "earliest", "--max-messages", str(RECORDS), "--timeout-ms", "60000"),
        *("--formatter-property", "print.offset=true"),
        *("--formatter-property", "print.value=false"),
    )
    lines = [line for line in said.splitlines() if line.startswith("Offset:")]
    return [int(line.removeprefix("Offset:")) for line in lines]


def read_franz(bootstrap: str, topic: str) -> list[int]:
    try:
        program = go_program(CLIENTS / "go", "./cold")
    except Missing as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [program, bootstrap, topic, str(RECORDS)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return [int(line) for line in done.stdout.splitlines()]


READERS: Mapping[str, Read] = {
    "confluent-kafka": read_confluent,
    "java": read_java,
    "franz-go": read_franz,
}


@pytest.fixture(scope="module")
def topic(cluster: RunningCluster) -> Iterator[str]:
    """A topic of three replicas whose first records are in the tier only."""
    name = cluster.local.settings.cluster
    path = (
        f"/apis/{GROUP}/{VERSION}/namespaces/{cluster.kube.namespace}/{PLURALS['Cluster']}/{name}"
    )
    # The setting of the whole cluster is taken back at the end.
    cluster.kube.merge_patch(path, {"spec": {"config": {REMOTE_READERS: "any"}}})
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
    cluster.kube.merge_patch(path, {"spec": {"config": {REMOTE_READERS: None}}})


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


@pytest.mark.parametrize("client", READERS)
def test_three_consumers_read_cold_records_from_three_replicas(
    cluster: RunningCluster, topic: str, client: str
) -> None:
    wait_for_tier(cluster)
    before = {broker: read_bytes(cluster, broker) for broker in BROKERS}
    with ThreadPoolExecutor(3) as threads:
        reads = [threads.submit(READERS[client], cluster.bootstrap, topic) for _ in BROKERS]
        for read in reads:
            assert read.result() == list(range(RECORDS))
    # Each broker has served one of them.
    for broker in BROKERS:
        served_bytes = read_bytes(cluster, broker) - before[broker]
        assert COLD * len(VALUE) <= served_bytes < 1.5 * RECORDS * len(VALUE), (broker, before)


def test_consumer_continues_when_the_replica_that_serves_it_is_killed(
    cluster: RunningCluster, topic: str
) -> None:
    leader = cluster.view(topic).rows[0].leader
    wait_for_tier(cluster)
    before = {broker: read_bytes(cluster, broker) for broker in BROKERS}
    # A small queue, so that most records are fetched after the kill.
    small = {"queued.max.messages.kbytes": 500, "fetch.max.bytes": 200_000}
    small |= {"message.max.bytes": 100_000, "topic.metadata.refresh.interval.ms": 1000}
    consumers = [Consumer({**_settings(cluster.bootstrap), **small}) for _ in BROKERS]
    seen: list[list[int]] = [[] for _ in consumers]
    for consumer, offsets in zip(consumers, seen, strict=True):
        consumer.assign([TopicPartition(topic, 0, 0)])
        offsets.append(consumer.consume(1, timeout=30)[0].offset())
    served = {broker: read_bytes(cluster, broker) - before[broker] for broker in BROKERS}
    assert all(served.values()), served
    killed = next(broker for broker in BROKERS if broker != leader)
    cluster.local.kill_broker(killed)
    try:
        for consumer, offsets in zip(consumers, seen, strict=True):
            while len(offsets) < RECORDS:
                messages = consumer.consume(1000, timeout=60)
                assert messages, f"{len(offsets)} records were read"
                for message in messages:
                    assert message.error() is None, message.error()
                    offsets.append(message.offset())
            assert offsets == list(range(RECORDS))
            consumer.close()
    finally:
        cluster.local.start_broker(killed)
    wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "the killed broker to be in the ISR")
