"""Rebuilding of rows that are lost, or older than the brokers' states, from the brokers'
reports.
"""

import dataclasses

import pytest

from tests.control_messages import topic_state
from tests.unit.controller.controller_world import (
    KIP_409,
    T0,
    TIERED,
    ControllerWorld,
    alter,
    broker,
    cluster,
    fence,
    messages,
    numbered_uuid,
    ready,
    report_log,
    reports,
    row,
    topic,
)
from tidemark.annotations import ACCEPT_LOST_DIRECTORY, ADOPT_TOPIC_ID, REBUILD_WITHOUT
from tidemark.ids import id_text
from tidemark.leader_epochs import GENERATION
from tidemark.tiering import TieringState
from tidemark.wire.control import PartitionState
from tidemark_operator.controller import (
    draining,
    elections,
    placement,
    rebuilding,
    registration,
    snapshot,
)
from tidemark_operator.controller.state import commit
from tidemark_operator.controller.state.model import (
    BrokerInfo,
    ClusterInfo,
    ClusterRebuilding,
    OrphanedTopic,
    PartitionRow,
    Tombstone,
    TopicInfo,
)
from tidemark_operator.controller.state.replica_state_reports import EPOCH_MAX
from tidemark_operator.controller.status import StatusResult, broker_status
from tidemark_operator.controller.status.rebuilding import rendered, sentence
from tidemark_operator.controller.topics import TopicDecision

SINCE = "2026-11-23T14:00:00Z"


def _view(*, behind: bool = False, **fields: object) -> ClusterInfo:
    return cluster(TIERED, rebuilding=ClusterRebuilding(since=SINCE, behind=behind), **fields)


def _topic(**fields: object) -> TopicInfo:
    return topic(**({"partitions_placed": 1, "topic_id": numbered_uuid(1)} | fields))


def _lost(*brokers: BrokerInfo, **fields: object) -> ControllerWorld:
    """Return a world with a placed partition whose row is in no slice."""
    return ControllerWorld(
        brokers=brokers or (broker(1), broker(2), broker(3)),
        topics=[_topic(**fields)],
        view=_view(),
    )


def _behind(*rows: PartitionRow, brokers: tuple[BrokerInfo, ...] = ()) -> ControllerWorld:
    """Return a world whose slices may be older than the states that brokers received."""
    world = ControllerWorld(
        brokers=brokers or (broker(1), broker(2), broker(3)),
        topics=[_topic(partitions=len(rows), partitions_placed=len(rows))],
        rows=rows,
        view=_view(behind=True),
    )
    world.state.unverified_rows.update(row_.key for row_ in rows)
    return world


def reported_row(*replicas: int, leader_epoch: int = 5, partition_epoch: int = 9, **more: object):  # type: ignore[no-untyped-def]
    return row(replicas, leader_epoch=leader_epoch, partition_epoch=partition_epoch, **more)


def _blocked(world: ControllerWorld) -> str:
    """Verify that nothing is decided, and return the Ready message."""
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "Rebuilding")
    return messages(result)["Ready"]


# ---------------------------------------------------------------- rebuilding


def test_a_lost_partition_is_rebuilt_once_every_replica_of_the_highest_state_has_reported() -> None:
    world = _lost()
    for node_id, reported in ((1, reported_row(1, 2, 3)), (2, reported_row(1, 2, 3))):
        reports(world, node_id, reported)
        assert "broker 3 has" in _blocked(world) or node_id == 1
        assert not world.state.rows_of(numbered_uuid(1))
    # The last replica has an older state, which does not count.
    reports(world, 3, reported_row(1, 2, 3, partition_epoch=8))
    world.decide()
    made = world.row()
    assert (made.replicas, made.leader, made.isr) == ((1, 2, 3), -1, ())
    assert made.last_known_elr == (1, 2, 3)
    # A whole generation is added, so that no lost epoch is used twice.
    assert (made.leader_epoch, made.partition_epoch) == (5 + GENERATION, 9 + GENERATION)
    assert made.name == "topic-1"


def test_the_longest_log_of_the_eligible_replicas_leads() -> None:
    world = _lost(config={"min.insync.replicas": "2"})
    for node_id in (1, 2, 3):
        reports(world, node_id, reported_row(1, 2, 3, isr=(1, 2)))
    world.decide()
    assert world.row().last_known_elr == (1, 2)
    assert world.replica_logs.unanswered(world.state, 2) == [world.row().key]
    # Broker 3 has the longest log but was not in the ISR, so it does not count.
    report_log(world, 3, 5, 999)
    report_log(world, 1, 5, 100)
    assert world.row().leader == -1
    report_log(world, 2, 5, 120)
    assert (world.row().leader, world.row().leader_epoch) == (2, 6 + GENERATION)
    assert not world.row().recovering


# ---------------------------------------------------------------- a broker that is down


def _one_down(
    reported: PartitionRow, *, min_isr: int = 2, down: tuple[int, ...] = (3,)
) -> ControllerWorld:
    """Return a world with outdated slices, in which all live brokers have reported one state."""
    brokers = [broker(n, fenced=n in down) for n in range(1, 6) if n < 4 or n in down]
    world = _behind(reported_row(1, 2, 3), brokers=tuple(brokers))
    (key,) = world.state.topics
    world.state.put_topic(
        dataclasses.replace(world.state.topics[key], config={"min.insync.replicas": str(min_isr)})
    )
    for broker_ in brokers:
        if broker_.node_id not in down:
            held = (reported,) if broker_.node_id in reported.hosts else ()
            reports(world, broker_.node_id, *held, has_all_records=True)
    return world


