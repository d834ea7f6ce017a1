"""Recorded placements: evidence in another slice until the Topic's own status has it."""

import dataclasses

import pytest

from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    cluster,
    numbered_uuid,
    topic,
)
from tidemark_operator.controller import topics
from tidemark_operator.controller.state.commit import BadSlice, load_slice
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.topics import record_placement


def _placed(numbers: range, *, slices: int = 64) -> ControllerWorld:
    """Return a world with rows of topics whose status is not written yet."""
    world = ControllerWorld(
        brokers=[broker(1)],
        topics=[topic(number, partitions=2, replication_factor=1) for number in numbers],
        view=cluster(slices=slices),
    )
    for number in numbers:
        world.decide(number)
    return world


def _record(world: ControllerWorld, *numbers: int) -> int:
    """Record the placements and return how many slices were written."""
    draft = world.draft()
    for number in numbers:
        assert record_placement(draft, f"ns/topic-{number}")
    return len(world.commit(draft).writes)


def _read(world: ControllerWorld) -> ControllerState:
    """Return the state that the next controller reads."""
    state = ControllerState(controller_id="b", controller_epoch=8, cluster=world.state.cluster)
    for index, payload in world.slices.items():
        load_slice(state, index, payload)
    return state


def test_many_topics_share_a_write_without_their_own_rows() -> None:
    world = _placed(range(1, 301))
    assert world.view().partitions_placed == 0
    # Almost all records are in slice 0, so that they share one write. The others are in slice 1.
    assert _record(world, *range(1, 301)) == 2
    for number in range(1, 301):
        assert world.view(number).partitions_placed == 2
        id_ = numbered_uuid(number)
        # The loss of one slice must not hit both the rows and their record.
        assert world.state.slice_index((id_, 0)) != world.state.record_home(id_)
    assert _record(world, 1) == 0, "it is there"


def test_the_next_controller_counts_recorded_placements() -> None:
    world = _placed(range(1, 3))
    _record(world, 1)
    state = _read(world)
    for number in (1, 2):
        state.put_topic(topic(number, partitions=2))
    placed = [state.topics[f"ns/topic-{number}"].partitions_placed for number in (1, 2)]
    assert placed == [2, 0]


def test_superseded_record_is_dropped_with_the_next_write() -> None:
    world = _placed(range(1, 4))
    _record(world, 1, 2)
    # The statuses of topics 1 and 3 are written, and topic 2 is deleted.
    for number in (1, 3):
        view = world.view(number)
        world.state.put_topic(
            dataclasses.replace(view, partitions_placed=2, status={"partitionsPlaced": 2})
        )
    world.state.topics.drop("ns/topic-2")
    _record(world, 3)
    assert sum(len(content.records) for content in world.state.slices) == 2, (
        "nothing is written for that alone"
    )
    # The next record in the same slice takes the superseded ones with it.
    draft = world.draft()
    draft.put_record(numbered_uuid(3), 2)
    draft.put_record(numbered_uuid(4), 2)
    world.commit(draft)
    left = {id_ for content in world.state.slices for id_ in content.records}
    assert numbered_uuid(1) not in left
    assert numbered_uuid(2) in left, "its rows remain although its Topic is deleted"


def test_single_slice_contains_rows_and_records() -> None:
    world = _placed(range(1, 2), slices=1)
    assert _record(world, 1) == 1
    assert _read(world).slices[0].records == {numbered_uuid(1): 2}


def test_number_of_records_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "RECORDS_MAX", 2)
    world = _placed(range(1, 5))
    _record(world, 1)
    draft = world.draft()
    assert record_placement(draft, "ns/topic-2")
    assert not record_placement(draft, "ns/topic-3")
    assert not record_placement(draft, "ns/unknown")


@pytest.mark.parametrize("text", ["", "x|1", "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAA|-1"])
def test_invalid_record_stops_the_takeover(text: str) -> None:
    payload = {"controllerEpoch": 1, "commit": 1, "placed": [text]}
    with pytest.raises(BadSlice, match="invalid placement record"):
        load_slice(ControllerWorld().state, 0, payload)
