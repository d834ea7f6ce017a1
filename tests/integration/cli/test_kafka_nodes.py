"""Apache Kafka as the command line starts it: real nodes with remote storage in use."""

from collections.abc import Callable
from time import monotonic, sleep

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidemark_devcluster.kafka_nodes import KafkaNodes, known_brokers

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.full]

QUIET = {"log_level": 1}


def wait(holds: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + 60
    while not holds():
        assert monotonic() < deadline, what
        sleep(0.1)


def test_tiered_segments_and_a_restarted_broker_are_readable(
    apache_kafka: KafkaNodes,
) -> None:
    nodes, how = apache_kafka, {"bootstrap.servers": apache_kafka.bootstrap, **QUIET}
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": "1048576",
        "local.retention.bytes": "1",
    }
    admin = AdminClient(how)
    admin.create_topics([NewTopic("tiered", 1, 3, config=config)])["tiered"].result(30)
    producer = Producer({**how, "acks": "all"})
    # Four megabytes in segments of one megabyte.
    for _ in range(4):
        for _ in range(1000):
            producer.produce("tiered", bytes(1000))
        assert producer.flush(60) == 0
    tier = nodes.layout.tier
    wait(lambda: len(list(tier.glob("*/tiered-*/*.log"))) >= 2, "two segments in the tier")

    before = {node: nodes.find(node) for node in nodes.broker_ids()}
    assert nodes.kill(2)
    # The second kill finds no process.
    assert not nodes.kill(2)
    nodes.start([1, 2, 3])
    after = {node: nodes.find(node) for node in nodes.broker_ids()}
    # Only the killed broker was started again.
    assert after[1] == before[1]
    assert after[2] is not None
    assert after[2] != before[2]
    for node in nodes.broker_ids():
        port = int(nodes.address(node).rpartition(":")[2])
        wait(lambda port=port: known_brokers(port) == {1, 2, 3}, f"broker {node} knows all")  # type: ignore[misc]

    consumer = Consumer({**how, "group.id": "none", "auto.offset.reset": "error"})
    # Reading from offset 0 needs the tier, because the local log is shorter.
    consumer.assign([TopicPartition("tiered", 0, 0)])
    read = 0
    deadline = monotonic() + 60
    while read < 4000 and monotonic() < deadline:
        read += sum(item.error() is None for item in consumer.consume(4000, 1.0))
    consumer.close()
    assert read == 4000
