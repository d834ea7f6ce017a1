"""A history is a file of lines, and is read as it was written."""

from pathlib import Path

import pytest

from tests.histories.events import HistoryEvent, HistoryRecorder, load, shown, store
from tests.unit.histories.perfect_cluster import history


def test_a_stored_history_is_read_again(tmp_path: Path) -> None:
    recorder = HistoryRecorder(10)
    recorder.invoke("p", "send", place="a-0", value="v", origin=["g", "a-0", 3]).ok(offset=1)
    recorder.point("p", "fault", kind="kill")
    store(recorder.events, tmp_path / "below" / "history.jsonl")
    assert load(tmp_path / "below" / "history.jsonl") == recorder.events


@pytest.mark.parametrize("line", ["", "{}", "[]", "7", '{"id": 1}'])
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever json says of it
        HistoryEvent.of(line)


def test_an_operation_ends_once() -> None:
    recorder = HistoryRecorder(10)
    operation = recorder.invoke("p", "end", txn="t", commit=True)
    operation.ok()
    operation.info()
    assert [event.type for event in recorder.events] == ["invoke", "ok"]


def test_a_full_history_is_reported_and_completes_started_operations() -> None:
    recorder = HistoryRecorder(1)
    operation = recorder.invoke("p", "poll")
    assert recorder.is_full
    operation.ok(records={})
    assert len(recorder.events) == 2


def test_operations_are_shown_in_their_order() -> None:
    events = history(1, 50)
    first, second = sorted({event.id for event in events})[:2]
    ids = [HistoryEvent.of(line).id for line in shown(events, (second, first), "")]
    assert ids == [event.id for event in events if event.id in (first, second)]


def test_long_poll_is_shortened_to_the_named_record() -> None:
    recorder = HistoryRecorder(10)
    records = {"a-0": [(number, f"v{number}") for number in range(100)], "b-0": [(0, "w")]}
    operation = recorder.invoke("p", "poll", level="plain")
    operation.ok(records=records)
    *_, line = shown(recorder.events, (operation.id,), "p was given v50 at last")
    assert HistoryEvent.of(line).value["records"] == {
        "a-0": [[49, "v49"], [50, "v50"], [51, "v51"]]
    }


def test_file_has_every_event_before_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with path.open("ab", buffering=0) as into:
        recorder = HistoryRecorder(10, into=into)
        recorder.invoke("p", "send", place="a-0").ok(offset=None)
        assert load(path) == recorder.events
        # The process is killed while it writes an event.
        into.write(b'{"id": 2, "type": "inv')
    assert load(path) == recorder.events