def test_rebuilding_does_not_wait_for_a_broker_that_is_down_if_the_others_prove_the_state() -> None:
    """With min.insync.replicas 2 of 3, one of two live replicas has every acknowledged record."""
    world = _one_down(reported_row(1, 2, 3, isr=(1, 3), leader=3))
    world.decide()
    made = world.row()
    assert (made.replicas, made.leader, made.last_known_elr) == ((1, 2, 3), -1, (1, 2))
    assert not world.state.unverified_rows
    report_log(world, 1, 5, 100)
    assert world.row().leader == -1
    report_log(world, 2, 5, 120)
    assert (world.row().leader, world.row().isr) == (2, (2,))
    assert not world.row().recovering
    led = world.row()
    # A late report of broker 3 arrives after the leader was elected.
    reports(
        world, 3, reported_row(1, 2, 3, leader=3, leader_epoch=7, isr=(1, 3), partition_epoch=20)
    )
    world.decide()
    assert world.row() == led


def test_state_below_the_backups_min_isr_proves_nothing() -> None:
    """The minimum may be lower than in the backup: broker 3 alone may have acknowledged records.

    With the former minimum, a replica that left the ISR is eligible.
    """
    alone = reported_row(1, 2, 3, isr=(3,), leader=3)
    assert "broker 3 has" in _blocked(_one_down(alone))
    world = _one_down(dataclasses.replace(alone, elr=(1,)))
    world.decide()
    assert world.row().last_known_elr == (1, 2)


def test_a_live_broker_that_has_not_reported_is_waited_for() -> None:
    world = _one_down(reported_row(1, 2, 3))
    # Broker 2 is live, so its report is still expected.
    world.state.replica_reports.forget_broker(2)
    assert "brokers 2, 3 have" in _blocked(world)


def test_a_broker_has_time_to_report_before_it_counts_as_down() -> None:
    """Old slices may show a broker as fenced that leads by now."""
    world = _one_down(reported_row(1, 2, 3))
    # The controller has just taken over: no broker has had time to report.
    world.state.had_time_to_report = False
    assert "broker 3 has" in _blocked(world)
    world.state.had_time_to_report = True
    world.decide()
    assert world.row().last_known_elr == (1, 2)


def test_a_replica_that_may_have_lost_a_tail_proves_nothing() -> None:
    """A later clean shutdown of its broker does not change that."""
    world = _one_down(reported_row(1, 2, 3))
    # Once not whole, a replica stays so in this rebuilding.
    for has_all_records in (False, True):
        reports(world, 1, reported_row(1, 2, 3), has_all_records=has_all_records)
        assert "broker 3 has" in _blocked(world)
    reports(world, 3, reported_row(1, 2, 3))
    world.decide()
    assert world.row().last_known_elr == (1, 2, 3)


def test_a_replica_that_had_lost_a_tail_before_proves_nothing() -> None:
    reported = reported_row(1, 2, 3, isr=(), leader=-1)
    world = _one_down(dataclasses.replace(reported, last_known_elr=(2,), elr=(1,)))
    assert "broker 3 has" in _blocked(world)


def test_majority_of_the_last_isr_is_enough_with_min_isr_one() -> None:
    world = _one_down(reported_row(1, 2, 3), min_isr=1)
    world.decide()
    assert world.row().last_known_elr == (1, 2)
    # Only one member of a smaller ISR has reported, or none.
    for reported in (
        reported_row(1, 2, 3, isr=(3,), leader=3),
        reported_row(1, 2, 3, isr=(1, 3), leader=3),
    ):
        assert "broker 3 has" in _blocked(_one_down(reported, min_isr=1))


def test_a_majority_with_different_states_proves_nothing() -> None:
    world = _one_down(reported_row(1, 2, 3), min_isr=1)
    # Brokers 1 and 2 report different states, so neither is the last one.
    reports(world, 2, reported_row(1, 2, 3, partition_epoch=10), has_all_records=True)
    assert "broker 3 has" in _blocked(world)


def test_brokers_that_are_down_may_have_continued_without_the_others() -> None:
    """Brokers 3 and 4 are down; a move may have taken the partition to both of them.

    That is impossible where a majority of the ISR received the same state and is whole.
    """
    world = _one_down(reported_row(1, 2, 3), down=(3, 4))
    world.decide()
    assert world.row().last_known_elr == (1, 2)
    world = _one_down(reported_row(1, 2, 3, isr=(1, 3), leader=3), down=(3, 4))
    assert "broker 3 has" in _blocked(world)


def test_a_missing_replica_proves_nothing() -> None:
    """A later state may have taken it away from broker 1."""
    world = _one_down(reported_row(1, 2, 3))
    # Broker 1 reports no replica, although the state names it.
    reports(world, 1)
    assert "broker 3 has" in _blocked(world)


# ---------------------------------------------------------------- partitions beyond the spec


def _grown(**fields: object) -> ControllerWorld:
    """Build a topic that grew from two to four partitions before an older etcd was restored."""
    world = ControllerWorld(
        brokers=[broker(1), broker(2), broker(3)],
        topics=[_topic(partitions=2, **({"partitions_placed": 2} | fields))],
        rows=[row((1, 2, 3), partition=part) for part in (0, 1)],
        view=_view(behind=True),
    )
    world.state.unverified_rows.update(all_row.key for all_row in list(world.state.all_rows()))
    return world


def _grown_reports(world: ControllerWorld, *partitions: int) -> None:
    for node_id in (1, 2, 3):
        held = [reported_row(1, 2, 3, partition=part) for part in partitions]
        reports(world, node_id, *held, has_all_records=True)


