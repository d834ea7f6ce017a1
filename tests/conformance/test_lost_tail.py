"""A disk that lost what was not synced, under real brokers: the replica that has everything
leads."""

import os
from typing import Any

import pytest
from local_cluster import RunningCluster, wait
from stock_clients import PYTHON_CLIENTS

pytestmark = pytest.mark.full

VALUES = [b"value-%05d" % number for number in range(400)]


def lose_half(cluster: RunningCluster, node_id: int, topic: str) -> None:
    """Truncate a log that was never synced as a power cut may, including committed records."""
    # A power cut may also lose the checkpoint of the high watermark, which is synced separately.
    cluster.log_folder(node_id, topic).with_name("replication-offset-checkpoint").unlink(True)
    segment = max(cluster.log_folder(node_id, topic).glob("*.log"))
    os.truncate(segment, segment.stat().st_size // 2)


def waits_for(node_id: int, ready: dict[str, Any]) -> bool:
    return (
        ready.get("reason") == "ElectionPending" and f"start broker {node_id}" in ready["message"]
    )


def lose_the_tail_of_the_last(cluster: RunningCluster, topic: str, late: int, last: int) -> None:
    """The two that are in sync die one after the other, and the last comes back without half of
    its log: who leads depends on the other."""
    cluster.local.kill_broker(late)
    wait(lambda: cluster.view(topic).rows[0].elr == (late,), f"broker {late} to be eligible")
    cluster.local.kill_broker(last)
    # The last member of the ISR and the ELR (KIP-966) are the only candidates.
    wait(lambda: cluster.view(topic).rows[0].leader == -1, "the partition to have no leader")
    lose_half(cluster, last, topic)
    # It returns with an unclean start: the controller must not let it lead before it has compared
    # its log with the other eligible replica.
    cluster.local.start_broker(last)
    wait(
        lambda: waits_for(late, cluster.view(topic).condition("Ready")),
        f"the election to wait for broker {late}",
    )


@pytest.mark.slow
def test_the_last_in_sync_replica_that_lost_its_tail_does_not_lead(cluster: RunningCluster) -> None:
    produce, consume = PYTHON_CLIENTS["confluent-kafka"]
    topic = cluster.new_topic(config={"min.insync.replicas": "2"})
    last = cluster.view(topic).rows[0].leader
    early, late = sorted(set(cluster.view(topic).rows[0].replicas) - {last})

    # The first broker dies in the middle of the run, so that the ISR is exactly the two others.
    def shrink(count: int) -> None:
        if count == len(VALUES) // 2:
            cluster.local.kill_broker(early)

    try:
        acknowledged = produce(cluster.bootstrap, topic, VALUES, shrink)
        wait(
            lambda: set(cluster.view(topic).rows[0].isr) == {last, late},
            f"broker {early} to be out",
        )
        # `late` has every acknowledged record and is down. `last` is up with half of them.
        lose_the_tail_of_the_last(cluster, topic, late, last)
        waiting = cluster.view(topic).rows[0].leader_epoch
        # Now both logs can be compared, and the longer one wins.
        cluster.local.start_broker(late)

        def led_by_the_longest() -> bool:
            """At first: once it is in sync again, the preferred leader is given its place back."""
            row = cluster.view(topic).rows[0]
            return row.leader_epoch > waiting + 1 or row.leader == late

        wait(led_by_the_longest, "the longest log to lead")
    finally:
        for node_id in (early, late, last):
            cluster.local.start_broker(node_id)
    assert len(acknowledged) == len(VALUES)
    assert set(acknowledged) <= set(consume(cluster.bootstrap, topic, len(VALUES)))
    wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "all to be in sync again")
