"""Group commit: the state moves only by writes that succeeded, slice by slice."""

import dataclasses

import pytest

from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    cluster,
    numbered_uuid,
    row,
    topic,
)
from tidemark_operator.controller.state import commit
from tidemark_operator.controller.state.commit import (
    SLICE_BYTES_MAX,
    SLICE_BYTES_RESERVE,
    BadSlice,
    Draft,
    SliceFull,
)
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import Tombstone
from tidemark_operator.controller.state.rows import encode_row


def test_a_draft_shows_its_own_decisions_and_leaves_the_state_alone() -> None:
    world = ControllerWorld(rows=[row((1, 2))])
    draft = world.draft()
    draft.put_row(dataclasses.replace(world.row(), leader=2))
    draft.put_row(row((3,), partition=1))
    assert [r.leader for r in draft.rows_of(numbered_uuid(1)).values()] == [2, 3]
    assert [r.partition for r in draft.rows_on(3)] == [1]
    # The state changes only when the write has succeeded.
    assert world.row().leader == 1
    assert world.state.row((numbered_uuid(1), 1)) is None


def test_commit_writes_only_the_changed_slices() -> None:
    world = ControllerWorld()
    draft = world.draft()
    for number in range(200):
        draft.put_row(row((1,), number=number))
    planned = world.commit(draft)
    assert {write.commit for write in planned.writes} == {1}
    assert len(planned.writes) == len(
        {world.state.slice_index(r.key) for r in world.state.all_rows()}
    )
    for write in planned.writes:
        assert write.payload["partitions"] == sorted(map(encode_row, write.rows))
        assert write.payload["controllerEpoch"] == 7


def test_only_the_slices_that_were_written_advance() -> None:
    world = ControllerWorld()
    draft = world.draft()
    for number in range(50):
        draft.put_row(row((1,), number=number))
    # Only the first of several slices is written.
    first, *_ = commit.plan(draft).writes
    commit.apply(world.state, first)
    assert {r.key for r in world.state.all_rows()} == {r.key for r in first.rows}


def test_written_slices_load_to_the_same_state() -> None:
    world = ControllerWorld(brokers=[broker(1)])
    draft = world.draft()
    for number in range(50):
        # Rows with a placeholder replica, which the state indexes separately.
        draft.put_row(row((1, -1), number=number))
    index = world.state.slice_index((numbered_uuid(99), 0))
    tomb = Tombstone(
        topic_id=numbered_uuid(99), name="gone", partitions=1, tiered_epoch=-1, pending=(1,)
    )
    draft.put_tombstone(index, tomb)
    world.commit(draft)
    other = ControllerState(controller_id="b", controller_epoch=8, cluster=cluster())
    for slice_index, payload in world.slices.items():
        commit.load_slice(other, slice_index, payload)
    assert {r.key: r for r in other.all_rows()} == {r.key: r for r in world.state.all_rows()}
    assert other.tombstones_of(numbered_uuid(99)) == {index: tomb}
    assert other.commit == 1
    assert other.partitions.with_placeholders == world.state.partitions.with_placeholders
    sizes = [content.row_bytes for content in world.state.slices]
    assert [content.row_bytes for content in other.slices] == sizes


def test_taking_over_writes_every_slice_under_the_new_epoch() -> None:
    world = ControllerWorld(rows=[row((1,))], epoch=9)
    # The claim gets its own commit number, so that later reads can recognize it.
    world.state.commit = 41
    writes = commit.take_over(world.state)
    assert [write.index for write in writes] == list(range(64))
    assert {write.payload["controllerEpoch"] for write in writes} == {9}
    assert {write.payload["commit"] for write in writes} == {42}
    assert [write.payload["partitions"] for write in writes if write.payload["partitions"]] == [
        [encode_row(row((1,)))]
    ]


def test_slice_of_a_later_controller_is_refused() -> None:
    world = ControllerWorld(epoch=3)
    with pytest.raises(BadSlice, match="Another controller"):
        commit.load_slice(world.state, 0, {"controllerEpoch": 4, "commit": 1})