@pytest.mark.parametrize(
    "fields",
    [{}, {"topic_id": None, "partitions_placed": 0}, {"config": {"min.insync.replicas": "2"}}],
)
def test_partitions_that_were_added_after_the_backup_are_served(fields: dict[str, object]) -> None:
    """The message names the number of partitions for the spec."""
    world = _grown(**fields)
    _grown_reports(world, 0, 1, 2, 3)
    # The pushed count of partitions covers those that the spec does not know.
    pushed = snapshot.full(world.state)
    assert [topic_.partition_count for topic_ in pushed.topics] == [4]
    for _ in range(2):
        world.reconcile(brokers_acknowledge=False)
    for part in range(4):
        (view,) = snapshot.delta(world.state, rows=[(numbered_uuid(1), part)]).topics
        assert [partition.partition for partition in view.partitions] == [part]
        for node_id in (1, 2, 3):
            report_log(world, node_id, 5, 100, partition=part)
    # All four partitions are served, despite the spec.
    result = world.reconcile()
    assert ready(result)["Ready"] == ("True", "Serving")
    assert ready(result)["Stalled"] == ("True", "PartitionsBeyondSpec")
    assert "Set spec.partitions to 4 or more" in messages(result)["Stalled"]
    assert result.status["partitionsPlaced"] == 4
    world.state.put_topic(dataclasses.replace(world.view(), partitions=4))
    assert ready(world.reconcile())["Stalled"][0] == "False"


def test_a_partition_that_only_a_broker_that_is_down_has_keeps_its_place() -> None:
    """No live broker has a replica of partition 2, but the live ones know its number."""
    world = _grown()
    for node_id in (1, 2):
        held = [reported_row(1, 2, 3, partition=part) for part in (0, 1)]
        reports(world, node_id, *held, has_all_records=True, partition_count=3)
    fence(world, 3)
    pushed = snapshot.full(world.state)
    assert pushed.topics[0].partition_count == 3
    assert "broker 3 has" in _blocked(world)
    assert (numbered_uuid(1), 2) not in [all_row.key for all_row in world.state.all_rows()]


def test_no_partition_between_those_of_the_brokers_is_recreated() -> None:
    world = _grown()
    # Partitions 0, 1 and 3 are reported: partition 2 must have existed too.
    _grown_reports(world, 0, 1, 3)
    world.state.put_topic(dataclasses.replace(world.view(), partitions=4))
    result = world.reconcile()
    assert [*world.state.rows_of(numbered_uuid(1))] == [0, 1, 2, 3]
    assert world.row(2).hosts == ()
    assert ready(result)["Ready"][0] == "False"


# ---------------------------------------------------------------- the end of a rebuilding


def _settle_unserved(world: ControllerWorld) -> None:
    draft = world.draft()
    rebuilding.settle_unserved(draft)
    world.commit(draft)


def test_topics_that_were_left_behind_are_rebuilt_with_the_others() -> None:
    """The rebuilding ends without their adoption, and a later adoption finds them up to date."""
    world = _behind(reported_row(1, 2, 3))
    # An orphaned topic with rows in doubt, which no Topic reconciles.
    left = row((1, 2), number=5, name="topic-5")
    world.state.put_row(left)
    world.state.unverified_rows.add(left.key)
    orphan = OrphanedTopic(topic_id=numbered_uuid(5), name="topic-5", since_ms=0)
    world.state.cluster = dataclasses.replace(world.state.cluster, orphans=(orphan,))
    for node_id in (1, 2):
        reported = row((1, 2), number=5, leader_epoch=3, partition_epoch=4)
        reports(world, node_id, reported_row(1, 2, 3), reported)
    assert rebuilding.waiting_topics(world.state) == ["topic-1", "topic-5"]
    reports(world, 3, reported_row(1, 2, 3))
    world.decide()
    assert "1 topic not rebuilt yet: topic-5" in sentence(world.state)
    # Orphans are settled by the term itself, not by a Topic's reconciler.
    _settle_unserved(world)
    assert world.row(number=5).leader_epoch == 3 + GENERATION
    assert rebuilding.is_done(world.state)


def test_the_cluster_names_the_topics_that_wait() -> None:
    """Orphaned topics are named too, while a broker with a replica is down."""
    world = _behind(reported_row(1, 2, 3))
    left = row((1, 3), number=5, name="topic-5")
    world.state.put_row(left)
    world.state.unverified_rows.add(left.key)
    fence(world, 3)
    for node_id in (1, 2):
        reports(world, node_id, reported_row(1, 2, 3))
    _settle_unserved(world)
    assert not rebuilding.is_done(world.state)
    text = sentence(world.state)
    assert "Broker 3 has not reported. Start it, or delete" in text
    assert text.endswith("2 topics not rebuilt yet: topic-1, topic-5")


def test_a_broker_that_never_registered_is_not_waited_for() -> None:
    never = BrokerInfo(node_id=4, key="ns/broker-4")
    world = _behind(reported_row(1, 2, 3), brokers=(broker(1), broker(2), broker(3), never))
    for node_id in (1, 2, 3):
        reports(world, node_id, reported_row(1, 2, 3))
    world.decide()
    assert rebuilding.is_done(world.state)
    assert rebuilding.unreported_brokers(world.state, world.view()) == ()


def test_a_reader_that_is_down_is_not_waited_for() -> None:
    """Expect no report, because it has no replicas."""
    reader = dataclasses.replace(broker(4, fenced=True), is_reader=True)
    world = _behind(reported_row(1, 2, 3), brokers=(broker(1), broker(2), broker(3), reader))
    for node_id in (1, 2, 3):
        reports(world, node_id, reported_row(1, 2, 3))
    world.decide()
    assert rebuilding.silent(world.state) == ()
    assert rebuilding.is_done(world.state)


def test_a_broker_that_registered_after_the_backup_is_waited_for() -> None:
    """Its Broker does not mention it, but another broker's state names a replica of it."""
    never = BrokerInfo(node_id=4, key="ns/broker-4")
    world = _behind(reported_row(1, 2, 3), brokers=(broker(1), broker(2), broker(3), never))
    for node_id in (1, 2, 3):
        reports(world, node_id, reported_row(1, 2, 3), row((node_id, 4), number=7))
    world.decide()
    assert rebuilding.silent(world.state) == (4,)
    assert not rebuilding.is_done(world.state)
    assert rebuilding.unreported_brokers(world.state, world.view()) == (4,)


