"""A topic without a Topic object is adopted by its id only (rule *Identity*)."""

import dataclasses

import pytest

from tests.control_messages import topic_state
from tests.unit.controller.controller_world import (
    T0,
    ControllerWorld,
    broker,
    cluster,
    messages,
    numbered_uuid,
    ready,
    row,
    topic,
)
from tidemark.annotations import ADOPT_TOPIC_ID, FORGET_LEFT_BEHIND
from tidemark.ids import id_text, parse_id
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_operator.controller import left_behind, snapshot
from tidemark_operator.controller.state.model import (
    DeletionPolicy,
    OrphanedTopic,
    PersistedTiering,
    TopicInfo,
)
from tidemark_operator.controller.status import cluster_status, conditions
from tidemark_operator.resources.cluster import LEFT_BEHIND_MAX
from tidemark_operator.resources.conditions import ACCEPTED_MAX

STRAY = numbered_uuid(5)
DISABLED = Tiering(TieringState.DISABLED, 3, DisablePolicy.RETAIN)


def _topic(asked: str = "", **fields: object) -> TopicInfo:
    annotations = {ADOPT_TOPIC_ID: asked} if asked else {}
    return topic(1, replication_factor=1, **({"annotations": annotations} | fields))


def _orphan(number: int = 5, **fields: object) -> OrphanedTopic:
    left = OrphanedTopic(topic_id=numbered_uuid(number), name="topic-1", since_ms=T0)
    return dataclasses.replace(left, **fields)  # type: ignore[arg-type]


def _world(asked: str = "", *, partitions: int = 1, **fields: object) -> ControllerWorld:
    """Return a world with rows of an orphaned topic-1 (id 5) and a new Topic of that name."""
    rows = [row((1,), number=5, partition=part, name="") for part in range(partitions)]
    rows[0] = dataclasses.replace(rows[0], name="topic-1")
    return ControllerWorld(
        brokers=[broker(1)],
        topics=[_topic(asked, **fields)],
        rows=rows,
        view=cluster(orphans=(_orphan(),)),
    )


@pytest.mark.parametrize("form", [id_text(STRAY), str(STRAY)], ids=["kafka", "uuid"])
# Both spellings: Kafka's base64 and the canonical UUID.
def test_topic_adopts_the_id_in_its_annotation(form: str) -> None:
    world = _world(form)
    decision = world.decide()
    assert [event.reason for event in decision.events] == ["TopicAdopted"]
    result = world.reconcile()
    assert result.status["topicId"] == id_text(STRAY)
    assert result.status["partitionsPlaced"] == 1
    (record,) = result.status["accepted"]  # type: ignore[misc]
    assert (record["annotation"], record["value"]) == (ADOPT_TOPIC_ID, form)
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")
    assert [made.topic_id for made in world.state.all_rows()] == [STRAY]
    assert "leftBehind" not in cluster_status(world.state, generation=1, now_ms=T0).status


def test_the_claim_is_written_before_any_decision_about_the_rows() -> None:
    """Growing earlier would place partitions of an id that no status claims."""
    world = _world(id_text(STRAY))
    world.state.put_topic(dataclasses.replace(world.view(), partitions=4))
    world.decide()
    # The growth waits for the status with the adopted id.
    assert len(list(world.state.all_rows())) == 1
    world.reconcile()
    world.reconcile()
    assert len(list(world.state.all_rows())) == 4


@pytest.mark.parametrize(
    "asked", [id_text(numbered_uuid(6)), "what", str(numbered_uuid(1))], ids=["other", "no", "own"]
)
def test_a_wrong_id_is_refused_with_those_that_can_be_adopted(asked: str) -> None:
    world = _world(asked)
    result = world.reconcile()
    assert ready(result)["Stalled"] == ("True", "AdoptionRefused")
    assert f"set it to {id_text(STRAY)}" in messages(result)["Stalled"]
    assert "topicId" not in result.status
    assert len(list(world.state.all_rows())) == 1


def test_an_unknown_id_is_not_recreated() -> None:
    world = ControllerWorld(brokers=[broker(1)], topics=[_topic(id_text(STRAY))])
    result = world.reconcile()
    assert ready(result)["Stalled"] == ("True", "AdoptionRefused")
    assert "remove the annotation to create a new topic" in messages(result)["Stalled"]
    # Without the annotation, the name gets a new topic.
    world.state.put_topic(_topic())
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_a_topic_with_an_id_keeps_it() -> None:
    world = ControllerWorld(brokers=[broker(1)], topics=[_topic()])
    world.reconcile()
    asked = {ADOPT_TOPIC_ID: id_text(STRAY)}
    # The annotation is added to a Topic that already has an id.
    world.state.put_topic(dataclasses.replace(world.view(), annotations=asked))
    result = world.reconcile()
    assert ready(result)["Ready"] == ("True", "Serving")
    assert ready(result)["Stalled"] == ("True", "AdoptionRefused")
    assert result.status["topicId"] == id_text(numbered_uuid(1))


def test_fewer_partitions_than_there_are_are_refused() -> None:
    world = _world(id_text(STRAY), partitions=3)
    message = messages(world.reconcile())["Stalled"]
    assert "Set spec.partitions to 3 or more" in message
    world.state.put_topic(dataclasses.replace(world.view(), partitions=3))
    assert world.reconcile().status["topicId"] == id_text(STRAY)


def test_tiering_resumes_where_it_was() -> None:
    world = _world(id_text(STRAY))
    tiering = PersistedTiering(tiering=DISABLED, since_ms=T0)
    world.state.cluster = cluster(orphans=(_orphan(tiering_status=tiering),))
    # The rows show that the orphan was tiered, and its record has the epoch.
    world.state.put_row(dataclasses.replace(world.row(number=5), manifest=True))
    result = world.reconcile()
    body = result.status["tiering"]
    assert isinstance(body, dict)
    assert (body["state"], body["epoch"], body["policy"]) == ("Disabled", 3, "Retain")


