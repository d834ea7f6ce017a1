"""RecordDeletion: resolved once, frozen, and never more than the spec (KIP-107, invariants 12 to
14)."""

import dataclasses
import json

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import (
    T0,
    ControllerWorld,
    broker,
    messages,
    numbered_uuid,
    ready,
    row,
    topic,
)
from tidemark.wire.control import PartitionStatus
from tidemark.wire.deletions import (
    NO_TIME,
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletion,
    PartitionDeletionResult,
)
from tidemark_operator.controller import record_deletion
from tidemark_operator.controller.record_deletion import (
    ALL_PARTITIONS,
    NO_LEADER_EPOCH,
    TOPIC_TIMEOUT_MS,
    Delete,
    DeletionInfo,
    DeletionProgress,
    DeletionWait,
    Finished,
    Resolve,
    Step,
)
from tidemark_operator.controller.status import deletion_status

NOON = 1_700_000_000_000


def _world() -> ControllerWorld:
    return ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=3, partitions_placed=3, topic_id=numbered_uuid(1))],
        rows=[
            row((1, 2), partition=0, leader_epoch=4),
            row((2, 1), partition=1, leader_epoch=5),
            row((1, 2), partition=2, leader_epoch=6),
        ],
    )


def _view(*targets: DeletionPointQuery, **fields: object) -> DeletionInfo:
    view = DeletionInfo(
        key="ns/purge",
        uid=numbered_uuid(77),
        generation=1,
        topic_key="ns/topic-1",
        targets=targets,
        created_ms=T0,
    )
    return dataclasses.replace(view, **fields)  # type: ignore[arg-type]


def _target(partition: int, **point: int) -> DeletionPointQuery:
    """Return an entry of the spec; without a point it is for everything that is committed."""
    return DeletionPointQuery(partition=partition, leader_epoch=NO_LEADER_EPOCH, **point)


ALL_TO_HW = _target(ALL_PARTITIONS)


def _answers(step: Step, found: dict[int, int] | None = None) -> dict[int, DeletionPoint]:
    """Answer with log start 10, high watermark 100 and epoch 3; ``found`` has offsets by time."""
    assert isinstance(step, Resolve)
    return {query.partition: _answer(query, found or {}) for query in _queries(step)}


def _queries(step: Resolve) -> list[DeletionPointQuery]:
    return [query for led in step.queries.values() for query in led]


def _answer(query: DeletionPointQuery, found: dict[int, int]) -> DeletionPoint:
    offset = 100 if query.before_offset == -1 else query.before_offset
    if query.before_time_ms != NO_TIME:
        offset = found[query.before_time_ms]
    return DeletionPoint(
        partition=query.partition,
        log_start_offset=10,
        high_watermark=100,
        offset=offset,
        last_epoch=3,
        size_bytes=7 * offset,
    )


def _frozen(
    world: ControllerWorld, view: DeletionInfo, found: dict[int, int] | None = None
) -> DeletionInfo:
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    frozen = record_deletion.freeze(
        world.state, view, step, _answers(step, found).values(), now_ms=T0
    )
    assert isinstance(frozen, DeletionInfo)
    return frozen


def _reached(**low_watermarks: int) -> list[PartitionDeletionResult]:
    """Return results with low watermarks; ``p0=100`` is partition 0."""
    return [
        PartitionDeletionResult(partition=int(name[1:]), low_watermark=low)
        for name, low in low_watermarks.items()
    ]


def _commanded(step: Delete) -> dict[int, dict[int, int]]:
    """Return the offsets to delete up to, by leader and partition."""
    return {
        node_id: {deletion.partition: deletion.offset for deletion in led}
        for node_id, led in step.commands.items()
    }


def _offsets(view: DeletionInfo) -> dict[int, int]:
    assert view.resolved is not None
    return {part: point.offset for part, point in view.resolved.items()}


def test_leaders_are_queried_for_the_offsets_of_their_partitions() -> None:
    step = record_deletion.next_step(_world().state, _view(ALL_TO_HW), now_ms=T0)
    assert isinstance(step, Resolve)
    assert step.queries == {
        1: [
            DeletionPointQuery(partition=0, leader_epoch=4),
            DeletionPointQuery(partition=2, leader_epoch=6),
        ],
        2: [DeletionPointQuery(partition=1, leader_epoch=5)],
    }


