"""Work queue of keys to reconcile.

A key is in the queue once, however often it is added. One worker handles it at a time, and it is
queued again if it was added meanwhile. The queue is bounded by the number of objects, so overload
slows it down and never stops it (invariant 25). Failures back off exponentially, and keys can be
added with a delay. Keys that complete something go ahead of keys that start something; otherwise
thousands of new objects would all be started before the first is done. The clock is a parameter.
"""

import asyncio
import heapq
import random
from collections.abc import Callable

from tidemark.backoff import Backoff
from tidemark_operator.kube.kinds import Key

RETRY = Backoff(first_s=0.2, most_s=30.0)
#: One of this many keys is the oldest, so that those that go ahead never starve the others.
OLDEST_EVERY = 4


class KeyQueue:
    """First in, first out, within the keys that go ahead and within the others.

    Not locked: owned by the main loop.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create an empty queue. ``clock`` returns monotonic seconds."""
        self._clock = clock
        #: Waiting keys in order of arrival, with the time at which each was added.
        self._ready: dict[Key, float] = {}
        #: The same for keys that are handed out first.
        self._ahead: dict[Key, float] = {}
        self._taken = 0  # Keys handed out so far (see OLDEST_EVERY).
        self._running: dict[Key, float] = {}  # Keys that a worker handles, with their start.
        #: Running keys to queue again, and whether they go ahead then.
        self._again: dict[Key, bool] = {}
        #: Heap of (time, key) of delayed keys; an entry counts only if `_due` has the same time.
        self._later: list[tuple[float, Key]] = []
        self._due: dict[Key, float] = {}  # Time at which a delayed key becomes ready.
        self._failures: dict[Key, int] = {}  # Failures in a row, for the backoff.
        self._wake = asyncio.Event()  # Set when a key becomes ready.
        #: One idle worker waits for the next key, the others for their turn: a key, or a delay that
        #: ends, wakes one worker and not all.
        self._turn = asyncio.Lock()

    def add(self, key: Key, *, ahead: bool = False) -> None:
        """Reconcile ``key`` soon; ``ahead``: before those that have not begun."""
        # A running key may have read the former state: it runs again.
        if key in self._running:
            self._again[key] = ahead or self._again.get(key, False)
        elif key in self._ahead or (key in self._ready and not ahead):
            return
        elif ahead:
            self._ahead[key] = self._ready.pop(key, self._clock())
            self._wake.set()
        else:
            self._ready[key] = self._clock()
            self._wake.set()

    def add_later(self, key: Key, delay_s: float) -> None:
        """Reconcile ``key`` after a delay; the earliest of several counts."""
        due_s = self._clock() + delay_s
        # A later entry for the same key would change nothing.
        if due_s < self._due.get(key, float("inf")):
            self._due[key] = due_s
            heapq.heappush(self._later, (due_s, key))
            self._wake.set()

    async def get(self) -> Key:
        """Return the next key; it is running until ``done`` or ``failed``."""
        async with self._turn:
            while True:
                self._promote()
                if self._ready or self._ahead:
                    key = self._next()
                    self._running[key] = self._clock()
                    return key
                self._wake.clear()
                await self._wait()

    def _next(self) -> Key:
        self._taken += 1
        oldest = not self._ahead or (self._taken % OLDEST_EVERY == 0 and bool(self._ready))
        line = self._ready if oldest else self._ahead
        key = next(iter(line))
        del line[key]
        return key

    def done(self, key: Key) -> None:
        """Note that ``key`` was reconciled."""
        self._failures.pop(key, None)
        self._finish(key)

    def failed(
        self, key: Key, *, at_least_s: float = 0.0, at_most_s: float = RETRY.most_s
    ) -> float:
        """Queue a failed ``key`` again; return the delay in seconds."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        pause_s = min(at_most_s, RETRY.pause_s(failures, jitter=random.random()))
        delay_s = max(at_least_s, pause_s)
        # The retry covers additions during the failed run.
        self._again.pop(key, None)
        self._finish(key)
        self.add_later(key, delay_s)
        return delay_s

    def failures(self, key: Key) -> int:
        """Return how often in a row a key has failed."""
        return self._failures.get(key, 0)

    def _finish(self, key: Key) -> None:
        self._running.pop(key, None)
        ahead = self._again.pop(key, None)
        if ahead is not None:
            self.add(key, ahead=ahead)

    def _promote(self) -> None:
        now_s = self._clock()
        while self._later and self._later[0][0] <= now_s:
            due_s, key = heapq.heappop(self._later)
            # An entry whose time was replaced by an earlier one is void.
            if self._due.get(key) == due_s:
                del self._due[key]
                self.add(key)

    async def _wait(self) -> None:
        timeout_s = None if not self._later else max(0.0, self._later[0][0] - self._clock())
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    # ------------------------------------------------------------ figures

    @property
    def depth(self) -> int:
        """Number of keys that wait for a worker now, without delayed ones."""
        return len(self._ready) + len(self._ahead)

    @property
    def running(self) -> int:
        """Number of running keys."""
        return len(self._running)

    def head_age_s(self) -> float:
        """Return the age of the oldest waiting or running key, in seconds."""
        oldest = min(
            next(iter(self._ready.values()), self._clock()),
            next(iter(self._ahead.values()), self._clock()),
            min(self._running.values(), default=self._clock()),
        )
        return self._clock() - oldest
