"""Behaviour of a Topic that both engines share."""

import time

import pytest

from tests.conformance.local_cluster import wait
from tests.integration.engines.driver import LONG_S, DrivenEngine
from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.ids import parse_id
from tidemark_cli.inspection.topic_rows import condition
from tidemark_devcluster import processes
from tidemark_kube.client import KubeRequestError
from tidemark_operator.resources.names import PAUSED_ANNOTATION

pytestmark = [pytest.mark.slow, pytest.mark.full]

#: Longer than the intervals at which both engines look at existing topics.
_REST_S = 8.0


def test_topic_is_created_and_deleted_with_its_manifest(engine: DrivenEngine) -> None:
    name, _ = engine.create(2, 3, config={"retention.ms": "3600000"})
    status = engine.ready(name)
    assert engine.topic_id(name) == status["topicId"]
    assert status["partitionsPlaced"] == 2
    placed = engine.wait_for_replicas(name, [3, 3])
    # Leaders are spread over the brokers.
    assert len({replicas[0] for replicas in placed}) == 2, "two brokers lead"
    full_counts = {"desired": 6, "placed": 6, "inSync": 6, "placeholders": 0, "summary": "6/6"}
    engine.status(name, lambda status: status["replicas"] == full_counts)
    engine.condition_message(name, "FullyReplicated", "True", "AllInSync")
    assert engine.config(name)["retention.ms"] == "3600000"
    engine.delete_and_wait(name)
    # Deletion is asynchronous in both engines.
    wait(lambda: engine.described(name) is None, "brokers to have forgotten it", LONG_S)


def test_topic_name_may_differ_from_the_object_name(engine: DrivenEngine) -> None:
    name, spec = engine.create(topicName="Of_Clients.1")
    engine.ready(name)
    assert engine.described("Of_Clients.1") is not None
    assert engine.described(name) is None
    # The topic name is immutable.
    with pytest.raises(KubeRequestError, match="topicName"):
        engine.apply(name, {**spec, "topicName": "Another"})


def test_topic_configuration_follows_the_manifest(engine: DrivenEngine) -> None:
    name, spec = engine.create(config={"retention.ms": "3600000", "segment.ms": "70000"})
    engine.ready(name)
    engine.apply(name, {**spec, "config": {"retention.ms": "7200000"}})
    wait(lambda: engine.config(name) == {"retention.ms": "7200000"}, "the change", LONG_S)
    # Without the map the topic has the brokers' defaults.
    engine.apply(name, {key: spec[key] for key in spec if key != "config"})
    wait(lambda: engine.config(name) == {}, "defaults again", LONG_S)
    engine.ready(name)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"compression.type": "lz4"}, "compression.type"),
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"no.such.key": "1"}, "no.such.key"),
    ],
)
def test_unsupported_configuration_is_refused_at_once(
    engine: DrivenEngine, config: dict[str, str], why: str
) -> None:
    with pytest.raises(KubeRequestError, match=why):
        engine.create(config=config)


def test_added_partitions_leave_records_in_place(engine: DrivenEngine) -> None:
    name, spec = engine.create(1, 2)
    engine.ready(name)
    engine.produce(name, b"one", b"two")
    spec = engine.apply(name, {**spec, "partitions": 4})
    engine.wait_for_replicas(name, [2] * 4)
    engine.status(name, lambda status: status["partitionsPlaced"] == 4)
    assert engine.values(name) == [b"one", b"two"]
    # Partitions cannot be removed.
    with pytest.raises(KubeRequestError, match="partitions"):
        engine.apply(name, {**spec, "partitions": 3})


