"""Members that send hostile data: nothing grows without limit, and nothing is misread."""

import logging

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.members import GROUP, RANGE, ClassicWorld, MemberAnswers
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
def test_subscription_with_impossible_lengths_is_ignored(metadata: bytes) -> None:
    """kio would reserve the memory, which ends the process."""
    world = ClassicWorld()
    world.stable(1, protocols=(MemberProtocol("range", metadata),))
    assert world.group.subscribed is None


def test_subscribed_topics_are_unknown_above_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classic_group, "_SUBSCRIBED_MAX", 3)
    few, _ = consuming("a", "b", "c")
    assert few.group.subscribed == {"a", "b", "c"}
    many, _ = consuming("a", "b", "c", "d")
    assert many.group.subscribed is None
    # Unknown counts as any topic: an offset that a member may need is never deleted.
    assert many.group.is_subscribed_to("e")
    # Each of two members is below the limit. Together they exceed it.
    world = ClassicWorld()
    both = [
        world.join(protocols=(MemberProtocol("range", subscription(*names)),))
        for names in (("a", "b"), ("c", "d"))
    ]
    world.begin()
    assert [item.join.error for item in both] == [ErrorCode.none] * 2
    assert world.group.subscribed is None


def test_subscribed_topics_count_towards_memory() -> None:
    world, _ = consuming(*(f"{number:x}" for number in range(1000)))
    # The names are short: most of the memory are the objects that contain them.
    assert world.room.used_bytes == world.group.weight_bytes > 100 * KIB


def test_small_protocols_count_towards_memory() -> None:
    world = ClassicWorld()
    world.join(protocols=tuple(MemberProtocol(str(number), b"") for number in range(1000)))
    assert world.room.used_bytes == world.group.weight_bytes > 200 * KIB


def test_oversized_assignments_are_refused() -> None:
    world = ClassicWorld()
    leader, other = (item.join.member_id for item in _joined(world, 2))
    waits = world.sync(other, 1)
    world.room.limit_bytes = world.room.used_bytes + 100 * KIB
    refused = world.sync(leader, 1, {other: bytes(200 * KIB)})
    assert [refused.sync.error, waits.sync.error] == [FULL, FULL]
    # No member has an assignment of this generation, so that all join again.
    assert world.state is GroupState.PREPARING_REBALANCE
    rejoined = [world.join(item) for item in (leader, other)]
    assert [item.join.generation_id for item in rejoined] == [2, 2]
    world.sync(other, 2)
    assert world.sync(leader, 2, {other: bytes(50 * KIB)}).sync.error is ErrorCode.none


def _joined(world: ClassicWorld, count: int) -> list[MemberAnswers]:
    answers = [world.join(protocols=(RANGE,)) for _ in range(count)]
    world.begin()
    return answers


def test_full_broker_rejects_longer_metadata_and_new_transactions() -> None:
    world = ClassicWorld()
    assert world.commit(metadata="short") == [ErrorCode.none]
    world.room.limit_bytes = world.room.used_bytes
    # An offset of the same size replaces the former one.
    assert world.commit(metadata="short") == [ErrorCode.none]
    assert world.commit(metadata="longer text") == [ErrorCode.invalid_commit_offset_size]
    assert world.commit(producer=P1) == [ErrorCode.invalid_commit_offset_size]
    assert world.room.used_bytes == world.room.limit_bytes


def test_group_names_are_escaped_and_shortened_in_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world = ClassicWorld()
    # The name forges a log line, and contains the escape sequence that clears a terminal.
    name = "g\n2026-11-23 ERROR tidemark: all is lost\x1b[2J" + "x" * 30_000
    world.join(group_id=name, instance_id=name)
    world.after(3_600_000)
    assert any("has expired" in line for line in caplog.messages)
    assert any("generation 1 of 1 members" in line for line in caplog.messages)
    assert max(map(len, caplog.messages)) < 1000
    assert all(line.isprintable() for line in caplog.messages)


def test_ten_thousand_open_transactions_end_one_by_one() -> None:
    """No step iterates over all open transactions."""
    world = ClassicWorld()
    producers = [TransactionalProducer(number, 0) for number in range(10_000)]
    for producer in producers:
        assert world.commit(producer=producer) == [ErrorCode.none]
    offsets = world.offsets
    for producer in producers:
        world.group_offsets.end_transaction(producer, committed=False, end_offset=0)
    assert not offsets.of_transactions(GROUP)
    assert offsets.weight_bytes == 0