def test_highest_state_wins_and_removed_replicas_are_not_waited_for() -> None:
    """The last state of broker 3, before it was deregistered, names broker 4, which no longer
    exists.
    """
    world = _lost()
    # Broker 3 reports an outdated state, brokers 1 and 2 the last one.
    reports(world, 3, reported_row(1, 3, 4, partition_epoch=3, isr=(3, 4), leader=3))
    reports(world, 1, reported_row(1, 2, leader_epoch=6, partition_epoch=12))
    reports(world, 2, reported_row(1, 2, leader_epoch=6, partition_epoch=12))
    world.decide()
    made = world.row()
    assert (made.replicas, made.last_known_elr) == ((1, 2), (1, 2))
    assert (made.leader_epoch, made.partition_epoch) == (6 + GENERATION, 12 + GENERATION)


def test_all_brokers_are_waited_for_when_a_replica_of_the_highest_state_is_missing() -> None:
    """Broker 3 missed the move of its partition to brokers 4 and 5, which have not reported.

    Broker 2 has deleted its replica since.
    """
    world = _lost(broker(2), broker(3), broker(4, fenced=True), broker(5, fenced=True))
    reports(world, 3, reported_row(2, 3, isr=(2,), leader=2))
    reports(world, 2)
    assert "brokers 4, 5 have not reported" in _blocked(world)
    # Broker 4 reports a newer state, whose replicas are now the expected ones.
    reports(world, 4, reported_row(4, 5, leader_epoch=7, partition_epoch=20))
    assert "broker 5 has not reported" in _blocked(world)
    reports(world, 5, reported_row(4, 5, leader_epoch=7, partition_epoch=20))
    world.decide()
    assert world.row().replicas == (4, 5)


def test_a_live_broker_is_waited_for_though_no_report_names_it() -> None:
    world = _lost(broker(1), broker(2), broker(7))
    for node_id in (1, 2):
        reports(world, node_id, reported_row(1, 2))
    assert "broker 7 has not reported" in _blocked(world)
    reports(world, 7)
    world.decide()
    assert world.row().replicas == (1, 2)


def test_replica_with_a_new_disk_has_no_records() -> None:
    world = _lost()
    reports(world, 1)
    for node_id in (2, 3):
        reports(world, node_id, reported_row(1, 2, 3, isr=(1, 2)))
    world.decide()
    assert (world.row().replicas, world.row().last_known_elr) == ((1, 2, 3), (2,))


def test_broker_with_a_new_log_directory_does_not_lead_its_former_partitions() -> None:
    """The replica was in the lost log directory, with all acknowledged records."""
    world = _behind(row((1,)), brokers=(broker(1), broker(2)))
    index = world.state.slice_index(world.row().key)
    # The slice shows that broker 1 had another log directory.
    world.state.slices[index].directories[1] = numbered_uuid(77)
    for node_id in (1, 2):
        reports(world, node_id)
    result = world.reconcile(brokers_acknowledge=False)
    assert (world.row().leader, world.row().isr) == (-1, ())
    assert ready(result)["Ready"] == ("False", "LastCopyMissing")


def test_a_topic_with_an_id_and_an_old_status_without_placements_is_not_recreated() -> None:
    """The topic was restored from the tier, placed after the backup was taken, and produced to."""
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[_topic(partitions_placed=0, replication_factor=1)],
    )
    reports(world, 1)
    reports(world, 2, reported_row(2))
    world.decide()
    assert world.row().replicas == (2,)
    assert world.row().leader_epoch == 5 + GENERATION


def _broker_1_is_deleted() -> tuple[ControllerWorld, BrokerInfo]:
    """Return a world: broker 1 has one of a lost partition's replicas and waits for the other."""
    world = _lost(broker(1), broker(2, fenced=True), broker(3), replication_factor=2)
    reports(world, 1, reported_row(1, 2))
    reports(world, 3)
    world.decide()
    going = dataclasses.replace(broker(1, fenced=True), deleting=True)
    world.state.put_broker(going)
    return world, going


def test_a_broker_is_not_deleted_while_a_rebuilding_needs_it() -> None:
    """No row names the broker, so it seems to have no replica."""
    world, going = _broker_1_is_deleted()
    assert not draining.may_be_removed(world.draft(), going)
    reports(world, 2, reported_row(1, 2))
    world.decide()
    assert rebuilding.only_reported(world.state, 1) == []
    assert not draining.may_be_removed(world.draft(), going), "now the row names it"


def test_a_broker_is_not_deleted_before_the_status_reports_the_rebuilding() -> None:
    """A slice is emptied under a running controller, whose status reports it later."""
    world, going = _broker_1_is_deleted()
    world.state.cluster = dataclasses.replace(world.state.cluster, rebuilding=None)
    assert rebuilding.only_reported(world.state, 1) == [(numbered_uuid(1), 0)]
    assert not draining.may_be_removed(world.draft(), going)
    world.state.put_topic(dataclasses.replace(world.view(), deletion_ms=T0))
    assert rebuilding.only_reported(world.state, 1) == [], "it is not rebuilt any more"


def test_deleted_broker_needed_for_rebuilding_names_the_remedy() -> None:
    world, going = _broker_1_is_deleted()
    status = broker_status(world.state, going, now_ms=T0).status
    (draining_,) = [item for item in status["conditions"] if item["type"] == "Draining"]  # type: ignore[attr-defined]
    assert "1 partition (topic-1-0)" in draining_["message"]
    assert "not rebuilt yet" in draining_["message"]
    value = f"{going.directory_id}@{going.broker_epoch}"
    assert draining_["message"].endswith(f"{ACCEPT_LOST_DIRECTORY}: {value}")
    # The user gives the directory up by the offered value.
    going = dataclasses.replace(going, annotations={ACCEPT_LOST_DIRECTORY: value})
    assert draining.may_be_removed(world.draft(), going)


def test_a_move_in_progress_continues() -> None:
    world = _lost()
    for node_id in (1, 2, 3):
        reports(world, node_id, reported_row(1, 2, 3, isr=(1, 2), adding=(3,), removing=(2,)))
    world.decide()
    assert (world.row().adding, world.row().removing) == ((3,), (2,))


