"""Commit, fetch, deletion and expiry of offsets."""

import uuid
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.members import DELAY_MS, GROUP, SETTINGS, ClassicWorld
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import TransactionalProducer
from tidemark_broker.groups.core import records
from tidemark_broker.groups.core.group_offsets import Changed
from tidemark_broker.groups.core.offsets import OffsetKey
from tidemark_broker.groups.core.records import record_of
from tidemark_broker.groups.core.values import GroupState, MemberProtocol

T0 = OffsetKey("t", 0)
P1 = TransactionalProducer(7, 1)
RETENTION_MS = SETTINGS.offsets_retention_ms
CHECK_MS = SETTINGS.retention_check_ms


def completing() -> tuple[ClassicWorld, str]:
    world = ClassicWorld()
    answers = world.join()
    world.after(DELAY_MS)
    return world, answers.join.member_id


def subscription(*topics: str) -> bytes:
    """Encode a subscription as Kafka's ConsumerProtocol does in version 0."""
    names = b"".join(len(t).to_bytes(2) + t.encode() for t in topics)
    return bytes(2) + len(topics).to_bytes(4) + names + b"\xff\xff\xff\xff"


def consuming(*topics: str) -> tuple[ClassicWorld, str]:
    world = ClassicWorld()
    # The session is the longest one, so that offsets can expire before it does.
    (member,) = world.stable(
        1, protocols=(MemberProtocol("range", subscription(*topics)),), session_ms=1_800_000
    )
    return world, member


@pytest.mark.parametrize(
    ("commit", "error"),
    [
        (lambda w, m: w.commit(m, 1), ErrorCode.none),
        (lambda w, m: w.commit(m, 2), ErrorCode.illegal_generation),
        (lambda w, m: w.commit("nobody", 1), ErrorCode.unknown_member_id),
        (lambda w, m: w.commit(), ErrorCode.unknown_member_id),
        (lambda w, m: w.commit(producer=P1), ErrorCode.none),
        (lambda w, m: w.commit(m, 1, producer=P1), ErrorCode.none),
        (lambda w, m: w.commit("nobody", 1, producer=P1), ErrorCode.unknown_member_id),
        (lambda w, m: w.commit(m, 1, metadata="x" * 20), ErrorCode.none),
        (lambda w, m: w.commit(m, 1, metadata="x" * 21), ErrorCode.offset_metadata_too_large),
    ],
    ids=[
        "member", "generation", "unknown", "nobody", "transaction", "transaction of a member",
        "transaction of an unknown", "text", "long text",
    ],
)  # fmt: skip
def test_commits_to_a_group_with_members(
    commit: Callable[..., list[ErrorCode]], error: ErrorCode
) -> None:
    world = ClassicWorld()
    member, *_ = world.stable()
    assert commit(world, member) == [error]


@pytest.mark.parametrize(
    ("commit", "error"),
    [
        (lambda w: w.commit(), ErrorCode.none),
        (lambda w: w.commit("m", 1), ErrorCode.group_id_not_found),
        (lambda w: w.commit("m", 1, version=8), ErrorCode.illegal_generation),
        (lambda w: w.commit("m", 1, producer=P1), ErrorCode.illegal_generation),
        (lambda w: w.commit(producer=P1), ErrorCode.none),
    ],
    ids=["nobody", "member", "member before version 9", "transaction of a member", "transaction"],
)
def test_commits_without_a_group(commit: Callable[..., list[ErrorCode]], error: ErrorCode) -> None:
    assert commit(ClassicWorld()) == [error]


def test_commits_wait_for_a_rebalance_to_complete() -> None:
    world, member = completing()
    assert world.commit(member, 1) == [ErrorCode.rebalance_in_progress]
    # Kafka exempts commits of a transaction from this check.
    assert world.commit(member, 1, producer=P1) == [ErrorCode.none]


def test_commit_renews_the_session() -> None:
    world = ClassicWorld()
    first, second = world.stable()
    # 18 s in all exceed the session of 10 s.
    for _ in range(3):
        world.after(6000)
        assert world.commit(first, 1) == [ErrorCode.none] or world.state is not GroupState.STABLE
    assert first in world.group.members
    assert second not in world.group.members


def test_refused_append_changes_no_offset() -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", 0): 5})
    world.log.refuses = ErrorCode.coordinator_not_available
    with pytest.raises(CoordinatorError):
        world.commit(offsets={("t", 0): 6, ("t", 1): 7})
    assert world.committed() == {("t", 0): 5}


