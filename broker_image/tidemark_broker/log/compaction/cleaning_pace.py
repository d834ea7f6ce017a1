"""How a cleaning shares the machine: turns, rests, bytes a second, and when it gives up.

A cleaning is Python that runs in a thread beside the loop, and the interpreter lets go of its lock
of its own accord only every five milliseconds. So a turn is short and a rest follows, in which the
loop gets its turn, also between the records of one large batch.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

#: How long it works at a time, and rests.
_TURN_S = 0.001
_REST_S = 0.0001
_TURN_RECORDS = 256
#: How long it sleeps at most before it looks whether it is to give up.
_SLEEP_S = 0.5

R = TypeVar("R")


class CleaningAborted(Exception):
    """The log was cut, closed or removed, or the broker stops: another cleaning begins anew."""


class Pace:
    """Of one cleaning. ``aborted`` is asked each turn; ``moved`` is told of bytes that were read or
    written, and says for how many seconds to rest."""

    def __init__(
        self,
        aborted: Callable[[], bool],
        moved: Callable[[int], float],
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._aborted = aborted
        self._moved = moved
        self._now = now
        self._sleep = sleep
        self._began_s = now()
        self._bytes = 0

    def turns(self, records: Iterator[R]) -> Iterator[list[R]]:
        """Records of one batch, a few hundred at a time."""
        while turn := list(islice(records, _TURN_RECORDS)):
            yield turn
            self.step(0)

    def step(self, size_bytes: int) -> None:
        """So many bytes were worked on; rest where a turn is over."""
        self._bytes += size_bytes
        if self._now() - self._began_s < _TURN_S:
            return
        moved, self._bytes = self._bytes, 0
        rest_s = max(_REST_S, self._moved(moved))
        while rest_s > 0:
            self._sleep(min(rest_s, _SLEEP_S))
            if self._aborted():
                raise CleaningAborted
            rest_s = self._moved(0)
        self._began_s = self._now()
