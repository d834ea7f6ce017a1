"""Low watermark, state file, and metadata cache."""

import dataclasses
import json
import uuid

import pytest

from tests.control_messages import partition_states, topic_state
from tidemark.tier.metadata.head import HeadPosition
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire import control
from tidemark_broker.replication.metadata import MetadataCache, TopicMetadata, is_newer
from tidemark_broker.replication.partition import state_file
from tidemark_broker.replication.partition.log_start import smallest
from tidemark_broker.replication.partition.state_file import StoredState
from tidemark_broker.replication.remote import RemoteEnd

UNTIERED = Tiering(TieringState.NONE, -1, DisablePolicy.RETAIN)
TOPIC = uuid.UUID("12345678-1234-5678-1234-567812345678")


def test_the_low_watermark_waits_for_every_alive_follower() -> None:
    assert smallest(10, {2: 5, 3: 7}, {2, 3}) == 5
    assert smallest(10, {2: 5, 3: 7}, {3}) == 7
    # Follower 2 has not reported its log start yet, so the low watermark is unknown.
    assert smallest(10, {3: 12}, {2, 3}) == -1
    assert smallest(10, {}, ()) == 10


def row(**changes: object) -> control.PartitionState:
    values: dict[str, object] = {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 3,
        "partition_epoch": 7,
        "replicas": (1, 2, -1),
        "isr": (1, 2),
        "manifest": False,
    }
    return control.PartitionState(**(values | changes))  # type: ignore[arg-type]


def test_the_state_file_round_trips() -> None:
    state = StoredState(
        topic="flights",
        topic_id=TOPIC,
        controller_epoch=4,
        tiering=Tiering(TieringState.DISABLING, 2, DisablePolicy.DELETE),
        row=row(manifest=True, leader_recovery_state=1),
        remote_end=RemoteEnd(41, 3),
        tier_position=HeadPosition(17, "commit", 2),
        tier_damaged=True,
    )
    data = json.loads(json.dumps(state_file.to_json(state)))
    names = ("tieringState", "tieredEpoch", "disablePolicy")
    assert [data[name] for name in names] == ["DISABLING", 2, "DELETE"]
    assert state_file.from_json(data) == state


def test_a_state_file_without_leader_recovery_state_reads_as_recovered() -> None:
    view = TopicMetadata(topic_id=TOPIC, name="t", config={}, tiering=UNTIERED)
    state = StoredState.of(view, row(), 1)
    old = json.loads(json.dumps(state_file.to_json(state)))
    del old["row"]["leaderRecoveryState"]
    assert state_file.from_json(old) == state
    old["row"]["leaderRecoveryState"] = 9
    with pytest.raises(ValueError, match="9 is not a valid LeaderRecoveryState"):
        state_file.from_json(old)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"topicId": "no"}, {"row": {"partition": 0}}, {"tieringState": "MAYBE"}],
)
def test_an_invalid_state_file_is_rejected(change: dict[str, object]) -> None:
    state = StoredState(
        topic="t",
        topic_id=TOPIC,
        controller_epoch=1,
        tiering=UNTIERED,
        row=None,
        remote_end=None,
    )
    with pytest.raises(ValueError, match=r".+"):
        state_file.from_json(state_file.to_json(state) | change)


def request(
    *, full: bool, rows: tuple[control.PartitionState, ...]
) -> control.PartitionStatesRequest:
    topic = topic_state(TOPIC, "flights", partitions=rows)
    return partition_states(topic, full=full, cluster_id="x")


def test_a_delta_merges_and_never_lowers_an_epoch() -> None:
    cache = MetadataCache("x")
    cache.apply(request(full=True, rows=(row(), row(partition=1))))
    cache.apply(request(full=False, rows=(row(leader_epoch=4, partition_epoch=8, leader=2),)))
    cache.apply(request(full=False, rows=(row(),)))
    view = cache.topics["flights"]
    assert [view.partitions[n].leader for n in (0, 1)] == [2, 1]


def test_a_late_alter_partition_answer_does_not_restore_ended_moves() -> None:
    """The commit that adds the last replica of a move to the ISR ends the move. The leader's answer
    has only the ISR, and may arrive before or after that row."""
    moving, ended = row(adding=(2,)), row(partition_epoch=8, replicas=(1, 2))
    answered = dataclasses.replace(moving, partition_epoch=8)
    for answer_first in (True, False):
        cache = MetadataCache("x")
        cache.apply(request(full=True, rows=(moving,)))
        if answer_first:
            cache.update(TOPIC, answered)
            assert cache.topics["flights"].partitions[0] == answered
        cache.apply(request(full=False, rows=(ended,)))
        cache.update(TOPIC, answered)
        assert cache.topics["flights"].partitions[0] == ended