def test_manifest_flag_survives_the_rebuilding() -> None:
    world = _lost(broker(1), broker(2))
    reports(world, 1, reported_row(1, 2, manifest=True))
    reports(world, 2, reported_row(1, 2))
    world.decide()
    assert world.row().manifest


def test_a_rebuilding_deletes_no_replica() -> None:
    """Broker 1 is in the old row, not in the others' states: it may have records that they lack."""
    world = _behind(row((1, 2), leader_epoch=5, partition_epoch=3))
    # Broker 1 has the old row's state, and brokers 2 and 3 the newer one.
    reports(world, 1, reported_row(1, 2, partition_epoch=3))
    for node_id in (2, 3):
        reports(world, node_id, reported_row(2, 3, leader_epoch=6))
    draft = world.draft()
    rebuilding.settle(draft, world.view())
    (write,) = commit.plan(draft).writes
    assert snapshot.removals_of(world.state, write) == {}
    world.commit(draft)
    assert world.row().replicas == (2, 3)


# ---------------------------------------------------------------- rows in doubt


def test_nothing_is_decided_on_a_row_in_doubt() -> None:
    world = _behind(row((1, 2, 3), leader_epoch=5, partition_epoch=3))
    before = world.row()
    # Every kind of decision that could change the row.
    fence(world, 1)
    assert alter(world, 1, 2) != 0
    world.register(2, incarnation=77)
    draft = world.draft()
    elections.balance_leaders(draft, limit=10)
    placement.fill_placeholders(draft, limit=10)
    registration.remove_broker(draft, 3)
    world.commit(draft)
    assert world.row() == before
    assert registration.removal_blockers(world.draft(), 3) == [before.key]


def test_a_row_in_doubt_is_pushed_to_no_broker() -> None:
    """A broker named in the row may have given its replica away since, and would start from an
    empty log.
    """
    world = _behind(row((1, 2, 3), leader_epoch=5, partition_epoch=3))
    assert [topic_.partitions for topic_ in snapshot.full(world.state).topics] == [()]
    assert snapshot.delta(world.state, rows=[world.row().key]).topics == ()


def test_a_current_row_is_led_again_by_the_longest_log() -> None:
    world = _behind(row((1, 2), leader_epoch=5, partition_epoch=9))
    for node_id in (1, 2, 3):
        reports(world, node_id, *([reported_row(1, 2)] if node_id < 3 else []))
    world.decide()
    assert (world.row().leader, world.row().last_known_elr) == (-1, (1, 2))
    assert world.row().key not in world.state.unverified_rows


def test_a_partition_that_no_broker_knows_is_unchanged() -> None:
    world = _behind(row((1, 2)))
    for node_id in (1, 2, 3):
        reports(world, node_id)
    world.decide()
    assert (world.row().leader, world.row().isr) == (1, (1, 2))
    assert not world.state.unverified_rows


def test_disablement_waits_for_the_rebuilding() -> None:
    world = _behind(row((1, 2, 3), leader_epoch=5, partition_epoch=3))
    world.state.put_topic(dataclasses.replace(world.view(), config={}))
    decision = world.decide()
    assert decision.tiering_status == world.view().tiering_status


# ---------------------------------------------------------------- signs of old slices


def _reveals(reported: PartitionRow, **fields: object) -> bool:
    made = row((1, 2), leader_epoch=5, partition_epoch=9)
    world = ControllerWorld(brokers=[broker(1), broker(2)], topics=[_topic()], rows=[made])
    reports(world, 1, dataclasses.replace(reported, **fields))  # type: ignore[arg-type]
    return rebuilding.reveals(world.state, world.state.replica_reports, 1)


@pytest.mark.parametrize(
    ("reported", "is_sign"),
    [
        (reported_row(1, 2), False),
        (reported_row(1, 2, partition_epoch=8), False),
        # A lower leader epoch is older, whatever the partition epoch.
        (reported_row(1, 2, leader_epoch=4, partition_epoch=20), False),
        (reported_row(1, 2, partition_epoch=10), True),
        (reported_row(1, 2, leader_epoch=6, partition_epoch=1), True),
        (reported_row(1, 2, leader=2), True),
        (reported_row(1, 2, leader=2, partition_epoch=7), True),
        (reported_row(1, 2, leader_epoch=5 + 17 * GENERATION), False),
        (reported_row(1, 2, partition_epoch=9 + 17 * GENERATION), False),
        (reported_row(1, 2, number=8, leader_epoch=6), False),
    ],
    ids=[
        "same",
        "older",
        "older leader",
        "newer",
        "newer leader",
        "another history",
        "another history, fewer changes",
        "implausible",
        "implausible, partition epoch",
        "topic unknown",
    ],
)
def test_a_report_that_is_ahead_of_its_row_is_a_sign(reported: PartitionRow, is_sign: bool) -> None:
    assert _reveals(reported) is is_sign


def test_decisions_of_this_term_hide_no_sign_of_old_slices_from_other_brokers() -> None:
    """The ISR had shrunk before the backup was restored; then the leader's session ended."""
    made = row((1, 2), leader_epoch=5, partition_epoch=10)
    world = ControllerWorld(brokers=[broker(1), broker(2)], topics=[_topic()], rows=[made])
    fence(world, 1)
    assert (world.row().leader_epoch, world.row().partition_epoch) == (6, 11)
    # The report has the same partition epoch as this term's decision, but another content.
    shrunk = reported_row(1, 2, leader_epoch=5, partition_epoch=11, isr=(1,))
    reports(world, 1, shrunk)
    assert rebuilding.reveals(world.state, world.state.replica_reports, 1)
    world.acknowledge_states(2)
    reports(world, 2, world.row())
    assert not rebuilding.reveals(world.state, world.state.replica_reports, 2), (
        "that is its pushed state"
    )


