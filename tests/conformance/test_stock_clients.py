"""Other people's clients produce and consume, also while a leader dies (invariant 1)."""

import pytest
from kcat import Kcat
from local_cluster import RunningCluster, wait
from stock_clients import PYTHON_CLIENTS

from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.blocking_client import BlockingKafkaClient
from tidemark.kafka_client.values import LATEST

# kafka-python leaves its sockets to the garbage collector when a broker dies.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
VALUES = [f"value {number}".encode() for number in range(1000)]


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_client_reads_back_what_it_wrote(cluster: RunningCluster, name: str) -> None:
    produce, consume = PYTHON_CLIENTS[name]
    topic = cluster.new_topic()
    assert sorted(produce(cluster.bootstrap, topic, VALUES, lambda _: None)) == sorted(VALUES)
    assert sorted(consume(cluster.bootstrap, topic, len(VALUES))) == sorted(VALUES)


@pytest.mark.full
def test_kcat_reads_back_what_it_wrote(cluster: RunningCluster, kcat: Kcat) -> None:
    topic = cluster.new_topic()
    place = ("-b", cluster.bootstrap, "-t", topic)
    # kcat uses several partitions by default; with one partition the order is fixed.
    kcat.run("-P", *place, "-p", "0", "-X", "acks=all", stdin=b"\n".join(VALUES) + b"\n")
    out = kcat.run("-C", *place, "-p", "0", "-o", "beginning", "-e", "-q")
    assert out.splitlines() == VALUES


@pytest.mark.full
def test_kcat_lists_the_topic_with_its_replicas(cluster: RunningCluster, kcat: Kcat) -> None:
    topic = cluster.new_topic()
    text = kcat.run("-L", "-b", cluster.bootstrap, "-t", topic).decode()
    assert f'topic "{topic}" with 1 partitions' in text
    # kcat prints the replicas in the order of the assignment.
    row = cluster.view(topic).rows[0]
    assert f"leader {row.leader}, replicas: {','.join(map(str, row.replicas))}" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_nothing_acknowledged_is_lost_when_the_leader_dies(
    cluster: RunningCluster, name: str
) -> None:
    produce, consume = PYTHON_CLIENTS[name]
    topic = cluster.new_topic(config={"min.insync.replicas": "2"})
    before = cluster.view(topic).rows[0]

    # Half of the values are in flight or acknowledged when their leader dies.
    def kill_in_the_middle(count: int) -> None:
        if count == len(VALUES) // 2:
            cluster.local.kill_broker(before.leader)

    try:
        acknowledged = produce(cluster.bootstrap, topic, VALUES, kill_in_the_middle)
        # A follower leads now, in a later leader epoch.
        after = cluster.view(topic).rows[0]
        assert after.leader not in {before.leader, -1}
        assert after.leader_epoch > before.leader_epoch
    finally:
        cluster.local.start_broker(before.leader)
    assert len(acknowledged) == len(VALUES)
    # A retry may have written a value twice: every acknowledged one is there at least once.
    with BlockingKafkaClient(KafkaAccess(tuple(cluster.bootstrap.split(",")))) as client:
        end = client.list_offsets(topic, {0: LATEST})[0]
    assert set(acknowledged) <= set(consume(cluster.bootstrap, topic, end))
    wait(
        lambda: len(cluster.view(topic).rows[0].isr) == 3, "the killed broker to be back in the ISR"
    )