@pytest.mark.parametrize(
    ("target", "found", "offset"),
    [
        (_target(1, before_offset=42), {}, 42),
        (_target(1), {}, 100),
        (_target(1, before_time_ms=NOON), {NOON: 61}, 61),
    ],
)
def test_targets_are_resolved_to_offsets(
    target: DeletionPointQuery, found: dict[int, int], offset: int
) -> None:
    """The frozen epoch is that of the records, not the leader's current epoch."""
    frozen = _frozen(_world(), _view(target), found)
    assert frozen.resolved == {
        1: DeletionPoint(
            partition=1,
            log_start_offset=10,
            high_watermark=100,
            offset=offset,
            last_epoch=3,
            size_bytes=7 * offset,
        )
    }
    assert (frozen.records, frozen.size_bytes) == (offset - 10, 7 * offset)
    assert frozen.topic_id == numbered_uuid(1)


def test_unknown_bytes_of_one_partition_omit_the_total() -> None:
    world, view = _world(), _view(ALL_TO_HW)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    answers = _answers(step)
    # One leader cannot read the sizes of its remote segments.
    answers[1] = dataclasses.replace(answers[1], size_bytes=-1)
    frozen = record_deletion.freeze(world.state, view, step, answers.values(), now_ms=T0)
    assert isinstance(frozen, DeletionInfo)
    assert frozen.resolved is not None
    assert [point.size_bytes for point in frozen.resolved.values()] == [700, -1, 700]
    assert frozen.size_bytes is None
    end = record_deletion.next_step(
        world.state, dataclasses.replace(frozen, dry_run=True), now_ms=T0
    )
    assert "dry run: 270 records in 3 partitions would be deleted" in getattr(end, "message", "")


def test_future_time_is_replaced_by_the_creation_time() -> None:
    target = _target(1, before_time_ms=T0 + 1)
    frozen = _frozen(_world(), _view(target), {T0: 61})
    assert _offsets(frozen) == {1: 61}


def test_frozen_offsets_are_never_resolved_again() -> None:
    world = _world()
    frozen = _frozen(world, _view(ALL_TO_HW))
    step = record_deletion.next_step(world.state, frozen, now_ms=T0)
    assert isinstance(step, Delete)
    resolve = Resolve(topic_id=numbered_uuid(1), queries=())
    again = record_deletion.freeze(world.state, frozen, resolve, {}, now_ms=T0 + 1)
    assert again is frozen


def test_a_leader_that_does_not_answer_leaves_everything_unresolved() -> None:
    world = _world()
    view = _view(ALL_TO_HW)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    answers = _answers(step)
    # 6 is NOT_LEADER_OR_FOLLOWER: the leader changed during the query.
    answers[1] = DeletionPoint(partition=1, error_code=6)
    waiting = record_deletion.freeze(world.state, view, step, answers.values(), now_ms=T0)
    assert isinstance(waiting, DeletionWait)
    assert "partition 1 " in waiting.message
    assert waiting.message.endswith("(NOT_LEADER_OR_FOLLOWER)")


def test_answer_of_a_former_leader_is_not_frozen() -> None:
    world = _world()
    view = _view(ALL_TO_HW)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    # An election happens between the query and the freeze.
    world.state.put_row(dataclasses.replace(world.row(), leader_epoch=5))
    waiting = record_deletion.freeze(world.state, view, step, _answers(step).values(), now_ms=T0)
    assert isinstance(waiting, DeletionWait)
    assert waiting.message.endswith("partition 0")


def test_a_topic_deleted_during_the_query_is_named() -> None:
    world = _world()
    view = _view(ALL_TO_HW)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    world.state.topics.drop(view.topic_key)
    waiting = record_deletion.freeze(world.state, view, step, _answers(step).values(), now_ms=T0)
    assert waiting == DeletionWait(
        reason="TopicNotFound", message=f"Topic {view.topic_key} does not exist"
    )


def test_an_unknown_partition_fails_before_anything_is_deleted() -> None:
    targets = (
        _target(0, before_offset=1),
        _target(9, before_offset=1),
    )
    step = record_deletion.next_step(_world().state, _view(*targets), now_ms=T0)
    assert isinstance(step, Finished)
    assert (step.succeeded, step.reason) == (False, "PartitionUnknown")


def test_beyond_the_high_watermark_fails_that_partition_only() -> None:
    world = _world()
    view = _frozen(
        world,
        _view(
            # The offset exceeds the high watermark, as in Kafka's DeleteRecords.
            _target(0, before_offset=101),
            _target(1, before_offset=50),
        ),
    )
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert list(_commanded(step).values()) == [{1: 50}]
    assert (view.records, view.size_bytes) == (40, 350), "of what will go"
    view = record_deletion.record(view, _reached(p1=50))
    end = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(end, Finished)
    assert (end.succeeded, end.reason) == (False, "PartitionsFailed")
    assert "OFFSET_OUT_OF_RANGE" in end.message