def test_changed_replication_factor_keeps_the_records(engine: DrivenEngine) -> None:
    name, spec = engine.create(3, 1)
    engine.ready(name)
    for partition in range(3):
        engine.produce(name, b"of %d" % partition, partition=partition)
    # A raise moves data; the records stay where they are.
    spec = engine.apply(name, {**spec, "replicationFactor": 3})
    engine.status(name, lambda status: status["replicas"]["inSync"] == 9)
    engine.wait_for_replicas(name, [3] * 3)
    engine.condition_message(name, "FullyReplicated", "True", "AllInSync")
    # A lowered factor removes replicas.
    engine.apply(name, {**spec, "replicationFactor": 1})
    engine.wait_for_replicas(name, [1] * 3)
    engine.condition_message(name, "FullyReplicated", "True", "AllInSync")
    assert [engine.values(name, index) for index in range(3)] == [[b"of 0"], [b"of 1"], [b"of 2"]]


def test_paused_topic_is_not_changed(engine: DrivenEngine) -> None:
    name, spec = engine.create(1, 1, config={"retention.ms": "3600000"})
    engine.ready(name)
    changed = {**spec, "partitions": 2, "config": {"retention.ms": "7200000"}}
    # One write pauses the Topic and changes it.
    engine.apply(name, changed, **{PAUSED_ANNOTATION: "true"})

    def says() -> str:
        found = engine.kube.get("Topic", name) or {}
        return str(condition(found, "Reconciling").get("message"))

    wait(lambda: "is not applied" in says(), "the new generation to wait", LONG_S)
    # Other Topics are not affected.
    other, _ = engine.create()
    engine.ready(other)
    assert len(engine.replicas(name)) == 1
    assert engine.config(name) == {"retention.ms": "3600000"}
    # Applied without the annotation, the pause ends.
    engine.apply(name, changed)
    engine.wait_for_replicas(name, [1] * 2)
    wait(lambda: engine.config(name) == {"retention.ms": "7200000"}, "all of it", LONG_S)


def test_orphaned_topic_is_adopted_with_its_records_on_request(
    engine: DrivenEngine,
) -> None:
    name, spec = engine.create(1, 2, deletionPolicy="Orphan", config={"retention.ms": "3600000"})
    topic_id = engine.ready(name)["topicId"]
    engine.produce(name, b"kept")
    # Orphan: the topic survives its object.
    engine.delete_and_wait(name)
    assert engine.values(name) == [b"kept"]
    adopted = f"{name}-again"
    # Another object with the same topic name.
    spec = engine.apply(adopted, {**spec, "topicName": name})
    message = engine.condition_message(adopted, "Stalled", "True", "AdoptionRequired")
    assert f"{ADOPT_TOPIC_ID}: {topic_id}" in message
    # The annotation of the message adopts the topic and its records.
    engine.apply(adopted, spec, **{ADOPT_TOPIC_ID: topic_id})
    assert engine.ready(adopted)["topicId"] == topic_id
    engine.produce(name, b"more")
    assert engine.values(name) == [b"kept", b"more"]


def test_deleted_topic_is_served_and_can_be_kept_during_its_grace_period(
    engine: DrivenEngine,
) -> None:
    name, spec = engine.create(1, 2, deletionGracePeriod="1h")
    topic_id = engine.ready(name)["topicId"]
    engine.produce(name, b"before")
    engine.kube.delete("Topic", name)
    engine.status(name, lambda _: True, type_="Ready", is_="True", reason="DeletionPending")
    # Clients notice nothing, and the spec is still followed.
    engine.produce(name, b"meanwhile")
    engine.apply(name, {**spec, "config": {"retention.ms": "7200000"}})
    wait(lambda: engine.config(name) == {"retention.ms": "7200000"}, "the change", LONG_S)
    # Orphan releases the object and keeps the topic, and its manifest adopts it.
    engine.apply(name, {**spec, "deletionPolicy": "Orphan"})
    wait(lambda: engine.kube.get("Topic", name) is None, f"{name} to be released", LONG_S)
    assert engine.topic_id(name) == topic_id
    engine.apply(name, spec, **{ADOPT_TOPIC_ID: topic_id})
    assert engine.ready(name)["topicId"] == topic_id
    assert engine.values(name) == [b"before", b"meanwhile"]
    # A shorter period ends, and the topic is deleted.
    engine.kube.delete("Topic", name)
    engine.status(name, lambda _: True, type_="Ready", is_="True", reason="DeletionPending")
    engine.apply(name, {**spec, "deletionGracePeriod": "5s"})
    wait(lambda: engine.kube.get("Topic", name) is None, f"{name} to be deleted", LONG_S)
    wait(lambda: engine.described(name) is None, "brokers to have forgotten it", LONG_S)


