"""Stock idempotent producers, with leaders killed under them: each record once, in its order."""

from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from local_cluster import RunningCluster, wait
from stock_clients import consume_confluent

pytestmark = pytest.mark.full

VALUES = [b"value-%06d" % number for number in range(3000)]
Hook = Callable[[int], None]


def _confluent(bootstrap: str, topic: str, hook: Hook) -> int:
    """Produce with ``enable.idempotence``; return the number of acknowledged records."""
    acknowledged = 0

    def delivered(error: object, _: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1

    # Small batches, so that several are in flight when a leader dies: five may be, and their
    # sequence numbers keep them in order.
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.num.messages": 10}
    )
    for count, value in enumerate(VALUES):
        hook(count)
        producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(120) == 0
    return acknowledged


def _kafka_python(bootstrap: str, topic: str, hook: Hook) -> int:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","), enable_idempotence=True, batch_size=500
    )
    futures = []
    for count, value in enumerate(VALUES):
        hook(count)
        futures.append(producer.send(topic, value))
    producer.flush(120)
    producer.close()
    return sum(future.succeeded() for future in futures)


PRODUCERS = {"confluent-kafka": _confluent, "kafka-python": _kafka_python}


@pytest.mark.slow
@pytest.mark.parametrize("client", PRODUCERS)
def test_idempotent_producer_stores_each_record_once_across_leader_failures(
    cluster: RunningCluster, client: str
) -> None:
    topic = cluster.new_topic(config={"min.insync.replicas": "2", "segment.bytes": "1048576"})
    killed: list[int] = []

    # Two leaders die, one after the other. The first is back in sync by then, because with two
    # replicas down min.insync.replicas would stop the producer.
    def kill(count: int) -> None:
        if count in (1000, 2000):
            for node_id in killed:
                cluster.local.start_broker(node_id)
            wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "all to be in sync")
            leader = cluster.view(topic).rows[0].leader
            cluster.local.kill_broker(leader)
            killed.append(leader)

    try:
        # No error reaches the caller, and no record is stored twice, although batches are retried.
        assert PRODUCERS[client](cluster.bootstrap, topic, kill) == len(VALUES)
    finally:
        for node_id in killed:
            cluster.local.start_broker(node_id)
    assert len(killed) == 2
    assert consume_confluent(cluster.bootstrap, topic, len(VALUES)) == VALUES
    wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "all to be in sync again")
