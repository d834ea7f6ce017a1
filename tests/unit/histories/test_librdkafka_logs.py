"""Excerpts of a library's log next to a missing record that it reported as written."""

import itertools

import pytest

from tests.histories.checker import check
from tests.histories.events import HistoryRecorder
from tests.histories.levels import IDEMPOTENT, READ_COMMITTED
from tests.histories.librdkafka_logs import LINES_MAX, Hearing, ring, said_of, write_down


def _history(lines: tuple[str, ...], later: tuple[str, ...] = ()) -> HistoryRecorder:
    """Return a history with a record that was acknowledged without an offset, and lost.

    Its library logged ``lines`` before the acknowledgement, and ``later`` after it.
    """
    recorder = HistoryRecorder(10**6, clock=itertools.count(0, 1000).__next__)
    log_lines = ring()
    hearing, other = Hearing(recorder, log_lines, "p.1"), Hearing(recorder, log_lines, "p.2")
    hearing.log(7, "%s: %s", "PRODUCE", "before it was sent")
    fields = {"place": "h1-a-1", "value": "v", "level": IDEMPOTENT, "txn": "", "origin": None}
    operation = recorder.invoke("p.1", "send", **fields)
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
    write_down(log_lines, recorder)
    assert not log_lines
    return recorder


def test_lost_write_is_shown_with_the_librarys_log() -> None:
    messages = ("h1-a [1]: 4 messages implicitly acked", "h1-a [0]: 1 message", "state changes")
    events = _history(messages).events
    report = check(events)
    proofs = report.proofs(events)
    (lost,) = (anomaly for anomaly in report.violations if anomaly.name == "lost write")
    assert "v was acknowledged without an offset; " in lost.text
    lines = [line.partition(" said: ")[2] for line in proofs if " said: " in line]
    # A line about another partition is left out.
    assert lines == ["MSG: h1-a [1]: 4 messages implicitly acked", "MSG: state changes"]
    assert any('"offset": null' in line for line in proofs)


def test_last_lines_of_a_round_are_kept() -> None:
    log_lines = ring()
    hearing = Hearing(HistoryRecorder(10), log_lines, "p.1")
    for number in range(LINES_MAX + 5):
        hearing.log(7, "%d", number)
    assert (len(log_lines), log_lines[0][2]) == (LINES_MAX, "5")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [(3, [*range(8)]), (40, [*range(45)]), (100, [*range(10), *range(70, 105)])],
    ids=["3 lines", "40 lines", "100 lines"],
)
def test_start_and_end_of_a_long_wait_are_shown(lines: int, shown: list[int]) -> None:
    """The excerpt has the request of the record and the reason for its acknowledgement."""
    numbers = tuple(map(str, range(lines + 9)))
    events = _history(numbers[:lines], numbers[lines:]).events
    found = said_of(events, next(event.id for event in events if event.f == "send"))
    assert [int(line.rpartition(": ")[2]) for line in found] == shown


def test_a_new_epoch_is_an_event_at_once() -> None:
    recorder = HistoryRecorder(10)
    Hearing(recorder, ring(), "p.1").log(7, "%s", "bumped epoch to 3")
    assert [(event.f, event.process) for event in recorder.events] == [("raised", "p.1")]
