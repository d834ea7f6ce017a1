"""Losses that a person accepts, under real brokers: literally what the messages say, until the
topic is served again (docs/how-to/accept-loss.md)."""

from typing import Any

import pytest
from local_cluster import RunningCluster, wait
from stock_clients import PYTHON_CLIENTS
from test_lost_tail import VALUES, lose_the_tail_of_the_last

from tidemark.annotations import ACCEPT_COPY, ACCEPT_LOST_DIRECTORY

pytestmark = [pytest.mark.slow, pytest.mark.full]


def offered(condition: dict[str, Any], annotation: str) -> str:
    """The value at the end of a message."""
    return str(condition.get("message", "")).rpartition(f"{annotation}: ")[2]


def annotate(cluster: RunningCluster, kind: str, name: str, annotation: str, value: str) -> None:
    found = cluster.kube.get(kind, name)
    assert found is not None
    cluster.kube.apply(kind, name, found["spec"], annotations={annotation: value})


def accept_copy(cluster: RunningCluster, topic: str, reason: str) -> str:
    """Take the offer that the Topic makes; it is served again, and says what was accepted."""

    def offer() -> str:
        ready = cluster.view(topic).condition("Ready")
        return offered(ready, ACCEPT_COPY) if ready.get("reason") == reason else ""

    wait(lambda: bool(offer()), f"{topic} to be {reason} with an offer")
    value = offer()
    annotate(cluster, "Topic", topic, ACCEPT_COPY, value)
    wait(lambda: cluster.view(topic).condition("Ready").get("status") == "True", "it to be served")
    accepted = cluster.view(topic).status["accepted"]
    assert (accepted[-1]["annotation"], accepted[-1]["value"]) == (ACCEPT_COPY, value)
    return value


@pytest.mark.long
def test_last_copy_is_accepted_when_other_replicas_never_return(
    cluster: RunningCluster,
) -> None:
    produce, consume = PYTHON_CLIENTS["confluent-kafka"]
    topic = cluster.new_topic(config={"min.insync.replicas": "2"})
    last = cluster.view(topic).rows[0].leader
    early, late = sorted(set(cluster.view(topic).rows[0].replicas) - {last})
    try:
        # Several batches, because the cut tail must end at a batch boundary that leaves some
        # values.
        for first in range(0, len(VALUES), 100):  # batches of their own
            values = VALUES[first : first + 100]
            assert produce(cluster.bootstrap, topic, values, lambda _: None) == values
        cluster.local.kill_broker(early)
        wait(lambda: early not in cluster.view(topic).rows[0].isr, f"broker {early} to be out")
        # `early` and `late` are down now. `last` is up with half a log and may not lead on its own.
        lose_the_tail_of_the_last(cluster, topic, late, last)
        value = accept_copy(cluster, topic, "ElectionPending")
        # The offer ends with the log end offset that the person agrees to.
        left = int(value.rpartition(":")[2])
        assert f"/0={last}@" in value
        assert 0 < left < len(VALUES)
        # One replica has to be enough to write and to read from here on.
        spec = cluster.kube.get("Topic", topic)["spec"]  # type: ignore[index]
        cluster.kube.apply("Topic", topic, {**spec, "config": {"min.insync.replicas": "1"}})
        assert consume(cluster.bootstrap, topic, left) == VALUES[:left]
    finally:
        # The old leaders return with more records than were accepted, and must truncate them.
        for node_id in (early, late, last):
            cluster.local.start_broker(node_id)
    wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "all to be in sync again")
    assert consume(cluster.bootstrap, topic, left) == VALUES[:left], "also from those that had more"


def test_broker_with_lost_disk_is_removed_and_its_topic_restarts_empty(
    cluster: RunningCluster,
) -> None:
    """A fourth broker: the others keep what they have."""
    produce, consume = PYTHON_CLIENTS["confluent-kafka"]
    # The new broker gets the unreplicated topic, because the three others have replicas already.
    node_id = cluster.local.next_broker_id()
    name = f"broker-{node_id}"
    cluster.new_topic(partitions=3)
    cluster.local.start_broker(node_id)
    topic = cluster.new_topic(replicationFactor=1)
    assert cluster.view(topic).rows[0].leader == node_id, "it had the fewest replicas"
    # The only copy of the records is on the disk that is about to be lost.
    assert produce(cluster.bootstrap, topic, VALUES, lambda _: None)
    cluster.local.kill_broker(node_id)
    cluster.kube.delete("Broker", name)

    # Deleting the Broker starts a drain that cannot end: its last replica has no other broker to
    # copy from, until a person accepts the loss.
    def draining() -> dict[str, Any]:
        found = cluster.kube.get("Broker", name) or {}
        conditions = (found.get("status") or {}).get("conditions") or []
        return next((condition for condition in conditions if condition["type"] == "Draining"), {})

    def offer() -> str:
        found = draining()
        in_use = found.get("reason") == "ReplicasInUse"
        return offered(found, ACCEPT_LOST_DIRECTORY) if in_use else ""

    wait(lambda: bool(offer()), f"{name} to say how it is given up")
    annotate(cluster, "Broker", name, ACCEPT_LOST_DIRECTORY, offer())
    wait(lambda: cluster.kube.get("Broker", name) is None, f"{name} to go")
    # The partition was moved to another broker, which has no copy of any record.
    value = accept_copy(cluster, topic, "LastCopyMissing")
    assert value.endswith(":0"), "it begins empty"
    # The topic serves new records from offset 0.
    again = [b"again-%d" % number for number in range(20)]
    assert len(produce(cluster.bootstrap, topic, again, lambda _: None)) == len(again)
    assert consume(cluster.bootstrap, topic, len(again)) == again