def test_offsets_outlive_their_coordinator() -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", 0): 5, ("t", 1): 6, ("u", 0): 7}, metadata="m", retention_ms=-1)
    world.commit(offsets={("t", 0): 8})
    world.group_offsets.delete_offsets(GROUP, [OffsetKey("u", 0)])
    other = world.failover()
    assert other.committed() == {("t", 0): 8, ("t", 1): 6}
    assert other.offsets.of_group(GROUP)[OffsetKey("t", 1)].metadata == "m"
    assert other.offsets.weight_bytes == world.offsets.weight_bytes


# ------------------------------------------------------------ transactions


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
def test_transactional_offset_is_visible_after_its_marker(committed: bool) -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", 0): 5})
    world.commit(offsets={("t", 0): 9}, producer=P1)
    assert world.committed() == {("t", 0): 5}
    assert world.offsets.of_transactions(GROUP) == (T0,)
    other = world.failover()
    # Both the coordinator that appended the offset and one that has loaded it apply the marker.
    for item in (world, other):
        assert item.offsets.is_pending(GROUP, T0)
        item.group_offsets.end_transaction(P1, committed=committed, end_offset=9)
        assert item.committed() == {("t", 0): 9 if committed else 5}
        assert item.offsets.of_transactions(GROUP) == ()


def test_later_commit_overrides_an_earlier_transaction() -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", 0): 9}, producer=P1)
    world.commit(offsets={("t", 0): 10})
    # The marker comes last. The order of the commits decides, as in Kafka.
    world.group_offsets.end_transaction(P1, committed=True, end_offset=9)
    assert world.committed() == {("t", 0): 10}


def test_a_marker_ends_its_producers_transaction_only() -> None:
    world = ClassicWorld()
    other = TransactionalProducer(8, 1)
    world.commit(offsets={("t", 0): 9}, producer=P1)
    world.commit(offsets={("t", 0): 10, ("t", 1): 1}, producer=other)
    # A marker of an older epoch of the producer has no effect.
    world.group_offsets.end_transaction(TransactionalProducer(7, 0), committed=False, end_offset=9)
    world.group_offsets.end_transaction(P1, committed=True, end_offset=9)
    assert world.committed() == {("t", 0): 9}
    assert set(world.offsets.of_transactions(GROUP)) == {T0, OffsetKey("t", 1)}
    # A marker of a newer epoch also ends the transaction of the fenced producer.
    world.group_offsets.end_transaction(TransactionalProducer(8, 2), committed=False, end_offset=9)
    assert world.offsets.of_transactions(GROUP) == ()
    assert world.offsets.weight_bytes == world.offsets.of_group(GROUP)[T0].weight_bytes


# ------------------------------------------------------------ deletion


def test_offsets_of_a_subscribed_topic_cannot_be_deleted() -> None:
    world, member = consuming("t")
    world.commit(member, 1, {("t", 0): 5, ("u", 0): 6})
    keys = [T0, OffsetKey("u", 0), OffsetKey("u", 1)]
    changed = world.group_offsets.delete_offsets(GROUP, keys)
    assert isinstance(changed, Changed)
    assert changed.errors == [
        ErrorCode.group_subscribed_to_topic,
        ErrorCode.none,
        ErrorCode.none,
    ]
    assert world.committed() == {("t", 0): 5}


def test_offset_deletion_requires_a_consumer_group() -> None:
    world = ClassicWorld()
    assert world.group_offsets.delete_offsets(GROUP, [T0]) is ErrorCode.group_id_not_found
    world.stable(1, protocol_type="connect")
    assert world.group_offsets.delete_offsets(GROUP, [T0]) is ErrorCode.non_empty_group


def test_a_group_is_deleted_with_its_offsets() -> None:
    world = ClassicWorld()
    assert world.group_offsets.delete_some_of_group(GROUP)[0] is ErrorCode.group_id_not_found
    (member,) = world.stable(1)
    assert world.group_offsets.delete_some_of_group(GROUP)[0] is ErrorCode.non_empty_group
    world.leave(member)
    # Five steps, because each deletes 250 offsets at most.
    world.commit(offsets={("t", n): n for n in range(1200)})
    world.commit(offsets={("u", 0): 1}, producer=P1)
    steps = 0
    more = True
    while more:
        error, more, _ = world.group_offsets.delete_some_of_group(GROUP)
        assert error is ErrorCode.none
        steps += 1
    assert steps == 5
    assert world.groups == {}
    assert world.room.used_bytes == 0
    other = world.failover()
    assert (other.groups, other.offsets.groups()) == ({}, ())


def test_offsets_of_a_deleted_topic_are_removed() -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", 0): 5, ("u", 0): 6})
    assert not world.group_offsets.forget_some_of_topic(GROUP, "t", uuid.UUID(int=1))
    assert world.committed() == {("u", 0): 6}


# ------------------------------------------------------------ expiry (KIP-211)


