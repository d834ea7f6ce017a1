"""RecordDeletion: resolved once, frozen, never more than was asked (KIP-107, invariants 12 to
14)."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import (
    T0,
    World,
    broker,
    messages,
    numbered_uuid,
    ready,
    row,
    topic,
)
from tidemark.logfiles.leader_epochs import EpochEnd, EpochEntry, LeaderEpochs
from tidemark.wire.control import PartitionStatus
from tidemark_operator.controller import deletion, deletion_offsets
from tidemark_operator.controller.deletion_values import (
    EARLIEST,
    LATEST,
    Delete,
    DeletionInfo,
    DeletionTarget,
    Finished,
    ListedOffset,
    OffsetQuery,
    Progress,
    Resolve,
    ResolvedOffset,
    Step,
    Waiting,
)
from tidemark_operator.controller.status import deletion_status

NOON = 1_700_000_000_000


def _world() -> World:
    return World(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=3, partitions_placed=3, topic_id=numbered_uuid(1))],
        rows=[
            row((1, 2), partition=0, leader_epoch=4),
            row((2, 1), partition=1, leader_epoch=5),
            row((1, 2), partition=2, leader_epoch=6),
        ],
    )


def _view(*targets: DeletionTarget, **fields: object) -> DeletionInfo:
    view = DeletionInfo(
        key="ns/purge",
        uid=numbered_uuid(77),
        generation=1,
        topic_key="ns/topic-1",
        targets=targets,
        created_ms=T0,
    )
    return dataclasses.replace(view, **fields)  # type: ignore[arg-type]


ALL_TO_HW = DeletionTarget(partition=None, before_offset=-1)


def _answers(
    step: Step, found: dict[int, int] | None = None
) -> dict[tuple[int, int], ListedOffset]:
    """Log start 10 and high watermark 100 everywhere; ``found`` by time."""
    assert isinstance(step, Resolve)
    offsets = {EARLIEST: 10, LATEST: 100, **(found or {})}
    return {
        (query.partition, query.timestamp): ListedOffset(
            error_code=0, offset=offsets[query.timestamp]
        )
        for query in step.queries
    }


def _frozen(world: World, view: DeletionInfo, found: dict[int, int] | None = None) -> DeletionInfo:
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    frozen = deletion_offsets.freeze(world.state, view, step, _answers(step, found), {}, now_ms=T0)
    assert isinstance(frozen, DeletionInfo)
    return frozen


def _offsets(view: DeletionInfo) -> dict[int, int]:
    assert view.resolved is not None
    return {part: point.offset for part, point in view.resolved.items()}


def test_leaders_are_asked_where_their_partitions_stand() -> None:
    step = deletion.next_step(_world().state, _view(ALL_TO_HW), now_ms=T0)
    assert isinstance(step, Resolve)
    assert {(q.partition, q.node_id, q.leader_epoch) for q in step.queries} == {
        (0, 1, 4),
        (1, 2, 5),
        (2, 1, 6),
    }
    assert {q.timestamp for q in step.queries} == {EARLIEST, LATEST}


@pytest.mark.parametrize(
    ("target", "found", "offset"),
    [
        (DeletionTarget(partition=1, before_offset=42), {}, 42),
        (DeletionTarget(partition=1, before_offset=-1), {}, 100),
        (DeletionTarget(partition=1, before_time_ms=NOON), {NOON: 61}, 61),
        (DeletionTarget(partition=1, before_time_ms=NOON), {NOON: -1}, 100),
        (DeletionTarget(partition=1, before_time_ms=NOON), {NOON: 120}, 100),
    ],
)
def test_points_become_numbers(target: DeletionTarget, found: dict[int, int], offset: int) -> None:
    frozen = _frozen(_world(), _view(target), found)
    assert frozen.resolved == {1: ResolvedOffset(offset=offset, leader_epoch=5)}
    assert frozen.records == offset - 10
    assert frozen.topic_id == numbered_uuid(1)


def test_a_time_in_the_future_is_that_of_the_objects_making() -> None:
    target = DeletionTarget(partition=1, before_time_ms=T0 + 1)
    frozen = _frozen(_world(), _view(target), {T0: 61})
    assert _offsets(frozen) == {1: 61}


def test_what_is_frozen_is_never_resolved_again() -> None:
    world = _world()
    frozen = _frozen(world, _view(ALL_TO_HW))
    step = deletion.next_step(world.state, frozen, now_ms=T0)
    assert isinstance(step, Delete)
    resolve = Resolve(topic_id=numbered_uuid(1), topic_name="topic-1", queries=())
    again = deletion_offsets.freeze(world.state, frozen, resolve, {}, {}, now_ms=T0 + 1)
    assert again is frozen


def test_a_leader_that_does_not_answer_leaves_everything_unresolved() -> None:
    world = _world()
    view = _view(ALL_TO_HW)
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    answers = _answers(step)
    answers[1, LATEST] = ListedOffset(error_code=6, offset=-1)
    waiting = deletion_offsets.freeze(world.state, view, step, answers, {}, now_ms=T0)
    assert isinstance(waiting, Waiting)
    assert "partitions 1 " in waiting.message


def test_what_a_former_leader_said_is_not_frozen_under_the_epoch_of_the_next() -> None:
    world = _world()
    view = _view(ALL_TO_HW)
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    world.state.put_row(dataclasses.replace(world.row(), leader_epoch=5))
    waiting = deletion_offsets.freeze(world.state, view, step, _answers(step), {}, now_ms=T0)
    assert isinstance(waiting, Waiting)
    assert "partitions 0 " in waiting.message


def test_a_topic_that_went_while_its_leaders_were_asked_is_named() -> None:
    world = _world()
    view = _view(ALL_TO_HW)
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    del world.state.topics[view.topic_key]
    waiting = deletion_offsets.freeze(world.state, view, step, _answers(step), {}, now_ms=T0)
    assert waiting == Waiting(reason="TopicNotFound", message=f"there is no Topic {view.topic_key}")


def test_an_unknown_partition_fails_before_anything_is_deleted() -> None:
    targets = (
        DeletionTarget(partition=0, before_offset=1),
        DeletionTarget(partition=9, before_offset=1),
    )
    step = deletion.next_step(_world().state, _view(*targets), now_ms=T0)
    assert isinstance(step, Finished)
    assert (step.succeeded, step.reason) == (False, "PartitionUnknown")


def test_beyond_the_high_watermark_fails_that_partition_only() -> None:
    world = _world()
    view = _frozen(
        world,
        _view(
            DeletionTarget(partition=0, before_offset=101),
            DeletionTarget(partition=1, before_offset=50),
        ),
    )
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert [dict(command.offsets) for command in step.commands] == [{1: 50}]
    view = deletion.record(view, {1: (0, 50)})
    end = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(end, Finished)
    assert (end.succeeded, end.reason) == (False, "PartitionsFailed")
    assert "OFFSET_OUT_OF_RANGE" in end.message


def test_each_leader_gets_its_partitions_until_the_low_watermark_is_there() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert [(c.node_id, dict(c.offsets)) for c in step.commands] == [
        (1, {0: 100, 2: 100}),
        (2, {1: 100}),
    ]
    view = deletion.record(view, {0: (0, 100), 1: (7, 40), 2: (0, 250)})
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert step.pending == (1,)
    view = deletion.record(view, {1: (0, 100)})
    end = deletion.next_step(world.state, view, now_ms=T0)
    assert end == Finished(
        succeeded=True, reason="Deleted", message="270 records deleted in 3 partitions"
    )


def test_errors_that_pass_are_tried_again_and_fatal_ones_are_not() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    codes = (
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_out_of_range,
        ErrorCode.policy_violation,
    )
    view = deletion.record(view, {part: (code.value, -1) for part, code in enumerate(codes)})
    assert view.progress[0].error == "NOT_LEADER_OR_FOLLOWER"
    assert view.progress[1].error.startswith("HIGH_WATERMARK_BEHIND")
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert step.pending == (0, 1)


def test_a_topic_made_again_is_never_touched() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    again = dataclasses.replace(world.view(), uid=numbered_uuid(2), topic_id=numbered_uuid(2))
    world.state.put_topic(again)
    for _ in range(2):
        step = deletion.next_step(world.state, view, now_ms=T0)
        assert isinstance(step, Finished)
        assert (step.succeeded, step.reason) == (False, "TopicReplaced")
        world.state.drop_topic("ns/topic-1")


def test_it_waits_for_topics_and_leaders_and_gives_up_in_time() -> None:
    world = _world()
    view = _view(ALL_TO_HW, timeout_ms=1000)
    offline = dataclasses.replace(world.row(1), leader=-1)
    world.state.put_row(offline)
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Waiting)
    assert step.reason == "PartitionsOffline"
    world.state.drop_topic("ns/topic-1")
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Waiting)
    assert step.reason == "TopicNotFound"
    step = deletion.next_step(world.state, view, now_ms=T0 + 1000)
    assert isinstance(step, Finished)
    assert (step.reason, "nothing was deleted" in step.message) == ("Timeout", True)


def test_the_timeout_counts_from_resolution_and_names_what_is_late() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW, timeout_ms=1000))
    view = deletion.record(view, {0: (0, 100), 1: (0, 100)})
    assert isinstance(deletion.next_step(world.state, view, now_ms=T0 + 999), Delete)
    step = deletion.next_step(world.state, view, now_ms=T0 + 1000)
    assert isinstance(step, Finished)
    assert "partitions 2" in step.message


def test_a_dry_run_deletes_nothing() -> None:
    world = _world()
    step = deletion.next_step(
        world.state, _frozen(world, _view(ALL_TO_HW, dry_run=True)), now_ms=T0
    )
    assert isinstance(step, Finished)
    assert (step.succeeded, step.reason) == (True, "DryRun")


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


def test_what_reports_already_show_is_not_asked_for() -> None:
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    for part, epoch, low in ((0, 4, 150), (1, 4, 150), (2, 6, 99)):
        world.state.reports[numbered_uuid(1), part] = _report(part, epoch, low)
    view = deletion.observe(world.state, view)
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert step.pending == (1, 2)


def test_what_an_unclean_election_lost_is_not_waited_for() -> None:
    """Or the records that come in its place would be deleted, which nobody asked for."""
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    key = numbered_uuid(1), 0
    behind = dataclasses.replace(_report(0, 4, 0), next_offset=99)
    world.state.reports[key] = behind
    assert deletion.observe(world.state, view) == view, "reported before all was there"
    world.state.put_row(dataclasses.replace(world.row(), leader_epoch=5))
    for early in (behind, dataclasses.replace(behind, leader_epoch=5, offline=True)):
        world.state.reports[key] = early
        assert deletion.observe(world.state, view) == view
    world.state.reports[key] = dataclasses.replace(behind, leader_epoch=5)
    view = deletion.observe(world.state, view)
    assert view.progress[0].fatal
    assert "below 100 were lost in an unclean election, from 99 on" in view.progress[0].error
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    assert 0 not in step.pending


@pytest.mark.parametrize(
    ("start", "end", "deleted", "fatal"),
    [
        (0, EpochEnd(4, 100), True, False),
        (0, EpochEnd(4, 250), True, False),
        (0, EpochEnd(4, 99), False, True),
        (0, EpochEnd(3, 250), False, True),
        (0, EpochEnd(-1, -1), False, True),
        (100, EpochEnd(-1, -1), True, False),
        (None, EpochEnd(4, 100), False, False),
        (0, None, False, False),
    ],
    ids=[
        "all is there",
        "more came",
        "some was lost",
        "records of an older epoch are in their place",
        "nothing of that epoch or a later one is there",
        "it is gone already",
        "it does not say where it begins",
        "it does not say where the epoch ends",
    ],
)
def test_a_later_leader_is_asked_where_the_frozen_epoch_ends(
    start: int | None, end: EpochEnd | None, deleted: bool, fatal: bool
) -> None:
    """Its log may have passed the offset with other records before it ever reported."""
    world = _world()
    view = _frozen(world, _view(ALL_TO_HW))
    epoch = world.row().leader_epoch
    assert epoch == 4
    world.state.put_row(dataclasses.replace(world.row(), leader_epoch=epoch + 1))
    step = deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Delete)
    command = step.commands[0]
    assert command.epochs == {0: epoch}
    starts = {} if start is None else {0: ListedOffset(error_code=0, offset=start)}
    view, offsets = deletion.check_ends(view, command, starts, {} if end is None else {0: end})
    assert offsets == ({0: 100, 2: 100} if deleted else {2: 100})
    assert view.progress.get(0, Progress()).fatal is fatal


@given(data=st.data())
def test_the_epoch_of_the_last_record_is_found_by_halving(data: st.DataObject) -> None:
    """Whatever epochs a log has; the leader's own may have no record yet."""
    starts = sorted(data.draw(st.sets(st.integers(0, 200), min_size=1, max_size=8)))
    numbered = sorted(data.draw(st.sets(st.integers(0, 500), min_size=8, max_size=8)))
    log = LeaderEpochs(tuple(EpochEntry(e, s) for e, s in zip(numbered, starts, strict=False)))
    log_end = data.draw(st.integers(starts[-1] + 1, 300))
    offset = data.draw(st.integers(starts[0] + 1, log_end))
    leader_epoch = log.latest_epoch + data.draw(st.integers(0, 9))
    query = OffsetQuery(partition=0, node_id=1, leader_epoch=leader_epoch, timestamp=-1)
    search = deletion_offsets.EpochSearch([query], {0: offset})
    rounds = 0
    while search.questions:
        epoch = search.questions[1][0]
        search.take(0, log.end_offset_for(epoch, log_end))
        rounds += 1
    assert search.found == {0: log.epoch_for_offset(offset - 1)}
    assert rounds <= 10