def test_unreadable_slice_is_never_treated_as_empty() -> None:
    world = ControllerWorld(rows=[row((1,))])
    index = world.state.slice_index(world.row().key)
    # Unknown row format, invalid number, invalid list, and a row of another slice.
    for payload in (
        {"controllerEpoch": 1, "commit": 1, "partitions": ["9|what"]},
        {"controllerEpoch": 1, "commit": "x"},
        {"controllerEpoch": 1, "commit": 1, "partitions": "text"},
        {"controllerEpoch": 1, "commit": 1, "partitions": [encode_row(row((1,)))]},
    ):
        with pytest.raises(BadSlice):
            commit.load_slice(world.state, (index + 1) % 64, payload)
    assert world.row().replicas == (1,)


def test_a_write_of_unknown_outcome_is_settled_by_its_commit_number() -> None:
    world = ControllerWorld()
    draft = world.draft()
    draft.put_row(row((1,)))
    (write,) = commit.plan(draft).writes
    assert commit.is_stored(write, {"controllerEpoch": 7, "commit": 1})
    assert not commit.is_stored(write, {"controllerEpoch": 7, "commit": 0})
    # The same commit number under an earlier epoch is another controller's write.
    assert not commit.is_stored(write, {"controllerEpoch": 6, "commit": 1})


def _fill(world: ControllerWorld, size_bytes: int) -> None:
    """Fill the only slice up to about the given size."""
    number = 0
    while world.state.slices[0].row_bytes < size_bytes:
        number += 1
        world.state.put_row(row((1, 2, 3), number=10_000 + number, name="n" * 240))


def test_a_full_slice_refuses_new_rows_and_still_takes_changes() -> None:
    world = ControllerWorld(view=cluster(slices=1), brokers=[broker(1), broker(2), broker(3)])
    # New rows must leave room for changes of existing ones.
    _fill(world, SLICE_BYTES_MAX - SLICE_BYTES_RESERVE - 100)
    draft = world.draft()
    created = row((1, 2, 3), name="n" * 240)
    draft.put_row(created)
    with pytest.raises(SliceFull, match="slice 0"):
        draft.check_room([created.key])
    draft = world.draft()
    # A change of an existing row uses the reserve.
    changed = next(iter(world.state.all_rows()))
    draft.put_row(dataclasses.replace(changed, leader_epoch=12345))
    assert len(commit.plan(draft).writes) == 1


def test_no_slice_is_ever_written_beyond_its_limit() -> None:
    world = ControllerWorld(view=cluster(slices=1))
    _fill(world, SLICE_BYTES_MAX)
    draft = world.draft()
    draft.put_row(row((1,)))
    with pytest.raises(SliceFull):
        commit.plan(draft)


def test_removing_a_row_in_a_draft_counts_and_commits() -> None:
    world = ControllerWorld(topics=[topic()], rows=[row((1, 2)), row((2, 1), partition=1)])
    draft = world.draft()
    draft.remove_row(world.row().key)
    assert draft.row(world.row().key) is None
    assert (draft.replica_count(1), draft.preferred_count(1)) == (1, 0)
    world.commit(draft)
    assert world.state.partitions.ids_named("topic-1") == frozenset()
    assert [r.partition for r in world.state.all_rows()] == [1]


def test_an_empty_draft_writes_nothing() -> None:
    assert commit.plan(Draft(ControllerWorld().state)).empty


def test_reverted_decision_writes_nothing() -> None:
    world = ControllerWorld(rows=[row((1, 2))])
    draft = world.draft()
    # The row changes and returns to its stored value, and another one is added and removed.
    draft.put_row(dataclasses.replace(world.row(), leader=2))
    draft.put_row(world.row())
    draft.put_row(row((1,), partition=1))
    draft.remove_row((numbered_uuid(1), 1))
    assert commit.plan(draft).empty


def test_plan_numbers_are_unique_even_without_a_write() -> None:
    """Otherwise the slice of a timed-out write could pass for that of another."""
    world = ControllerWorld()
    plans = []
    for replica in (1, 2):
        draft = world.draft()
        draft.put_row(row((replica,)))
        plans.append(commit.plan(draft))
    assert plans[0].number < plans[1].number
    assert not commit.is_stored(plans[1].writes[0], plans[0].writes[0].payload)