def test_report_of_a_deleted_topic_is_no_sign() -> None:
    """The broker was down while the topic was deleted. The tombstone remains valid."""
    world = ControllerWorld(brokers=[broker(1), broker(2)], view=_view())
    stone = Tombstone(
        topic_id=numbered_uuid(1), name="topic-1", partitions=1, tiered_epoch=-1, pending=(1,)
    )
    world.state.put_tombstone(numbered_uuid(1), 3, stone)
    reports(world, 1, reported_row(1, 2))
    assert not rebuilding.reveals(world.state, world.state.replica_reports, 1)
    world.state.put_topic(topic(deletion_ms=1, topic_id=numbered_uuid(1), partitions_placed=1))
    assert rebuilding.lost(world.state, world.view()) == []


def test_reported_topic_is_no_stray_after_its_deletion() -> None:
    """The broker was away while the topic was deleted.

    Its name may be used again, and no user is requested to adopt a topic that no broker has.
    """
    gone, index = numbered_uuid(1), 3
    world = ControllerWorld(brokers=[broker(1), broker(2)], view=cluster(KIP_409))
    stone = Tombstone(topic_id=gone, name="topic-1", partitions=1, tiered_epoch=-1, pending=(1,))
    world.state.put_tombstone(gone, index, stone)
    reports(world, 1, reported_row(1, 2))
    # Once the tombstone is collected, the report is no stray topic either.
    world.state.put_tombstone(gone, index, None)
    assert rendered(world.state, now_ms=T0)["strayTopics"] == []
    again = topic(1, uid=numbered_uuid(77), replication_factor=2)
    world.state.put_topic(again)
    assert world.decide().blocker is None
    assert world.state.rows_of(again.id)


def test_a_tombstone_removes_reports_of_its_topic() -> None:
    world = _lost()
    reports(world, 1, reported_row(1, 2, 3))
    world.state.put_topic(dataclasses.replace(world.view(), deletion_ms=1))
    world.decide()
    assert world.state.tombstones_of(numbered_uuid(1))
    assert not world.state.replica_reports.of((numbered_uuid(1), 0))


def test_a_replica_without_a_tombstone_is_deleted_by_no_broker() -> None:
    """The slice with the tombstone is lost and the Topic is deleted: the replica is a stray."""
    world = ControllerWorld(brokers=[broker(1)], view=_view())
    reports(world, 1, reported_row(1, 2, number=6))
    sent = snapshot.full(world.state)
    assert (sent.removals, sent.topics) == ((), ())


def test_epochs_never_overflow() -> None:
    """A faulty broker may report the highest accepted epoch."""
    world = _lost(broker(1))
    reports(world, 1, reported_row(1, leader_epoch=2**30, partition_epoch=2**30))
    world.decide()
    # The limit of accepted epochs leaves room for the added generation.
    assert world.row().leader_epoch == 2**30 + GENERATION < 2**31
    world = _behind(row((1,), leader_epoch=EPOCH_MAX, partition_epoch=EPOCH_MAX))
    for node_id in (1, 2, 3):
        reported = reported_row(1, leader_epoch=EPOCH_MAX, partition_epoch=EPOCH_MAX)
        reports(world, node_id, *([reported] if node_id == 1 else []))
    world.decide()
    assert max(world.row().leader_epoch, world.row().partition_epoch) < 2**31 - GENERATION // 2


@pytest.mark.parametrize(
    "reported",
    [
        {"leader_epoch": 2**31 - 1},
        {"partition_epoch": -7},
        {"isr": (9,)},
        {"leader": 9},
        {"replicas": (1, 1)},
        {"replicas": ()},
        {"replicas": tuple(range(200))},
        {"leader_recovery_state": 5},
    ],
    ids=lambda reported: next(iter(reported)),
)
def test_an_impossible_row_is_rejected(reported: dict[str, object]) -> None:
    world = _lost(broker(1))
    sound: PartitionState = snapshot.partition_state(reported_row(1))
    state = dataclasses.replace(sound, **reported)  # type: ignore[arg-type]
    world.state.replica_reports.take(
        1, [topic_state(numbered_uuid(1), "topic-1", partitions=(state,))]
    )
    assert "broker 1 cannot report the state of their replicas" in _blocked(world)


def test_a_partition_number_that_no_topic_can_have_is_ignored() -> None:
    world = _lost(broker(1))
    reports(world, 1, reported_row(1), reported_row(1, partition=2_000_000_000))
    assert list(world.state.replica_reports.numbers(numbered_uuid(1))) == [0]
    name = "no|topic"
    world.state.replica_reports.take(1, [topic_state(numbered_uuid(7), name)])
    assert world.state.replica_reports.ids_named(name) == []


# ---------------------------------------------------------------- giving brokers up


def annotate(world: ControllerWorld, value: str) -> None:
    world.state.put_topic(dataclasses.replace(world.view(), annotations={REBUILD_WITHOUT: value}))


def _two_of_three() -> ControllerWorld:
    world = _lost(broker(1), broker(2), broker(3, fenced=True))
    for node_id in (1, 2):
        reports(world, node_id, reported_row(1, 2, 3))
    return world


def test_the_message_names_the_missing_brokers_and_following_it_ends_the_wait() -> None:
    world = _two_of_three()
    message = _blocked(world)
    assert message.endswith(f"{REBUILD_WITHOUT}: 3@{SINCE}")
    annotate(world, f"3@{SINCE}")
    # The first pass records the acceptance, the second one acts.
    result = world.reconcile(brokers_acknowledge=False)
    (record,) = result.status["accepted"]  # type: ignore[misc]
    assert (record["annotation"], record["value"]) == (REBUILD_WITHOUT, f"3@{SINCE}")
    assert not world.state.rows_of(numbered_uuid(1)), "it is recorded first"
    world.decide()
    assert (world.row().replicas, world.row().last_known_elr) == ((1, 2, 3), (1, 2))