def test_records_of_a_later_epoch_than_requested_are_kept() -> None:
    """The topic was restored from its tier after the request was written."""
    world = _world()
    view = _frozen(
        world,
        _view(
            _target(0, before_offset=90),
            _target(1, before_offset=50),
            # The user expects records up to epoch 2, but the log has epoch 3 there.
            latest_epochs={0: 2, 1: 3},
        ),
    )
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert list(_commanded(step).values()) == [{1: 50}]
    assert view.records == 40
    view = record_deletion.record(view, _reached(p1=50))
    end = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(end, Finished)
    assert (end.succeeded, end.reason) == (False, "PartitionsFailed")
    assert "has leader epoch 3, later than leaderEpoch 2" in end.message


def test_each_leader_gets_its_partitions_until_the_low_watermark_is_there() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert _commanded(step) == {1: {0: 100, 2: 100}, 2: {1: 100}}
    # Partition 1 times out at offset 40, partition 2 has already passed its target.
    late = PartitionDeletionResult(
        partition=1, error_code=ErrorCode.request_timed_out.value, low_watermark=40
    )
    view = record_deletion.record(view, [*_reached(p0=100, p2=250), late])
    assert view.progress[1] == DeletionProgress(low_watermark=40)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert step.pending == (1,)
    view = record_deletion.record(view, _reached(p1=100))
    end = record_deletion.next_step(world.state, view, now_ms=T0)
    assert end == Finished(
        succeeded=True, reason="Deleted", message="270 records deleted in 3 partitions"
    )


def test_retriable_errors_are_retried_and_fatal_ones_end_the_partition() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    # One error that an election resolves, one that a fetch resolves, and one that is final.
    codes = (
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_not_available,
        ErrorCode.policy_violation,
    )
    answers = [
        PartitionDeletionResult(partition=part, error_code=code.value)
        for part, code in enumerate(codes)
    ]
    view = record_deletion.record(view, answers)
    assert view.progress[0].error == "NOT_LEADER_OR_FOLLOWER"
    assert view.progress[1].error.startswith("HIGH_WATERMARK_BEHIND")
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert step.pending == (0, 1)


def test_a_leader_receives_its_epoch_and_that_of_the_last_record() -> None:
    """The leader refuses a request with another value of either, since it may be obsolete."""
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    world.state.put_row(dataclasses.replace(world.row(), leader_epoch=9))
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert step.topic_id == numbered_uuid(1)
    assert step.commands[1] == [
        PartitionDeletion(partition=0, offset=100, leader_epoch=9, last_epoch=3),
        PartitionDeletion(partition=2, offset=100, leader_epoch=6, last_epoch=3),
    ]


@pytest.mark.parametrize(
    ("lost_from", "where"), [(40, ", from 40 on"), (-1, "election. The")], ids=["known", "unknown"]
)
def test_lost_records_fail_their_partition(lost_from: int, where: str) -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    lost = PartitionDeletionResult(
        partition=0, error_code=ErrorCode.offset_out_of_range.value, lost_from_offset=lost_from
    )
    view = record_deletion.record(view, [*_reached(p1=100, p2=100), lost])
    assert view.progress[0].fatal
    assert where in view.progress[0].error
    end = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(end, Finished)
    assert (end.succeeded, end.reason) == (False, "PartitionsFailed")


def test_recreated_topic_is_never_touched() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    # The Topic object was replaced by another one of the same name.
    again = dataclasses.replace(world.view(), uid=numbered_uuid(2), topic_id=numbered_uuid(2))
    world.state.put_topic(again)
    for _ in range(2):
        step = record_deletion.next_step(world.state, view, now_ms=T0)
        assert isinstance(step, Finished)
        assert (step.succeeded, step.reason) == (False, "TopicReplaced")
        world.state.topics.drop("ns/topic-1")


