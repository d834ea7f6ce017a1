"""Replicas move under a producer: a broker is drained, and a stock client loses nothing."""

import pytest
from local_cluster import RunningCluster, wait
from steady_writer import PARTITIONS, AcknowledgedWriter, read

pytestmark = [pytest.mark.slow, pytest.mark.full]

AFTER = 200


def _drain(cluster: RunningCluster, node_id: int, *, drain: bool) -> None:
    """Set the drain field as in a manifest."""
    name = f"broker-{node_id}"
    body = cluster.kube.get("Broker", name)
    assert body is not None
    cluster.kube.apply("Broker", name, {**body["spec"], "drain": drain})


def test_broker_drain_under_a_producer_loses_nothing(cluster: RunningCluster) -> None:
    """Topics with a replica on every broker stay, and are named: the drain of this one ends."""
    # Two replicas of three brokers, so that the drained broker's replicas have a place to go.
    topic = cluster.new_topic(
        partitions=PARTITIONS, replicationFactor=2, config={"min.insync.replicas": "2"}
    )
    writer = AcknowledgedWriter(cluster, topic)
    drained = cluster.view(topic).rows[0].leader
    try:
        _drain(cluster, drained, drain=True)

        def moved() -> bool:
            writer.write()
            rows = cluster.view(topic).rows
            return all(drained not in row.replicas for row in rows)

        # The producer writes during every move, in each poll of the condition.
        wait(moved, f"broker {drained} to have nothing of {topic}", 120)
        # A stock client follows the leaders after the moves.
        for _ in range(AFTER // 20):
            writer.write()
        writer.flush()
    finally:
        _drain(cluster, drained, drain=False)
    assert not writer.refused
    found = read(cluster, topic)
    assert len(found) == len(set(found)), "nothing twice"
    assert set(found) == writer.acknowledged
