"""Record deletions of the controller on a leader: the offset that a point means, and protection of
records that were not meant (invariants 12 to 14)."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.replication.replica_nodes import T0, TOPIC_ID, ReplicaNode, row
from tidemark.tiering import Tiering, TieringState
from tidemark.wire import control
from tidemark.wire import deletions as wire
from tidemark.wire.connection import ConnectionClosed
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.control import record_deletions
from tidemark_broker.control.commands import LAST_COMMAND, CommandServer
from tidemark_broker.control.epoch_file import ControllerEpoch
from tidemark_broker.control.record_deletions import delete_topic_records, deletion_points
from tidemark_broker.log import appending
from tidemark_broker.replication.hosting import deletions
from tidemark_broker.replication.partition import consumer_reads, log_start
from tidemark_broker.replication.remote import RemoteEnd, RemoteUnavailable

Nodes = Callable[[int], ReplicaNode]
ALONE = row(replicas=(1,), isr=(1,), leader_epoch=4)
OTHER_TOPIC = uuid.UUID(int=99)


async def led(node: Nodes, records: int = 10) -> ReplicaNode:
    one = node(1)
    await one.receive(ALONE)
    await one.append(records)
    return one


async def next_epoch(one: ReplicaNode, leader_epoch: int) -> None:
    await one.receive(replace(ALONE, leader_epoch=leader_epoch, partition_epoch=leader_epoch))


async def deletion_point(
    one: ReplicaNode,
    *,
    before_offset: int = -1,
    before_time_ms: int = -1,
    leader_epoch: int = 4,
    topic_id: uuid.UUID = TOPIC_ID,
) -> wire.DeletionPoint:
    query = wire.DeletionPointQuery(
        partition=0,
        leader_epoch=leader_epoch,
        before_offset=before_offset,
        before_time_ms=before_time_ms,
    )
    request = wire.DeletionPointsRequest(controller_epoch=1, topic_id=topic_id, partitions=(query,))
    (point,) = await deletion_points(one.manager, request)
    return point


async def delete(
    one: ReplicaNode,
    offset: int,
    *,
    last_epoch: int = 4,
    leader_epoch: int = 4,
    topic_id: uuid.UUID = TOPIC_ID,
) -> wire.PartitionDeletionResult:
    below = wire.PartitionDeletion(
        partition=0, leader_epoch=leader_epoch, offset=offset, last_epoch=last_epoch
    )
    request = wire.DeleteTopicRecordsRequest(
        controller_epoch=1, topic_id=topic_id, timeout_ms=0, partitions=(below,)
    )
    (result,) = await delete_topic_records(one.manager, request, who="controller")
    await one.upkeep.checkpoint()
    return result


def error(answer: wire.DeletionPoint | wire.PartitionDeletionResult) -> ErrorCode:
    return ErrorCode(answer.error_code)


# ---------------------------------------------------------------- deletion points


async def test_a_point_defaults_to_the_high_watermark(node: Nodes) -> None:
    one = await led(node)
    point = await deletion_point(one, before_offset=6)
    assert (point.log_start_offset, point.offset, point.high_watermark) == (0, 6, 10)
    assert (point.last_epoch, point.error_code) == (4, 0)
    assert (await deletion_point(one)).offset == 10
    beyond = await deletion_point(one, before_offset=11)
    assert (beyond.offset, beyond.high_watermark) == (11, 10), "the controller rejects it"


async def test_the_epoch_is_that_of_the_last_record_below(node: Nodes) -> None:
    """A leader of a later epoch answers the same."""
    one = await led(node)
    await next_epoch(one, 7)
    await one.append(5)
    assert (await deletion_point(one, before_offset=10, leader_epoch=7)).last_epoch == 4
    assert (await deletion_point(one, before_offset=11, leader_epoch=7)).last_epoch == 7
    assert (await deletion_point(one, before_offset=0, leader_epoch=7)).last_epoch == 7, (
        "the leader's own epoch"
    )


@pytest.mark.parametrize(
    ("before_time_ms", "offset"), [(T0 - 1, 0), (T0 + 1, 10)], ids=["no record", "all of them"]
)
async def test_a_timestamp_means_the_first_record_not_older_than_it(
    node: Nodes, before_time_ms: int, offset: int
) -> None:
    one = await led(node)
    assert (await deletion_point(one, before_time_ms=before_time_ms)).offset == offset


async def test_records_appended_during_a_timestamp_lookup_are_ignored(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record was that late when the lookup began."""
    one, real_lookup = await led(node), consumer_reads.list_offset

    async def slow(partition: Any, timestamp: int, **options: Any) -> Any:
        found = await real_lookup(partition, timestamp, **options)
        if timestamp >= 0:
            await one.append(5)
        return found

    monkeypatch.setattr(consumer_reads, "list_offset", slow)
    assert (await deletion_point(one, before_time_ms=T0 + 1)).offset == 10


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"topic_id": OTHER_TOPIC}, ErrorCode.unknown_topic_id),
        ({"leader_epoch": 3}, ErrorCode.fenced_leader_epoch),
        ({"leader_epoch": 5}, ErrorCode.unknown_leader_epoch),
        ({"leader_epoch": -1}, ErrorCode.fenced_leader_epoch),
    ],
    ids=["another topic", "a former leader", "a leader to be", "any leader"],
)
async def test_no_replica_answers_for_another_topic_or_epoch(
    node: Nodes, query: dict[str, Any], expected: ErrorCode
) -> None:
    one = await led(node)
    assert error(await deletion_point(one, **query)) is expected
    assert error(await delete(one, 6, **query)) is expected
    assert one.partition.log_start_offset == 0