def test_a_tiered_topic_without_a_recorded_epoch_is_not_adopted_with_a_lower_one() -> None:
    world = _world(id_text(STRAY))
    # The record of the orphan has no tiering epoch, although the rows were tiered.
    world.state.put_row(dataclasses.replace(world.row(number=5), manifest=True))
    result = world.reconcile()
    assert ready(result)["Stalled"] == ("True", "AdoptionRefused")
    assert "status.leftBehind" in messages(result)["Stalled"]


def test_orphan_without_rows_can_only_be_forgotten() -> None:
    world = _world(id_text(STRAY))
    # The replicas are already deleted: nothing is left to adopt.
    world.state.remove_row((STRAY, 0))
    message = messages(world.reconcile())["Stalled"]
    assert f"{FORGET_LEFT_BEHIND}: {id_text(STRAY)}" in message


# ---------------------------------------------------------------- leftBehind


def test_named_orphans_are_forgotten_and_reported_once() -> None:
    orphans = tuple(_orphan(number, name=f"t{number}") for number in (5, 6, 7))
    # Both spellings of ids in one list, with an entry that is no id.
    named = f"{id_text(numbered_uuid(6))}, {numbered_uuid(7)},nonsense"
    view = cluster(orphans=orphans, annotations={FORGET_LEFT_BEHIND: named})
    world = ControllerWorld(view=view)
    kept, events = left_behind.settle(world.state)
    assert kept == orphans[:1]
    assert [event.reason for event in events] == ["LeftBehindForgotten"]
    (entry,) = cluster_status(world.state, generation=1, now_ms=T0).status["leftBehind"]  # type: ignore[misc]
    assert entry["topicName"] == "t5"
    world.state.cluster = dataclasses.replace(view, orphans=kept)
    assert left_behind.settle(world.state) == (orphans[:1], ())


def test_an_entry_stays_while_its_topic_is_being_released() -> None:
    """The entry is written before the Topic is deleted."""
    leaving = topic(5, name="topic-1", deletion_ms=T0, deletion_policy=DeletionPolicy.ORPHAN)
    world = ControllerWorld(topics=[leaving], view=cluster(orphans=(_orphan(),)))
    assert left_behind.settle(world.state)[0] == (_orphan(),)


def test_a_full_list_names_both_exits_and_each_makes_room() -> None:
    # The list is full, and another Topic is to be orphaned.
    orphans = tuple(_orphan(100 + n, name=f"t{n}") for n in range(left_behind.LEFT_BEHIND_MAX))
    leaving = _topic(deletion_ms=T0, deletion_policy=DeletionPolicy.ORPHAN, partitions_placed=1)
    world = ControllerWorld(
        brokers=[broker(1)], topics=[leaving], rows=[row((1,))], view=cluster(orphans=orphans)
    )
    result = world.reconcile()
    assert ready(result)["Stalled"][0] == "True"
    message = messages(result)["Stalled"]
    assert ADOPT_TOPIC_ID in message
    assert f"{FORGET_LEFT_BEHIND}: {id_text(orphans[0].topic_id)}" in message
    # The user forgets one entry, which makes room for the new one.
    asked = {FORGET_LEFT_BEHIND: id_text(orphans[0].topic_id)}
    world.state.cluster = dataclasses.replace(world.state.cluster, annotations=asked)
    kept, _ = left_behind.settle(world.state)
    world.state.cluster = dataclasses.replace(world.state.cluster, orphans=kept)
    step = world.decide().deletion
    assert step is not None
    assert step.release
    assert step.orphan is not None


def test_limits_equal_those_of_the_schema() -> None:
    assert left_behind.LEFT_BEHIND_MAX == LEFT_BEHIND_MAX
    assert conditions.ACCEPTED_MAX == ACCEPTED_MAX


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_orphaned_coordinator_topic_is_adopted_automatically(name: str) -> None:
    """After a restored backup, brokers request this topic. No group is served until it exists."""
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(1, name=name, partitions=2, replication_factor=2)],
    )
    states = [
        # Brokers report three partitions, although the new Topic has two.
        snapshot.partition_state(row((1, 2), number=5, partition=part, leader_epoch=3))
        for part in (0, 1, 2)
    ]
    report = topic_state(numbered_uuid(5), name, partitions=tuple(states))
    for node_id in (1, 2):
        world.state.take_replica_report(node_id, [report])
    result = world.reconcile()
    assert parse_id(str(result.status["topicId"])) == numbered_uuid(5)
    assert result.status["partitionsPlaced"] == 3
    world.reconcile()
    assert [*world.state.rows_of(numbered_uuid(5))] == [0, 1, 2]


def test_ambiguous_coordinator_topic_is_not_adopted() -> None:
    # Two candidates: an orphan with that id, or two ids in the reports.
    for orphans, numbers in (((5,), (5,)), ((), (5, 6))):
        world = ControllerWorld(
            brokers=[broker(1)],
            topics=[topic(1, name="__consumer_offsets", replication_factor=1)],
        )
        left = tuple(
            OrphanedTopic(topic_id=numbered_uuid(n), name="__consumer_offsets", since_ms=0)
            for n in orphans
        )
        world.state.cluster = dataclasses.replace(world.state.cluster, orphans=left)
        state = snapshot.partition_state(row((1,), number=5))
        world.state.take_replica_report(
            1,
            [
                topic_state(numbered_uuid(n), "__consumer_offsets", partitions=(state,))
                for n in numbers
            ],
        )
        assert ready(world.reconcile())["Ready"] == ("False", "AdoptionRequired")
