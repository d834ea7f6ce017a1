"""A history is a file of lines, and is read as it was written."""

from pathlib import Path

import pytest

from tests.histories.events import Event, Recorder, load, shown
from tests.unit.histories.perfect_cluster import history


def test_a_stored_history_is_read_again(tmp_path: Path) -> None:
    recorder = Recorder(10)
    recorder.invoke("p", "send", place="a-0", value="v", origin=["g", "a-0", 3]).ok(offset=1)
    recorder.point("p", "fault", kind="kill")
    recorder.store(tmp_path / "below" / "history.jsonl")
    assert load(tmp_path / "below" / "history.jsonl") == recorder.events


@pytest.mark.parametrize("line", ["", "{}", "[]", "7", '{"id": 1}'])
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever json says of it
        Event.of(line)


def test_an_operation_ends_once() -> None:
    recorder = Recorder(10)
    operation = recorder.invoke("p", "end", txn="t", commit=True)
    operation.ok()
    operation.info()
    assert [event.type for event in recorder.events] == ["invoke", "ok"]


def test_a_full_history_says_so_and_takes_what_has_begun() -> None:
    recorder = Recorder(1)
    operation = recorder.invoke("p", "poll")
    assert recorder.is_full
    operation.ok(records={})
    assert len(recorder.events) == 2


def test_operations_are_shown_in_their_order() -> None:
    events = history(1, 50)
    lines = shown(events, (events[4].id, events[0].id))
    assert [Event.of(line).id for line in lines] == [
        e.id for e in events if e.id in {events[0].id, events[4].id}
    ]