def test_a_changed_row_does_not_copy_the_topic() -> None:
    """The other rows are not copied. Only a change of the topic itself makes a new view."""
    cache = MetadataCache("x")
    cache.apply(request(full=True, rows=(row(partition=2), row(partition=1))))
    view = cache.topics["flights"]
    cache.apply(request(full=False, rows=(row(partition_epoch=8, leader=2), row(partition=3))))
    assert cache.topics["flights"] is cache.by_id(TOPIC) is view
    assert {number: partition.leader for number, partition in view.partitions.items()} == {
        0: 2,
        1: row().leader,
        2: row().leader,
        3: row().leader,
    }
    assert list(view.partitions) == [0, 1, 2, 3]
    # The tiered epoch belongs to the topic: the next view keeps all rows.
    whole = request(full=False, rows=())
    topic = dataclasses.replace(whole.topics[0], tiered_epoch=5)
    cache.apply(dataclasses.replace(whole, topics=(topic,)))
    assert cache.topics["flights"].tiering.epoch == 5
    assert list(cache.topics["flights"].partitions) == [0, 1, 2, 3]


def test_a_delta_without_brokers_keeps_them_and_a_snapshot_replaces_them() -> None:
    cache, live = MetadataCache("x"), broker_state(1)
    snapshot = dataclasses.replace(request(full=True, rows=(row(),)), brokers=(live,))
    cache.apply(snapshot)
    cache.apply(request(full=False, rows=(row(partition=1),)))
    assert cache.brokers == {1: live}
    fenced = dataclasses.replace(live, fenced=True)
    cache.apply(dataclasses.replace(request(full=False, rows=()), brokers=(fenced,)))
    assert not cache.is_alive(1)
    cache.apply(request(full=True, rows=()))
    assert not cache.brokers


def broker_state(broker_id: int) -> control.BrokerState:
    return control.BrokerState(
        broker_id=broker_id, broker_epoch=1, rack=None, fenced=False, listeners=()
    )


def test_a_new_manifest_flag_is_newer_in_the_same_epochs() -> None:
    assert is_newer(row(manifest=True), row())
    assert not is_newer(row(), row(manifest=True))
    assert is_newer(row(partition_epoch=8), row(manifest=True))


def test_topics_deleted_while_the_controller_was_unreachable() -> None:
    """Listeners with data of a topic receive its tombstone. A topic whose name another one has, or
    that a snapshot does not name, counts as deleted only once the controller knows all topics."""
    cache, tombstones = MetadataCache("c"), list[tuple[str, uuid.UUID]]()
    cache.deleted.append(lambda view: tombstones.append((view.name, view.topic_id)))
    a, b, c, d, recreated_id = (uuid.UUID(int=number) for number in range(1, 6))
    former = [
        topic_state(item, name, partitions=(row(),))
        for item, name in zip((a, b, c, d), "abcd", strict=True)
    ]
    cache.apply(partition_states(*former, full=True))
    tombstone = control.Removal(topic_id=b, partition=-1, partition_epoch=0)
    present = topic_state(recreated_id, "a", partitions=(row(),))
    # While the broker was cut off, b was deleted and a was deleted and created again. The
    # snapshot says nothing about c, and d is not served yet.
    cache.apply(partition_states(present, full=True, removals=(tombstone,)))
    assert tombstones == [("b", b)]
    assert not any(cache.is_deleted(name, 0) for name in "abcd")
    unserved_topic = control.UnservedTopic(name="d", topic_id=d, is_unmanaged=False)
    # Now the controller knows all topics: the former a and c are deleted, d still is not.
    cache.apply(partition_states(knows_all=True, unserved=(unserved_topic,)))
    assert tombstones == [("b", b), ("a", a), ("c", c)]
    assert [cache.is_deleted(name, 0) for name in "abcd"] == [False, True, True, False]
    cache.apply(partition_states(knows_all=True))
    assert tombstones[3:] == [("d", d)]