@pytest.mark.parametrize("value", ["3", "3@2025-01-01T00:00:00Z", f"all@{SINCE}", f"2@{SINCE}"])
def test_an_annotation_for_another_rebuilding_gives_no_broker_up(value: str) -> None:
    world = _two_of_three()
    annotate(world, value)
    for _ in range(2):
        assert f"{REBUILD_WITHOUT}: " in _blocked(world)
    assert not world.state.rows_of(numbered_uuid(1))


def test_a_partition_without_a_replica_restarts_where_a_user_accepts_the_loss() -> None:
    world = _lost(broker(1), broker(2), broker(9, fenced=True), replication_factor=2)
    for node_id in (1, 2):
        reports(world, node_id)
    assert "broker 9 has not reported" in _blocked(world)
    annotate(world, f"9@{SINCE}")
    world.reconcile()
    # No replica is left anywhere, so the loss must be accepted for the copy as well.
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "LastCopyMissing")
    assert "partition 0 starts empty on broker" in messages(result)["Ready"]
    assert world.row().leader_epoch >= GENERATION


# ---------------------------------------------------------------- topics without a status


def test_topic_without_status_recovers_its_id_and_tiering() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)], topics=[topic(replication_factor=2)], view=_view()
    )
    # The brokers' last pushed states still contain the tiering state and its epoch.
    for node_id in (1, 2):
        reports(
            world,
            node_id,
            reported_row(1, 2),
            tiering_state=int(TieringState.DISABLED),
            tiered_epoch=3,
        )
    result = world.reconcile(brokers_acknowledge=False)
    # The id and the tiering come from the reports, without an annotation.
    assert ready(result)["Ready"] == ("False", "Adopting")
    assert (result.status["topicId"], result.status["partitionsPlaced"]) == (
        id_text(numbered_uuid(1)),
        1,
    )
    assert "accepted" not in result.status
    assert world.view().tiering.epoch == 3
    assert world.view().tiering.state is TieringState.DISABLED
    # Once the status has the id, the rows are rebuilt from the same reports.
    world.decide()
    assert world.row().last_known_elr == (1, 2)


def test_paused_topic_is_rebuilt_without_applying_its_spec() -> None:
    world = _lost(paused=True, partitions=4, config={"min.insync.replicas": "2"})
    for node_id in (1, 2):
        reports(world, node_id, reported_row(1, 2, 3))
    result = world.reconcile(brokers_acknowledge=False)
    assert "broker 3 has not reported. Start it" in messages(result)["Reconciling"]
    assert ready(result)["Reconciling"] == ("False", "Paused")
    reports(world, 3, reported_row(1, 2, 3))
    world.decide()
    for node_id in (1, 2, 3):
        # The election by log runs for a paused topic too.
        report_log(world, node_id, 5, 100)
    (made,) = world.state.all_rows()
    assert made.replicas == (1, 2, 3)
    assert made.leader in (1, 2, 3)
    result = world.reconcile()
    assert "not reported" not in messages(result)["Reconciling"]
    assert result.status["partitionsPlaced"] == 1


def test_a_broker_that_a_paused_topic_waits_for_can_be_given_up() -> None:
    world = _two_of_three()
    world.state.put_topic(dataclasses.replace(world.view(), paused=True))
    offered = messages(world.reconcile(brokers_acknowledge=False))["Reconciling"]
    annotate(world, offered.rpartition(": ")[2])
    assert "accepted" in world.reconcile(brokers_acknowledge=False).status
    world.decide()
    assert world.row().last_known_elr == (1, 2)


def test_paused_topic_without_status_recovers_its_id() -> None:
    paused = topic(replication_factor=2, paused=True)
    world = ControllerWorld(brokers=[broker(1), broker(2)], topics=[paused], view=_view())
    disabled = {"tiering_state": int(TieringState.DISABLED), "tiered_epoch": 3}
    for node_id in (1, 2):
        reports(world, node_id, reported_row(1, 2), **disabled)
    status = world.reconcile(brokers_acknowledge=False).status
    assert (status["topicId"], status["partitionsPlaced"]) == (id_text(numbered_uuid(1)), 1)
    assert status["tiering"]["epoch"] == 3  # type: ignore[index]
    world.decide()
    assert world.row().last_known_elr == (1, 2)


def test_a_paused_topic_with_remaining_rows_has_them_in_its_status() -> None:
    """Otherwise users would not notice them: a slice alone is no evidence."""
    world = ControllerWorld(
        brokers=[broker(1)],
        topics=[topic(paused=True, config={"retention.ms": "5"})],
        rows=[row((1,))],
    )
    status = world.reconcile().status
    assert (status["topicId"], status["partitionsPlaced"]) == (id_text(numbered_uuid(1)), 1)
    assert status["heldConfig"] == {"retention.ms": "5"}


def test_a_pushed_tiered_epoch_never_decreases() -> None:
    world = _behind(row((1, 2), leader_epoch=5, partition_epoch=3))
    reports(world, 1, reported_row(1, 2), tiering_state=int(TieringState.DISABLING), tiered_epoch=4)
    world.state.put_topic(world.view())
    assert world.view().tiering.epoch == 4
    (pushed,) = snapshot.full(world.state).topics
    assert (pushed.tiered_epoch, pushed.tiering_state) == (4, int(TieringState.DISABLING))


def test_a_topic_that_only_brokers_know_is_adopted_by_its_id() -> None:
    """All objects were applied again, and have new UIDs."""
    world = ControllerWorld(
        brokers=[broker(1), broker(2)], topics=[topic(2, replication_factor=2)], view=_view()
    )
    # A Topic with a new UID but the same name as the reported topic.
    world.state.put_topic(dataclasses.replace(world.view(2), name="topic-1"))
    for node_id in (1, 2):
        reports(world, node_id, reported_row(1, 2))
    result = world.reconcile(2, brokers_acknowledge=False)
    old = id_text(numbered_uuid(1))
    assert ready(result)["Ready"] == ("False", "AdoptionRequired")
    assert f"{ADOPT_TOPIC_ID}: {old}" in messages(result)["Ready"]
    world.state.put_topic(dataclasses.replace(world.view(2), annotations={ADOPT_TOPIC_ID: old}))
    result = world.reconcile(2, brokers_acknowledge=False)
    assert (result.status["topicId"], result.status["partitionsPlaced"]) == (old, 1)
    world.decide(2)
    assert world.row().last_known_elr == (1, 2)
    assert world.row().name == "topic-1"


