"""Scheduling of a cleaning: turns, pauses, its byte rate, and the check for an abort.

A cleaning is Python code in a thread beside the loop, and the interpreter switches threads only
every five milliseconds on its own. So a turn is short and followed by a pause in which the loop
runs, even between the records of one large batch.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

#: Length of a turn, and of a pause.
_TURN_S = 0.001
_PAUSE_S = 0.0001
_TURN_RECORDS = 256
#: Longest sleep between two checks for an abort.
_SLEEP_S = 0.5

R = TypeVar("R")


class CleaningAborted(Exception):
    """The log was cut, closed or removed, or the broker stops. Another cleaning restarts."""


class CleaningPace:
    """Pace of one cleaning.

    ``aborted`` is polled each turn. ``moved`` receives the bytes read or written, and returns the
    seconds to pause.
    """

    def __init__(
        self,
        aborted: Callable[[], bool],
        moved: Callable[[int], float],
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Start the first turn now. ``now`` returns seconds, ``sleep`` takes seconds."""
        self._aborted = aborted
        self._moved = moved
        self._now = now
        self._sleep = sleep
        self._began_s = now()
        self._bytes = 0

    def turns(self, records: Iterator[R]) -> Iterator[list[R]]:
        """Yield the records of one batch in groups of a few hundred."""
        while turn := list(islice(records, _TURN_RECORDS)):
            yield turn
            self.step(0)

    def step(self, size_bytes: int) -> None:
        """Account for ``size_bytes`` of work; pause at the end of a turn."""
        self._bytes += size_bytes
        if self._now() - self._began_s < _TURN_S:
            return
        moved, self._bytes = self._bytes, 0
        # A pause of the throttle may be long, so aborts are checked within it.
        pause_s = max(_PAUSE_S, self._moved(moved))
        while pause_s > 0:
            self._sleep(min(pause_s, _SLEEP_S))
            if self._aborted():
                raise CleaningAborted
            pause_s = self._moved(0)
        self._began_s = self._now()