def test_a_paused_one_deletes_nothing() -> None:
    world = _world()
    for view in (_view(ALL_TO_HW), _frozen(world, _view(ALL_TO_HW))):
        paused = dataclasses.replace(view, paused=True)
        step = deletion.next_step(world.state, paused, now_ms=T0)
        assert isinstance(step, Waiting)
        result = deletion_status(world.state, paused, step, now_ms=T0)
        assert ready(result)["Reconciling"] == ("False", "Paused")


def test_it_expires_only_when_finished_and_asked_to() -> None:
    view = _view(ALL_TO_HW, ttl_after_finished_ms=500)
    assert deletion.expires_ms(view) is None
    assert deletion.expires_ms(deletion.finish(view, now_ms=T0)) == T0 + 500
    assert deletion.expires_ms(deletion.finish(_view(ALL_TO_HW), now_ms=T0)) is None


def test_the_status_freezes_numbers_and_says_how_far_it_is() -> None:
    world = _world()
    view = _view(ALL_TO_HW)
    step = deletion.next_step(world.state, view, now_ms=T0)
    result = deletion_status(world.state, view, step, now_ms=T0)
    assert ready(result)["Succeeded"] == ("Unknown", "Resolving")
    assert "resolved" not in result.status
    view = deletion.record(_frozen(world, view), {0: (0, 100)})
    step = deletion.next_step(world.state, view, now_ms=T0)
    result = deletion_status(world.state, view, step, now_ms=T0)
    assert json.loads(json.dumps(result.status))["partitions"][0] == {
        "partition": 0,
        "lowWatermark": 100,
    }
    assert ready(result)["Reconciling"] == ("True", "Deleting")
    view = deletion.record(view, {1: (0, 100), 2: (0, 100)})
    end = deletion.next_step(world.state, view, now_ms=T0)
    result = deletion_status(world.state, deletion.finish(view, now_ms=T0), end, now_ms=T0)
    assert ready(result) == {
        "Succeeded": ("True", "Deleted"),
        "Reconciling": ("False", "Finished"),
        "Stalled": ("False", "Deleted"),
    }
    assert messages(result)["Stalled"] == ""
    assert result.status["completionTime"] == result.status["startTime"]
