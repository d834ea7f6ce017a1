"""Excerpts of a library's log next to a missing record that it reported as written."""

import itertools

import pytest

from tests.histories.checker import check
from tests.histories.events import HistoryRecorder
from tests.histories.levels import IDEMPOTENT, READ_COMMITTED
from tests.histories.librdkafka_logs import LINES_MAX, Hearing, ring, said_of, write_down


def _history(lines: tuple[str, ...], later: tuple[str, ...] = ()) -> HistoryRecorder:
    """One record that was acknowledged without an offset while its library said that, and some
    more later, and is not there at the end."""
    recorder = HistoryRecorder(10**6, clock=itertools.count(0, 1000).__next__)
    said = ring()
    hearing, other = Hearing(recorder, said, "p.1"), Hearing(recorder, said, "p.2")
    hearing.log(7, "%s: %s", "PRODUCE", "before it was sent")
    asked = {"place": "h1-a-1", "value": "v", "level": IDEMPOTENT, "txn": "", "origin": None}
    operation = recorder.invoke("p.1", "send", **asked)
    other.log(7, "another process")
    for line in lines:
        hearing.log(7, "%s: %s", "MSG", line)
    operation.ok(offset=None)
    for line in later:
        hearing.log(7, "%s: %s", "MSG", line)
    process = f"final-{READ_COMMITTED}"
    recorder.point(process, "position", offsets={"h1-a-1": 0}, group="", final=True)
    poll = recorder.invoke(process, "poll", level=READ_COMMITTED)
    poll.ok(records={"h1-a-1": [(0, "w")]})
    write_down(said, recorder)
    assert not said
    return recorder


def test_what_the_library_said_meanwhile_is_shown_with_a_write_that_was_lost() -> None:
    told = ("h1-a [1]: 4 messages implicitly acked", "h1-a [0]: 1 message", "state changes")
    events = _history(told).events
    report = check(events)
    proofs = report.proofs(events)
    (lost,) = (anomaly for anomaly in report.violations if anomaly.name == "lost write")
    assert "v was acknowledged without an offset; " in lost.text
    lines = [line.partition(" said: ")[2] for line in proofs if " said: " in line]
    assert lines == ["MSG: h1-a [1]: 4 messages implicitly acked", "MSG: state changes"]
    assert any('"offset": null' in line for line in proofs)


def test_of_a_round_the_last_lines_are_kept() -> None:
    said = ring()
    hearing = Hearing(HistoryRecorder(10), said, "p.1")
    for number in range(LINES_MAX + 5):
        hearing.log(7, "%d", number)
    assert (len(said), said[0][2]) == (LINES_MAX, "5")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [(3, [*range(8)]), (40, [*range(45)]), (100, [*range(10), *range(70, 105)])],
    ids=["3 lines", "40 lines", "100 lines"],
)
def test_of_a_long_wait_its_beginning_and_its_end_are_shown(lines: int, shown: list[int]) -> None:
    """The excerpt has the request of the record and the reason for its acknowledgement."""
    numbers = tuple(map(str, range(lines + 9)))
    events = _history(numbers[:lines], numbers[lines:]).events
    found = said_of(events, next(event.id for event in events if event.f == "send"))
    assert [int(line.rpartition(": ")[2]) for line in found] == shown


def test_a_new_epoch_is_an_event_at_once() -> None:
    recorder = HistoryRecorder(10)
    Hearing(recorder, ring(), "p.1").log(7, "%s", "bumped epoch to 3")
    assert [(event.f, event.process) for event in recorder.events] == [("raised", "p.1")]