def test_two_topics_of_one_name_are_reported(engine: DrivenEngine) -> None:
    name, spec = engine.create(1, 1)
    first = engine.ready(name)
    second = f"{name}-second"
    engine.apply(second, {**spec, "topicName": name})
    status = engine.condition_message(second, "Stalled", "True", "NameTaken")
    assert name in status
    assert engine.ready(name)["topicId"] == first["topicId"]
    # Deleting the refused object must not delete the topic.
    engine.delete_and_wait(second)
    assert engine.topic_id(name) == first["topicId"], "it was never the second one's"


def test_operator_dies_while_topics_are_created(engine: DrivenEngine) -> None:
    made = [engine.create(2, 2) for _ in range(10)]
    local = engine.cluster.local
    record = processes.find(local.layout, "operator")
    assert record is not None
    # The operator dies between creations, and starts adopted.
    processes.kill(local.layout, record)
    made += [engine.create(2, 2) for _ in range(5)]
    local.start_operator()
    ids = {parse_id(engine.ready(name)["topicId"]) for name, _ in made}
    # No topic was created twice or lost.
    assert len(ids) == len(made)
    for name, _ in made:
        engine.wait_for_replicas(name, [2] * 2)


def test_broker_dies_and_rejoins(engine: DrivenEngine) -> None:
    name, _ = engine.create(1, 3, config={"min.insync.replicas": "2"})
    engine.ready(name)
    engine.produce(name, b"before")
    (placed,) = engine.wait_for_replicas(name, [3])
    # The leader dies; with two in-sync replicas writes continue.
    engine.cluster.local.kill_broker(placed[0])
    engine.status(name, lambda status: status["replicas"]["inSync"] == 2, type_="Ready", is_="True")
    engine.produce(name, b"meanwhile")
    engine.cluster.local.start_broker(placed[0])
    engine.status(name, lambda status: status["replicas"]["inSync"] == 3, type_="Ready", is_="True")
    engine.condition_message(name, "FullyReplicated", "True", "AllInSync")
    assert engine.values(name) == [b"before", b"meanwhile"]


def test_placeholders_are_filled_when_a_broker_joins_either_engine(engine: DrivenEngine) -> None:
    """KIP-409: the topic is created with the brokers that exist."""
    brokers = engine.brokers
    name, _ = engine.create(2, len(brokers) + 1)
    status = engine.condition_message(name, "FullyReplicated", "False", "Placeholders")
    assert f"2 of {2 * len(brokers) + 2} replicas wait" in status
    status = engine.ready(name)
    assert status["replicas"]["placed"] == 2 * len(brokers)
    assert status["replicas"]["placeholders"] == 2
    engine.produce(name, b"before")
    # The new broker fills both.
    engine.cluster.local.start_broker(engine.cluster.local.next_broker_id())
    engine.status(name, lambda status: status["replicas"]["inSync"] == 2 * len(brokers) + 2)
    engine.condition_message(name, "FullyReplicated", "True", "AllInSync")
    engine.wait_for_replicas(name, [len(brokers) + 1] * 2)
    assert engine.values(name) == [b"before"]


def test_engine_at_rest_writes_nothing(engine: DrivenEngine) -> None:
    for _ in range(3):
        name, _ = engine.create(2, 2)
        engine.ready(name)
        engine.condition_message(name, "FullyReplicated", "True", "AllInSync")

    def quiet() -> bool:
        # Two looks in a row without any change.
        before = engine.versions()
        time.sleep(_REST_S)
        return engine.versions() == before

    wait(quiet, f"{_REST_S} s without a write", LONG_S)