def test_offsets_without_a_group_member_expire_after_their_commit() -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", 0): 5})
    world.after(RETENTION_MS - CHECK_MS)
    world.commit(offsets={("t", 1): 6})
    world.after(CHECK_MS)
    assert world.committed() == {("t", 1): 6}
    world.after(RETENTION_MS)
    assert world.groups == {}
    assert world.room.used_bytes == 0


def test_offsets_of_an_empty_group_expire_after_its_last_member() -> None:
    world, member = consuming("t")
    world.commit(member, 1)
    # While the member is there, the offset is older than the retention and stays.
    world.after(RETENTION_MS)
    assert world.heartbeat(member) is ErrorCode.none
    assert world.committed() == {("t", 0): 5}
    world.leave(member)
    world.after(RETENTION_MS - CHECK_MS)
    assert world.committed() == {("t", 0): 5}
    # The retention counts from the last member's departure (KIP-211).
    world.after(2 * CHECK_MS)
    assert world.groups == {}
    assert world.failover().groups == {}


def test_only_offsets_that_are_not_consumed_expire_while_a_group_has_members() -> None:
    world, member = consuming("t")
    world.commit(member, 1, {("t", 0): 5, ("u", 0): 6})
    world.after(RETENTION_MS + CHECK_MS)
    assert world.committed() == {("t", 0): 5}


def test_retention_of_a_commit_overrides_the_default() -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", 0): 5}, retention_ms=2 * RETENTION_MS)
    other = world.failover()
    other.after(2 * RETENTION_MS - CHECK_MS)
    assert other.committed() == {("t", 0): 5}
    other.after(2 * CHECK_MS)
    assert other.groups == {}


def test_offset_with_an_open_transaction_does_not_expire() -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", 0): 5})
    world.commit(offsets={("t", 0): 6}, producer=P1)
    world.after(2 * RETENTION_MS)
    assert world.committed() == {("t", 0): 5}


def test_many_offsets_expire_some_at_a_time() -> None:
    world = ClassicWorld()
    world.commit(offsets={("t", n): n for n in range(600)})
    world.after(RETENTION_MS)
    # The first step has deleted 250 offsets. The others follow within 200 ms.
    assert len(world.committed()) == 350
    world.after(200)
    assert world.groups == {}


def test_a_group_without_members_is_deleted() -> None:
    world = ClassicWorld()
    # The group only has a member id that was handed out and never used (KIP-394).
    world.join(version=4)
    assert GROUP in world.groups
    world.after(2 * CHECK_MS)
    assert world.groups == {}
    assert world.log.groups == [world.log.groups[0], None]


# ------------------------------------------------------------ records


def test_records_match_kafkas_schemas() -> None:
    """Written by hand from Kafka's GroupMetadataValue 3, OffsetCommitValue 4 and 1."""
    key = records.OffsetCommitKey(group="g", topic="t", partition=3)
    value = records.OffsetCommitValue(
        offset=5, leader_epoch=1, metadata="m", commit_timestamp=9, topic_id=None
    )
    record = record_of(key, value)
    assert record.key == b"\0\x01" + b"\0\x01g" + b"\0\x01t" + b"\0\0\0\x03"
    body = (5).to_bytes(8) + (1).to_bytes(4) + b"\x02m" + (9).to_bytes(8) + b"\0"
    assert record.value == b"\0\x04" + body
    # Version 1 has an expiry of its own, for commits with a retention.
    expiring = records.ExpiringOffsetCommitValue(
        offset=5, metadata="m", commit_timestamp=9, expire_timestamp=10
    )
    body = (5).to_bytes(8) + b"\0\x01m" + (9).to_bytes(8) + (10).to_bytes(8)
    assert record_of(key, expiring).value == b"\0\x01" + body
    group = records.GroupMetadataValue(
        protocol_type="c", generation=2, protocol=None, leader=None,
        current_state_timestamp=-1, members=(),
    )  # fmt: skip
    record = record_of(records.GroupMetadataKey(group="g"), group)
    assert record.key == b"\0\x02\0\x01g"
    null = b"\xff\xff"
    assert record.value == b"\0\x03\0\x01c\0\0\0\x02" + null + null + b"\xff" * 8 + b"\0\0\0\0"


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", None), (b"\0", b""), (b"\0\x02", b""), (b"\0\x02\0\x01g", b"\0"),
     (b"\0\x02\0\x01g", b"\0\x09abc"), (b"\0\x02\0\x01g", b"\0\x03\0")],
    ids=["empty", "short", "no group", "no version", "unknown version", "cut"],
)  # fmt: skip
def test_records_that_cannot_be_read(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"."):
        records.read_record(records.CoordinatorRecord(key, value))


def test_records_of_unknown_types_are_skipped() -> None:
    assert records.read_record(records.CoordinatorRecord(b"\0\x63abc", b"x")) is None
