"""Logs of librdkafka's idempotent producers, which show why it acknowledged a record.

It acknowledges some records without an answer of their own: those of an unanswered request, once a
later one of the same partition was accepted (its line is ``IMPLICITACK``). Such a record has no
offset in the history. The lines of a round's idempotent producers are kept in a ring, because
dozens arrive every second, and are added to the history at the round's end.
"""

import logging
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from tests.histories.events import HistoryEvent, HistoryRecorder

SAID = "said"
#: What librdkafka is to log: sequence numbers and epochs; batches of records, sent and answered.
DEBUG = "eos,msg"
#: Number of latest lines of a round that are kept, some megabytes.
LINES_MAX = 20_000
#: Number of lines shown for one write: the first after it was sent, the last before it was
#: answered, and those directly after.
FIRST_SHOWN, LAST_SHOWN, LATER_SHOWN = 10, 30, 5

#: Lines with their time (µs of the run) and process.
Ring = deque[tuple[int, str, str]]

_PARTITION = re.compile(r"(\S+ \[\d+\])")


def ring() -> Ring:
    """Return an empty ring."""
    return deque(maxlen=LINES_MAX)


class Hearing(logging.Logger):
    """Log handler of one process's library.

    A new epoch is recorded as an event at once, because it changes the expected results.
    """

    def __init__(self, recorder: HistoryRecorder, said: Ring, process: str) -> None:
        super().__init__(process)
        self._recorder = recorder
        self._said = said
        self._process = process

    def log(self, level: int, msg: object, *args: object, **_: Any) -> None:
        line = str(msg) % args
        self._said.append((self._recorder.now_us(), self._process, line))
        if "bumped epoch" in line:
            self._recorder.point(self._process, "raised")


def write_down(said: Ring, recorder: HistoryRecorder) -> None:
    """Into the history, each at its time; the ring is empty then."""
    while said:
        at_us, process, line = said.popleft()
        recorder.point(process, SAID, at_us=at_us, line=line)


def said_of(events: Sequence[HistoryEvent], send: int) -> list[str]:
    """Return the producer's lines about that partition or none, from the send of the record to
    its answer, or to the end if there was no answer.
    """
    told = [event for event in events if event.id == send and event.f == "send"]
    if not told:
        return []
    asked, answered = told[0], told[-1]
    # Without an answer, all lines up to the end of the round may matter.
    until = answered.time if answered is not asked else events[-1].time
    topic, _, number = asked.value["place"].rpartition("-")
    here = {f"{topic} [{number}]"}
    # Lines that name no partition, such as a new epoch, concern all of them.
    lines = [
        event
        for event in events
        if event.f == SAID
        and event.process == asked.process
        and asked.time <= event.time
        and set(_PARTITION.findall(event.value["line"])) <= here
    ]
    # Index of the first line after the answer.
    answer = sum(event.time <= until for event in lines)
    first = min(FIRST_SHOWN, answer)
    last = max(answer - LAST_SHOWN, first)
    return [
        f"{event.time} {event.process} said: {event.value['line']}"
        for event in (*lines[:first], *lines[last : answer + LATER_SHOWN])
    ]
