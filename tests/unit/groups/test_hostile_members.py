"""Members that write what they like: nothing of it grows without limit, or reads as what it is
not."""

import logging

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.members import GROUP, RANGE, Told, World
from tests.unit.groups.test_offsets import P1, consuming, subscription
from tidemark_broker.coordinators.log import TransactionalProducer
from tidemark_broker.groups.core import classic_group
from tidemark_broker.groups.core.values import GroupState, MemberProtocol

FULL = ErrorCode.group_max_size_reached
KIB = 1024


@pytest.mark.parametrize(
    "metadata",
    [
        bytes(2) + b"\x7f\xff\xff\xff" + bytes(8),
        bytes(2) + b"\xff\xff\xff\xff" + bytes(8),
        bytes(2) + b"\x00\x00\x00\x01\x7f\xff",
        b"",
    ],
    ids=["two thousand million topics", "null", "a topic that is not there", "nothing"],
)
def test_a_subscription_that_claims_more_than_there_is_is_not_known(metadata: bytes) -> None:
    """kio would reserve the memory, which ends the process."""
    world = World()
    world.stable(1, protocols=(MemberProtocol("range", metadata),))
    assert world.group.subscribed is None


def test_of_a_group_of_very_many_topics_it_is_not_known_what_it_consumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classic_group, "_SUBSCRIBED_MAX", 3)
    few, _ = consuming("a", "b", "c")
    assert few.group.subscribed == {"a", "b", "c"}
    many, _ = consuming("a", "b", "c", "d")
    assert many.group.subscribed is None
    assert many.group.is_subscribed_to("e")
    world = World()
    both = [
        world.join(protocols=(MemberProtocol("range", subscription(*names)),))
        for names in (("a", "b"), ("c", "d"))
    ]
    world.begin()
    assert [item.join.error for item in both] == [ErrorCode.none] * 2
    assert world.group.subscribed is None


def test_topics_of_a_group_weigh_what_they_take() -> None:
    world, _ = consuming(*(f"{number:x}" for number in range(1000)))
    assert world.room.used_bytes == world.group.weight_bytes > 100 * KIB


def test_many_small_protocols_weigh_what_they_take() -> None:
    world = World()
    world.join(protocols=tuple(MemberProtocol(str(number), b"") for number in range(1000)))
    assert world.room.used_bytes == world.group.weight_bytes > 200 * KIB


def test_a_leader_gives_no_more_than_there_is_room_for() -> None:
    world = World()
    leader, other = (item.join.member_id for item in _joined(world, 2))
    waits = world.sync(other, 1)
    world.room.limit_bytes = world.room.used_bytes + 100 * KIB
    refused = world.sync(leader, 1, {other: bytes(200 * KIB)})
    assert [refused.sync.error, waits.sync.error] == [FULL, FULL]
    assert world.state is GroupState.PREPARING_REBALANCE
    again = [world.join(item) for item in (leader, other)]
    assert [item.join.generation_id for item in again] == [2, 2]
    world.sync(other, 2)
    assert world.sync(leader, 2, {other: bytes(50 * KIB)}).sync.error is ErrorCode.none


def _joined(world: World, count: int) -> list[Told]:
    told = [world.join(protocols=(RANGE,)) for _ in range(count)]
    world.begin()
    return told


def test_a_full_broker_keeps_no_longer_text_and_no_further_transaction_of_an_offset() -> None:
    world = World()
    assert world.commit(metadata="short") == [ErrorCode.none]
    world.room.limit_bytes = world.room.used_bytes
    assert world.commit(metadata="short") == [ErrorCode.none]
    assert world.commit(metadata="longer text") == [ErrorCode.invalid_commit_offset_size]
    assert world.commit(producer=P1) == [ErrorCode.invalid_commit_offset_size]
    assert world.room.used_bytes == world.room.limit_bytes


def test_a_name_is_one_short_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    name = "g\n2026-11-23 ERROR tidemark: all is lost\x1b[2J" + "x" * 30_000
    world.join(group_id=name, instance_id=name)
    world.after(3_600_000)
    assert any("has expired" in line for line in caplog.messages)
    assert any("generation 1 of 1 members" in line for line in caplog.messages)
    assert max(map(len, caplog.messages)) < 1000
    assert all(line.isprintable() for line in caplog.messages)


def test_ten_thousand_open_transactions_end_one_by_one() -> None:
    """No step goes through all of them."""
    world = World()
    producers = [TransactionalProducer(number, 0) for number in range(10_000)]
    for producer in producers:
        assert world.commit(producer=producer) == [ErrorCode.none]
    offsets = world.offsets
    for producer in producers:
        world.group_offsets.end_transaction(producer, committed=False, end_offset=0)
    assert not offsets.of_transactions(GROUP)
    assert offsets.weight_bytes == 0