def test_a_recorded_deletion_does_not_concern_a_later_topic_of_that_name() -> None:
    """A backup restores the tombstone of a former topic and does not have the present one."""
    cache = MetadataCache("c")
    former, present = uuid.UUID(int=1), uuid.UUID(int=2)
    tombstone = control.Removal(topic_id=former, partition=-1, partition_epoch=0)
    cache.apply(partition_states(topic_state(former, "t", partitions=(row(),)), full=True))
    cache.apply(partition_states(removals=(tombstone,)))
    assert cache.is_deleted("t", 0)
    cache.apply(partition_states(topic_state(present, "t", partitions=(row(),))))
    assert not cache.is_deleted("t", 0)
    cache.apply(partition_states(full=True, removals=(tombstone,)))
    assert "t" not in cache.topics
    assert not cache.is_deleted("t", 0)
    cache.apply(partition_states(full=True))
    assert not cache.is_deleted("t", 0)


def test_a_partition_beyond_the_partition_count_is_deleted() -> None:
    cache = MetadataCache("c")
    smaller = topic_state(uuid.UUID(int=2), "t", partitions=(row(),), partition_count=1)
    cache.apply(partition_states(smaller, full=True))
    assert not cache.is_deleted("t", 1)
    cache.apply(partition_states(smaller, full=True, knows_all=True))
    assert cache.is_deleted("t", 1)
    assert not cache.is_deleted("t", 0)


def test_a_partition_in_doubt_keeps_its_last_known_row() -> None:
    cache, topic_id = MetadataCache("c"), uuid.UUID(int=1)
    rows = tuple(row(partition=number, partition_epoch=4) for number in range(3))
    cache.apply(partition_states(topic_state(topic_id, "t", partitions=rows), full=True))
    cache.apply(
        partition_states(
            topic_state(topic_id, "t", partitions=rows[1:2], partition_count=5), full=True
        )
    )
    view = cache.topics["t"]
    assert [*view.partitions] == [0, 1, 2, 3, 4]
    # The snapshot has only partition 1 of five. Known rows stay, unknown ones have no leader.
    assert view.partitions[0] is rows[0]
    assert (view.partitions[4].leader, view.partitions[4].leader_epoch) == (-1, -1)
    assert [cache.is_in_doubt(topic_id, number) for number in range(5)] == [
        True, False, True, True, True,
    ]  # fmt: skip
    settled = row(partition=4, leader_epoch=9)
    cache.apply(partition_states(topic_state(topic_id, "t", partitions=(settled,))))
    assert view.partitions[4] is settled
    assert not cache.is_in_doubt(topic_id, 4)


def test_a_topic_never_has_fewer_partitions_than_before() -> None:
    """A backup from before the topic grew has fewer partitions."""
    cache, topic_id = MetadataCache("c"), uuid.UUID(int=1)
    rows = tuple(row(partition=number) for number in range(4))
    cache.apply(partition_states(topic_state(topic_id, "t", partitions=rows), full=True))
    restored = topic_state(topic_id, "t", partitions=rows[:2], partition_count=2)
    cache.apply(partition_states(restored, full=True))
    assert [*cache.topics["t"].partitions] == [0, 1, 2, 3]


def test_a_topic_without_its_resource_stays_visible() -> None:
    cache, topic_id = MetadataCache("c"), uuid.UUID(int=1)
    cache.apply(partition_states(topic_state(topic_id, "t", partitions=(row(),)), full=True))
    stray = control.UnservedTopic(name="t", topic_id=topic_id, is_unmanaged=True)
    # The Topic resource was lost, but brokers still have replicas of the topic.
    for _ in range(2):
        cache.apply(partition_states(full=True, unserved=(stray,), knows_all=True))
        assert [*cache.topics["t"].partitions] == [0]
    released = control.UnservedTopic(name="t", topic_id=topic_id, is_unmanaged=False)
    cache.apply(partition_states(full=True, unserved=(released,), knows_all=True))
    assert "t" not in cache.topics
    assert not cache.is_deleted("t", 0)


def test_a_topic_discovered_after_the_snapshot_is_visible_again() -> None:
    """A restored controller discovers the topic when the first broker with a replica registers."""
    cache, topic_id = MetadataCache("c"), uuid.UUID(int=1)
    rows = (row(), row(partition=1))
    cache.apply(partition_states(topic_state(topic_id, "t", partitions=rows), full=True))
    cache.apply(partition_states(full=True))
    stray = control.UnservedTopic(name="t", topic_id=topic_id, is_unmanaged=True)
    version = cache.topics_version
    for is_full in (False, True, False):
        cache.apply(partition_states(full=is_full, unserved=(stray,)))
        assert [*cache.topics["t"].partitions] == [0, 1]
        assert cache.is_in_doubt(topic_id, 1)
        assert not cache.has_topic("t")
    assert cache.topics_version > version