def _new(world: ControllerWorld) -> TopicDecision | StatusResult:
    world.state.put_topic(topic(4, replication_factor=1))
    return world.reconcile(4, brokers_acknowledge=False)


def test_nothing_is_recreated_before_every_broker_has_reported_that_it_has_no_replica() -> None:
    world = ControllerWorld(brokers=[broker(1), broker(2, fenced=True)], view=_view())
    reports(world, 1)
    world.state.put_topic(topic(4, replication_factor=1))
    result = world.reconcile(4, brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "Rebuilding")
    assert f"{REBUILD_WITHOUT}: 2@{SINCE}" in messages(result)["Ready"]
    assert not world.state.rows_of(numbered_uuid(4))
    reports(world, 2)
    world.reconcile(4)
    assert world.row(number=4).leader == 1


def test_reported_name_is_not_recreated_outside_a_rebuilding() -> None:
    world = ControllerWorld(brokers=[broker(1)], topics=[topic(1, replication_factor=1)])
    reports(world, 1, reported_row(1, number=9))
    world.state.put_topic(topic(1, replication_factor=1, name="topic-9"))
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "AdoptionRequired")


# ---------------------------------------------------------------- completion


def test_rebuilding_is_done_once_all_reported_and_all_rows_are_settled() -> None:
    world = _behind(row((1, 2), leader_epoch=5, partition_epoch=9))
    for node_id in (1, 2):
        reports(world, node_id, reported_row(1, 2))
    assert not rebuilding.is_done(world.state)
    reports(world, 3)
    assert not rebuilding.is_done(world.state)
    world.decide()
    assert rebuilding.is_done(world.state)
    # A broker that joins now may have replicas as well.
    world.state.put_broker(broker(4))
    assert not rebuilding.is_done(world.state)
    world.state.drop_broker(4)
    assert rebuilding.is_done(world.state)


def test_a_topic_on_several_pages_has_the_furthest_tiering_that_any_of_them_names() -> None:
    held, pages = ControllerWorld().state.replica_reports, []
    for partition, epoch in ((0, 4), (1, 3)):
        # Two pages of one report name different tiered epochs.
        reported = (snapshot.partition_state(reported_row(1, partition=partition)),)
        state = int(TieringState.ENABLED)
        pages.append(
            topic_state(
                numbered_uuid(1), "a", partitions=reported, tiering_state=state, tiered_epoch=epoch
            )
        )
    held.take(1, pages)
    assert held.tiering(numbered_uuid(1)).epoch == 4
    assert list(held.numbers(numbered_uuid(1))) == [0, 1]


def test_reported_names_are_indexed() -> None:
    """Names that no broker reports any more are forgotten."""
    held = ControllerWorld().state.replica_reports
    held.take(1, [topic_state(numbered_uuid(1), "a"), topic_state(numbered_uuid(1), "b")])
    held.take(2, [topic_state(numbered_uuid(1), "a"), topic_state(numbered_uuid(2), "a")])
    assert held.ids_named("a") == [numbered_uuid(1), numbered_uuid(2)]
    held.forget_broker(2)
    assert held.ids_named("a") == [numbered_uuid(1)]
    held.take(1, [topic_state(numbered_uuid(1), "c")])
    assert (held.ids_named("a"), held.ids_named("c")) == ([], [numbered_uuid(1)])
    held.forget_topic(numbered_uuid(1))
    assert held.ids_named("c") == []
    assert not held._ids_by_name


def test_new_report_replaces_the_former_one() -> None:
    world = _lost()
    reports(
        world, 1, reported_row(1, 2), reported_row(1, 2, partition=1), reported_row(1, number=3)
    )
    reports(world, 1, reported_row(1, 2))
    assert world.state.replica_reports.keys_on(1) == [(numbered_uuid(1), 0)]
    assert list(world.state.replica_reports.topic_ids()) == [numbered_uuid(1)]
    world.state.replica_reports.forget_broker(1)
    assert not list(world.state.replica_reports.topic_ids())
    assert not world.state.replica_reports.has_reported(1)


def test_topic_without_status_is_deleted_on_reporting_brokers() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)], topics=[topic(deletion_ms=1)], view=_view()
    )
    reports(world, 2, reported_row(2))
    decision = world.decide()
    assert decision.deletion is not None
    assert not decision.deletion.release
    (stone,) = world.state.tombstones_of(numbered_uuid(1)).values()
    assert stone.pending == (1, 2)


def test_replicas_that_no_row_names_are_deleted_with_their_topic() -> None:
    made = row((1,), leader_epoch=5)
    world = ControllerWorld(
        brokers=[broker(1), broker(2)], topics=[_topic(deletion_ms=1)], rows=[made]
    )
    reports(world, 2, reported_row(2, 3, leader_epoch=3))
    world.decide()
    (stone,) = world.state.tombstones_of(numbered_uuid(1)).values()
    assert stone.pending == (1, 2)


def test_a_topic_with_a_late_status_is_not_a_lost_topic() -> None:
    """The state of a reconnecting broker has the first partitions; the last ones are not placed
    yet.
    """
    world = ControllerWorld(
        brokers=[broker(1)],
        topics=[topic(partitions=2, replication_factor=1)],
        rows=[row((1,), leader_epoch=2)],
    )
    reports(world, 1, reported_row(1, leader_epoch=2, partition_epoch=0))
    world.reconcile()
    assert world.row(1).leader_epoch == 0
    assert world.row(0).leader_epoch == 2
