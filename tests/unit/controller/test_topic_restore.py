"""Restore of a Topic from the tier: its id, its rows, and refusals."""

import dataclasses

import pytest

from tests.unit.controller.controller_world import (
    TIERED,
    ControllerWorld,
    broker,
    cluster,
    messages,
    numbered_uuid,
    ready,
    row,
    topic,
)
from tidemark.annotations import RESTORE_FROM_TIER
from tidemark.ids import id_text
from tidemark.leader_epochs import GENERATION
from tidemark.tier.maintenance.topic_restore import TierOrigin
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_operator.controller import topic_restore
from tidemark_operator.controller.state.model import TieringSpec, Tombstone, TopicInfo

LOST = numbered_uuid(5)
ORIGIN = TierOrigin(
    topic_id=LOST,
    partitions=2,
    leader_epoch=8,
    tiering=Tiering(TieringState.ENABLED, 3),
    first_producer_id=2001,
)


def restored_topic(text: str = ORIGIN.text(), **fields: object) -> TopicInfo:
    made = {
        "partitions": 2,
        "replication_factor": 2,
        "tiering_spec": TieringSpec(enabled=True),
        "annotations": {RESTORE_FROM_TIER: text},
    }
    return topic(1, **(made | fields))


def world_of(*topics: TopicInfo) -> ControllerWorld:
    return ControllerWorld(brokers=[broker(1), broker(2)], topics=topics, view=cluster(TIERED))


def test_restored_partitions_recover_above_every_epoch_of_the_tier() -> None:
    """A new leader reads the existing manifest before it leads, and never creates another one."""
    world = world_of(restored_topic())
    first = world.reconcile()
    assert first.status["topicId"] == id_text(LOST)
    # The id must be persisted before rows exist under it.
    assert not list(world.state.all_rows()), "the id stands before anything is placed under it"
    assert first.status["tiering"]["epoch"] == 3  # type: ignore[index]
    world.reconcile()
    rows = list(world.state.all_rows())
    assert [row_.key for row_ in rows] == [(LOST, 0), (LOST, 1)]
    for row_ in rows:
        assert row_.recovering
        assert row_.manifest
        assert (row_.leader_epoch, row_.isr) == (8, (row_.leader,))
        assert len(row_.replicas) == 2
    (record,) = world.reconcile().status["accepted"]  # type: ignore[misc]
    assert record["annotation"] == RESTORE_FROM_TIER


@pytest.mark.parametrize(
    "tiering",
    [
        Tiering(TieringState.DISABLING, 4, DisablePolicy.DELETE),
        Tiering(TieringState.DISABLED, 4, DisablePolicy.RETAIN),
    ],
    ids=["disabling", "disabled"],
)
def test_a_disablement_resumes_where_it_was(tiering: Tiering) -> None:
    text = dataclasses.replace(ORIGIN, tiering=tiering).text()
    world = world_of(restored_topic(text, tiering_spec=TieringSpec(enabled=False)))
    world.reconcile()
    assert world.view().tiering == tiering
    world.reconcile()
    assert world.view().tiering == tiering


def test_later_partitions_start_empty() -> None:
    world = world_of(restored_topic())
    world.reconcile()
    world.reconcile()
    world.state.put_topic(dataclasses.replace(world.view(), partitions=3))
    world.reconcile()
    added = world.state.rows_of(LOST)[2]
    assert not added.recovering
    assert not added.manifest
    # The partition may have existed before the restore: its former epochs are not reused.
    assert added.leader_epoch == ORIGIN.leader_epoch


def test_partitions_added_after_a_restore_start_above_all_earlier_epochs() -> None:
    high = dataclasses.replace(ORIGIN, leader_epoch=3 * GENERATION)
    world = world_of(restored_topic(high.text()))
    world.reconcile()
    world.reconcile()
    # The annotation is removed in the same edit that adds a partition.
    grown = dataclasses.replace(world.view(), partitions=3, annotations={})
    world.state.put_topic(grown)
    world.reconcile()
    assert world.state.rows_of(LOST)[2].leader_epoch >= high.leader_epoch


def test_a_topic_without_a_live_replica_waits_recovering() -> None:
    made = restored_topic()
    origin = dataclasses.replace(made, topic_id=LOST)
    first_row = topic_restore.first_row(origin, row((1,), isr=(), leader=-1, number=5))
    assert first_row.recovering
    assert first_row.isr == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "Run tidemark restore again, or remove the annotation"),
        # Deep nesting must not exhaust the parser's stack.
        ("[" * 9999, "Run tidemark restore again"),
        (ORIGIN.text().replace('"leaderEpoch":8', '"leaderEpoch":2147483647'), "cannot be"),
        (ORIGIN.text().replace("2001", str(2**62)), "cannot be"),
        (
            ORIGIN.text().replace('"partitions":2', '"partitions":3'),
            "Set spec.partitions to 3 or more",
        ),
    ],
    ids=["nothing", "deep", "epoch", "producer", "partitions"],
)
def test_invalid_origin_is_refused(text: str, message: str) -> None:
    world = world_of(restored_topic(text))
    result = world.reconcile()
    assert ready(result)["Stalled"] == ("True", "AdoptionRefused")
    assert message in messages(result)["Stalled"]
    assert not list(world.state.all_rows())
    if "3 or more" not in message:
        assert topic_restore.first_producer_id(world.state) == 0


def test_an_id_that_is_in_use_is_refused() -> None:
    """No restore takes over the records of an existing topic."""
    world = world_of(topic(5, replication_factor=1), restored_topic())
    result = world.reconcile(1)
    assert ready(result)["Stalled"] == ("True", "AdoptionRefused")
    assert "in use" in messages(result)["Stalled"]


def test_old_annotation_does_not_restore_a_deleted_topic() -> None:
    """The annotated manifest of an earlier restore was applied again."""
    world = world_of(restored_topic())
    grave = Tombstone(topic_id=LOST, name="topic-1", partitions=2, tiered_epoch=3, pending=(2,))
    world.state.put_tombstone(LOST, 0, grave)
    result = world.reconcile()
    assert ready(result)["Stalled"] == ("True", "AdoptionRefused")
    assert "names a deleted topic. Remove the annotation" in messages(result)["Stalled"]
    # Without the annotation, an empty topic is created.
    world.state.put_topic(dataclasses.replace(world.view(), annotations={}))
    assert ready(world.reconcile())["Stalled"][1] != "AdoptionRefused"


def test_producers_of_the_lost_cluster_are_known() -> None:
    world = world_of(restored_topic(), topic(2))
    assert topic_restore.first_producer_id(world.state) == 2001


def test_origin_survives_its_text_form() -> None:
    for policy in (None, *DisablePolicy):
        tiering = Tiering(TieringState.DISABLED, 1, policy)
        origin = dataclasses.replace(ORIGIN, tiering=tiering)
        assert TierOrigin.parse(origin.text()) == origin