def test_only_the_named_topic_loses_records() -> None:
    world = _world()
    another = _view(ALL_TO_HW, expected_topic_id=numbered_uuid(2))
    step = record_deletion.next_step(world.state, another, now_ms=T0)
    assert isinstance(step, Finished)
    assert (step.succeeded, step.reason) == (False, "TopicReplaced")
    this = _view(ALL_TO_HW, expected_topic_id=numbered_uuid(1))
    assert isinstance(record_deletion.next_step(world.state, this, now_ms=T0), Resolve)
    # A restored topic gets its id only with the first status.
    world.state.put_topic(dataclasses.replace(world.view(), topic_id=None))
    step = record_deletion.next_step(world.state, another, now_ms=T0)
    assert isinstance(step, DeletionWait)
    assert step.reason == "TopicNotReady"


def test_deletion_waits_for_topic_and_leaders_until_its_timeout() -> None:
    world = _world()
    view = _view(ALL_TO_HW, timeout_ms=1000)
    offline = dataclasses.replace(world.row(1), leader=-1)
    world.state.put_row(offline)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, DeletionWait)
    assert step.reason == "PartitionsOffline"
    world.state.topics.drop("ns/topic-1")
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, DeletionWait)
    assert step.reason == "TopicNotFound"
    step = record_deletion.next_step(world.state, view, now_ms=T0 + 1000)
    assert isinstance(step, Finished)
    assert step.reason == "Timeout"
    assert "Topic ns/topic-1, which does not exist. Nothing was deleted" in step.message


def test_an_unknown_topic_is_not_waited_for_for_ever() -> None:
    world = _world()
    view = _view(ALL_TO_HW, timeout_ms=None, created_ms=T0)
    world.state.topics.drop("ns/topic-1")
    # Without a timeout in the spec, an unknown topic is given up after the default.
    late_ms = T0 + TOPIC_TIMEOUT_MS
    assert isinstance(
        record_deletion.next_step(world.state, view, now_ms=late_ms - 1), DeletionWait
    )
    step = record_deletion.next_step(world.state, view, now_ms=late_ms)
    assert isinstance(step, Finished)
    assert step.reason == "Timeout"
    longer = dataclasses.replace(view, timeout_ms=2 * TOPIC_TIMEOUT_MS)
    assert isinstance(record_deletion.next_step(world.state, longer, now_ms=late_ms), DeletionWait)


@pytest.mark.parametrize("dry_run", [True, False])
def test_policy_violation_fails_before_offsets_are_frozen(dry_run: bool) -> None:
    world = _world()
    view = _view(ALL_TO_HW, dry_run=dry_run)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    refused = [
        DeletionPoint(partition=query.partition, error_code=ErrorCode.policy_violation.value)
        for query in _queries(step)
    ]
    ended = record_deletion.freeze(world.state, view, step, refused, now_ms=T0)
    assert isinstance(ended, Finished)
    assert (ended.succeeded, ended.reason) == (False, "PartitionsFailed")
    assert "POLICY_VIOLATION" in ended.message


def test_the_timeout_counts_from_resolution_and_names_what_is_late() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW, timeout_ms=1000))
    # Two of three partitions are done when the time is over.
    view = record_deletion.record(view, _reached(p0=100, p1=100))
    assert isinstance(record_deletion.next_step(world.state, view, now_ms=T0 + 999), Delete)
    step = record_deletion.next_step(world.state, view, now_ms=T0 + 1000)
    assert isinstance(step, Finished)
    assert "partition 2" in step.message


def test_a_dry_run_deletes_nothing() -> None:
    world = _world()
    step = record_deletion.next_step(
        world.state, _frozen(world, _view(ALL_TO_HW, dry_run=True)), now_ms=T0
    )
    assert isinstance(step, Finished)
    assert (step.succeeded, step.reason) == (True, "DryRun")
    assert step.message == "dry run: 270 records (2,100 bytes) in 3 partitions would be deleted"


def _report(partition: int, leader_epoch: int, low_watermark: int) -> PartitionStatus:
    return PartitionStatus(
        topic_id=numbered_uuid(1),
        partition=partition,
        leader_epoch=leader_epoch,
        log_start_offset=low_watermark,
        local_log_start_offset=0,
        high_watermark=200,
        next_offset=200,
        highest_remote_offset=-1,
        low_watermark=low_watermark,
        local_bytes=1,
        remote_segments=0,
        remote_bytes=0,
        remaining_segments=0,
        remaining_bytes=0,
        error_reason="",
        error_message="",
    )


def test_offsets_in_reports_are_not_requested() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    # Partition 1 reports an old epoch, and partition 2 is one record short.
    for part, epoch, low in ((0, 4, 150), (1, 4, 150), (2, 6, 99)):
        world.state.reports[numbered_uuid(1), part] = _report(part, epoch, low)
    view = record_deletion.observe(world.state, view)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert step.pending == (1, 2)