async def test_a_slow_timestamp_lookup_times_out(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, real_lookup = await led(node), consumer_reads.list_offset

    async def hangs(partition: Any, timestamp: int, **options: Any) -> Any:
        if timestamp >= 0:
            await asyncio.Event().wait()
        return await real_lookup(partition, timestamp, **options)

    monkeypatch.setattr(consumer_reads, "list_offset", hangs)
    # The controller's request must be answered for all partitions, even if one of them hangs.
    monkeypatch.setattr(record_deletions, "_LOOKUPS_S", 0.01)
    assert error(await deletion_point(one, before_time_ms=T0)) is ErrorCode.request_timed_out


async def test_a_leader_deposed_during_a_lookup_returns_an_error(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, real_lookup = await led(node), consumer_reads.list_offset

    async def list_offset_with_new_epoch(partition: Any, timestamp: int, **options: Any) -> Any:
        found = await real_lookup(partition, timestamp, **options)
        if timestamp >= 0:
            await next_epoch(one, 5)
        return found

    monkeypatch.setattr(consumer_reads, "list_offset", list_offset_with_new_epoch)
    assert error(await deletion_point(one, before_time_ms=T0)) is ErrorCode.fenced_leader_epoch


# ---------------------------------------------------------------- number of bytes


class CompleteTier:
    """Tier that contains the log up to ``remote_end``."""

    def __init__(self, size_bytes: int | None) -> None:
        self.size_bytes = size_bytes

    async def bytes_below(self, _: object, offset: int) -> int:
        if self.size_bytes is None:
            raise RemoteUnavailable("the store is away")
        return self.size_bytes


async def segments(one: ReplicaNode) -> list[int]:
    """Append three closed segments of ten records each and a few to the active one. Return their
    sizes."""
    for _ in range(3):
        await one.append(10)
        assert appending.roll(one.partition.log, T0)
    await one.append(3)
    return [segment.size_bytes for segment in one.partition.log.segment_infos()]


async def test_deleted_bytes_are_those_of_complete_segments_below_the_point(node: Nodes) -> None:
    one = await led(node, records=0)
    first, second, third, _ = await segments(one)
    assert (await deletion_point(one, before_offset=9)).size_bytes == 0
    assert (await deletion_point(one, before_offset=25)).size_bytes == first + second
    assert (await deletion_point(one)).size_bytes == first + second + third, (
        "the active segment stays"
    )
    assert (await deletion_point(one, before_offset=99)).size_bytes == first + second + third


@pytest.mark.parametrize("tiered", [1000, None], ids=["in both tiers", "the store is away"])
async def test_bytes_in_both_tiers_count_once(
    node: Nodes, tiered: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await led(node, records=0)
    _, second, third, _ = await segments(one)
    partition = one.partition
    assert partition.stored is not None
    # Offsets 0 to 9, the first segment, are in the tier and still local.
    partition.stored = replace(partition.stored, tiering=Tiering(TieringState.ENABLED, 1))
    partition.remote_end = RemoteEnd(9, 4)
    with monkeypatch.context() as patch:
        patch.setattr(partition.context, "remote", CompleteTier(tiered))
        point = await deletion_point(one)
    # An unreachable store makes the number of bytes unknown, not the request fail.
    expected = -1 if tiered is None else tiered + second + third
    assert (point.offset, point.size_bytes) == (33, expected)


# ---------------------------------------------------------------- deletions


async def test_a_deletion_is_exact_and_may_be_repeated(node: Nodes) -> None:
    """Repeat the deletion, once also while the first one is not durable yet."""
    one = await led(node)
    for _ in range(2):
        log_start.delete_intended(one.partition, 6, leader_epoch=4, last_epoch=4)
        assert one.partition.log_start_offset == 0
    assert error(await delete(one, 6)) is ErrorCode.request_timed_out
    assert one.partition.log_start_offset == 6
    again = await delete(one, 6)
    assert (again.error_code, again.low_watermark) == (0, 6)
    # A lower offset is already deleted: the answer is the current log start.
    less = await delete(one, 3)
    assert (less.error_code, less.low_watermark) == (0, 6)


async def test_repeating_a_complete_deletion_needs_no_matching_epoch(node: Nodes) -> None:
    one = await led(node)
    await delete(one, 6)
    await next_epoch(one, 7)
    # The records that the epoch belongs to are deleted, so it cannot be checked any more.
    repeated = await delete(one, 6, last_epoch=5, leader_epoch=7)
    assert (repeated.error_code, repeated.low_watermark) == (0, 6)


@pytest.mark.parametrize(
    ("last_epoch", "offset", "lost_from"),
    [(5, 10, -1), (4, 12, 10), (7, 10, 15), (7, 16, 15)],
    ids=[
        "records of an older epoch are in their place",
        "records of a later epoch are in their place",
        "they were behind those of an older epoch",
        "the log ends before them",
    ],
)
async def test_records_that_replaced_lost_ones_are_not_deleted(
    node: Nodes, last_epoch: int, offset: int, lost_from: int
) -> None:
    """The log has records 0 to 9 of epoch 4 and 10 to 14 of epoch 7. Its leader was elected
    uncleanly in epoch 8."""
    one = await led(node)
    await next_epoch(one, 7)
    await one.append(5)
    await next_epoch(one, 8)
    lost = await delete(one, offset, last_epoch=last_epoch, leader_epoch=8)
    assert error(lost) is ErrorCode.offset_out_of_range
    # The answer names the first lost offset, as far as the epochs tell.
    assert lost.lost_from_offset == lost_from
    assert one.partition.log_start_offset == 0


async def test_a_leader_without_a_high_watermark_defers_a_deletion(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    await one.append(10)
    epoch = one.partition.leader_epoch
    assert one.partition.high_watermark == 0, "its follower has not fetched"
    # OFFSET_NOT_AVAILABLE is retriable: the controller repeats the deletion.
    answer = await delete(one, 6, last_epoch=epoch, leader_epoch=epoch)
    assert error(answer) is ErrorCode.offset_not_available
    assert one.partition.log_start_offset == 0


async def test_a_pending_deletion_fails_if_another_topic_takes_the_name(node: Nodes) -> None:
    """The new topic's log may never reach the requested offset. If it does, nothing of the former
    topic was acknowledged by that."""
    one = await led(node)
    pending = deletions.begun(one.partition, log_start.delete_records(one.partition, 6))
    assert pending.pending
    # The new topic's log passes the offset that was requested of the former one.
    removal = control.Removal(topic_id=TOPIC_ID, partition=-1, partition_epoch=-1)
    await one.receive(removals=(removal,))
    await one.receive(ALONE, topic_id=OTHER_TOPIC)
    await one.append(10)
    log_start.delete_records(one.partition, 8)
    await one.upkeep.checkpoint()
    assert (one.partition.topic_id, log_start.low_watermark(one.partition)) == (OTHER_TOPIC, 8)
    purgatory = one.context.purgatory
    await deletions.wait_until_settled([pending], one.manager, purgatory, 1.0, who="a client")
    assert not pending.pending
    assert (pending.error, pending.low_watermark) == (ErrorCode.not_leader_or_follower, -1)


# ---------------------------------------------------------------- over the command connection


class ScriptedConnection:
    """Connection that delivers the frames of some requests and then ends. It records what is
    written."""

    peer = "controller"

    def __init__(self, *requests: Any) -> None:
        frames = (
            encode_request(request, number, "test") for number, request in enumerate(requests)
        )
        self._frames = [frame[4:] for frame in frames]
        self._left = len(self._frames)
        self._answered = asyncio.Event()
        self.written: dict[int, bytes] = {}

    async def read_frame(self) -> bytes:
        if self._frames:
            return self._frames.pop(0)
        await self._answered.wait()
        raise ConnectionClosed("the test is over")

    async def drain(self) -> None:
        return

    def write(self, data: bytes) -> None:
        self.written[int.from_bytes(data[4:8], "big")] = data[4:]
        self._left -= 1
        if not self._left:
            self._answered.set()


async def answers_of(one: ReplicaNode, *requests: Any) -> dict[int, bytes]:
    """Return the answers of a broker that has accepted the controller of epoch 3."""
    epoch = ControllerEpoch(one.folder / "controller-epoch")
    await epoch.accept(3)
    unused: Any = None
    commands = CommandServer(
        one.manager, epoch, unused, serve_kafka=unused, snapshot_applied=unused, users=unused
    )
    connection: Any = ScriptedConnection(*requests)
    with pytest.raises(ConnectionClosed):
        async with asyncio.timeout(5):
            await commands.run(connection, 7)
    assert isinstance(connection.written, dict)
    return connection.written


@pytest.mark.parametrize(("controller_epoch", "code"), [(3, 0), (2, 11)], ids=["its own", "older"])
async def test_commands_of_a_former_controller_are_rejected(
    node: Nodes, controller_epoch: int, code: int
) -> None:
    one = await led(node)
    query = wire.DeletionPointQuery(partition=0, leader_epoch=4, before_offset=6, before_time_ms=-1)
    below = wire.PartitionDeletion(partition=0, leader_epoch=4, offset=6, last_epoch=4)
    # One query and one deletion of the same controller epoch.
    answers = await answers_of(
        one,
        wire.DeletionPointsRequest(
            controller_epoch=controller_epoch, topic_id=TOPIC_ID, partitions=(query,)
        ),
        wire.DeleteTopicRecordsRequest(
            controller_epoch=controller_epoch, topic_id=TOPIC_ID, timeout_ms=0, partitions=(below,)
        ),
    )
    _, points = decode_response(wire.DeletionPointsResponse, answers[0])
    _, deleted = decode_response(wire.DeleteTopicRecordsResponse, answers[1])
    await one.upkeep.checkpoint()
    assert points.error_code == deleted.error_code == code
    assert [point.offset for point in points.points] == ([] if code else [6])
    assert one.partition.log_start_offset == (0 if code else 6)


def test_the_broker_announces_these_commands_to_the_controller() -> None:
    assert wire.DELETION_POINTS < wire.DELETE_TOPIC_RECORDS <= LAST_COMMAND


async def test_a_dry_run_reports_refusals_of_a_compacted_topic(node: Nodes) -> None:
    one = await led(node)
    one.partition.log.config = replace(
        one.partition.log.config, cleanup_policy=frozenset({"compact"})
    )
    assert (await delete(one, 3)).error_code == int(ErrorCode.policy_violation.value)
    assert (await deletion_point(one)).error_code == int(ErrorCode.policy_violation.value)