def test_records_lost_in_an_unclean_election_are_not_waited_for() -> None:
    """Otherwise the records that replace the lost ones would be deleted against the spec."""
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    point = DeletionPoint(partition=0, offset=100, last_epoch=4)
    view = dataclasses.replace(view, resolved={0: point})
    key = numbered_uuid(1), 0
    # The leader's log ends below the frozen offset.
    behind = dataclasses.replace(_report(0, 4, 0), next_offset=99)
    world.state.reports[key] = behind
    assert record_deletion.observe(world.state, view) == view, "reported before all was there"
    # An unclean election made a shorter log the leader.
    world.state.put_row(dataclasses.replace(world.row(), leader_epoch=5))
    for early in (behind, dataclasses.replace(behind, leader_epoch=5, offline=True)):
        world.state.reports[key] = early
        assert record_deletion.observe(world.state, view) == view
    world.state.reports[key] = dataclasses.replace(behind, leader_epoch=5)
    view = record_deletion.observe(world.state, view)
    assert view.progress[0].fatal
    assert "below 100 were lost in an unclean election, from 99 on" in view.progress[0].error
    end = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(end, Finished)
    assert end.reason == "PartitionsFailed"


def test_paused_deletion_deletes_nothing() -> None:
    world = _world()
    for view in (_view(ALL_TO_HW), _frozen(world, _view(ALL_TO_HW))):
        paused = dataclasses.replace(view, paused=True)
        step = record_deletion.next_step(world.state, paused, now_ms=T0)
        assert isinstance(step, DeletionWait)
        result = deletion_status(world.state, paused, step, now_ms=T0)
        assert ready(result)["Succeeded"] == ("Unknown", "Paused")
        assert ready(result)["Reconciling"] == ("True", "Paused"), "kstatus knows no Succeeded"


def test_deletion_expires_only_when_finished_with_a_ttl() -> None:
    view = _view(ALL_TO_HW, ttl_after_finished_ms=500)
    assert record_deletion.expires_ms(view) is None
    assert record_deletion.expires_ms(record_deletion.finish(view, now_ms=T0)) == T0 + 500
    assert record_deletion.expires_ms(record_deletion.finish(_view(ALL_TO_HW), now_ms=T0)) is None


def test_status_has_frozen_offsets_and_progress() -> None:
    world = _world()
    view = _view(ALL_TO_HW)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    result = deletion_status(world.state, view, step, now_ms=T0)
    # Before the leaders have answered, no offset is in the status.
    assert ready(result)["Succeeded"] == ("Unknown", "Resolving")
    assert "resolved" not in result.status
    view = record_deletion.record(_frozen(world, view), _reached(p0=100))
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    result = deletion_status(world.state, view, step, now_ms=T0)
    # Partition 0 is done, and the frozen offsets of all partitions are visible.
    assert json.loads(json.dumps(result.status))["partitions"][0] == {
        "partition": 0,
        "lowWatermark": 100,
    }
    assert result.status["resolved"][0] == {  # type: ignore[index]
        "partition": 0,
        "offset": 100,
        "leaderEpoch": 3,
        "records": 90,
        "bytes": 700,
    }
    assert (result.status["records"], result.status["bytes"]) == (270, 2100)
    assert ready(result)["Reconciling"] == ("True", "Deleting")
    view = record_deletion.record(view, _reached(p1=100, p2=100))
    end = record_deletion.next_step(world.state, view, now_ms=T0)
    result = deletion_status(world.state, record_deletion.finish(view, now_ms=T0), end, now_ms=T0)
    # The finished deletion is neither reconciling nor stalled.
    assert ready(result) == {
        "Succeeded": ("True", "Deleted"),
        "Reconciling": ("False", "Finished"),
        "Stalled": ("False", "Deleted"),
    }
    assert messages(result)["Stalled"] == ""
    assert result.status["completionTime"] == result.status["startTime"]


def test_an_offset_frozen_by_an_earlier_version_is_written_unchanged() -> None:
    """The API server refuses any change of it."""
    world = _world()
    # An offset without a count of its records, as earlier versions wrote it.
    old = {0: DeletionPoint(partition=0, offset=100, last_epoch=4)}
    view = _view(ALL_TO_HW, topic_id=numbered_uuid(1), resolved=old, records=90)
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    result = deletion_status(world.state, view, step, now_ms=T0)
    assert result.status["resolved"] == [{"partition": 0, "offset": 100, "leaderEpoch": 4}]
    assert "bytes" not in result.status
