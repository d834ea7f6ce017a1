"""The one queue of keys to reconcile.

A key stands in it once however often it is added, is worked on by one worker at a time, and comes
again if it was added meanwhile. It is bounded by the number of objects, so overload slows it down
and never stops it (invariant 25). Failures wait with exponential backoff; keys can be added for
later. The clock is passed in.
"""

import asyncio
import heapq
import random
from collections.abc import Callable

from tidemark.backoff import Backoff
from tidemark_operator.kube.kinds import Key

RETRY = Backoff(first_s=0.2, most_s=30.0)


class KeyQueue:
    """First in, first out. Not locked: owned by the main loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready: dict[Key, float] = {}
        self._running: dict[Key, float] = {}
        self._again: set[Key] = set()
        self._later: list[tuple[float, Key]] = []
        self._due: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: Key) -> None:
        """Reconcile ``key`` soon."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = self._clock()
            self._wake.set()

    def add_later(self, key: Key, delay_s: float) -> None:
        """Reconcile ``key`` after a while; of several the earliest counts."""
        due_s = self._clock() + delay_s
        if due_s < self._due.get(key, float("inf")):
            self._due[key] = due_s
            heapq.heappush(self._later, (due_s, key))
            self._wake.set()

    async def get(self) -> Key:
        """The next key; it is being worked on until ``done`` or ``failed``."""
        while True:
            self._promote()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._running[key] = self._clock()
                if self._ready:
                    self._wake.set()
                return key
            self._wake.clear()
            await self._wait()

    def done(self, key: Key) -> None:
        """``key`` was reconciled."""
        self._failures.pop(key, None)
        self._finish(key)

    def failed(self, key: Key, *, at_least_s: float = 0.0) -> float:
        """``key`` failed: it comes again; the delay in seconds."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        delay_s = max(at_least_s, RETRY.pause_s(failures, jitter=random.random()))
        self._again.discard(key)
        self._finish(key)
        self.add_later(key, delay_s)
        return delay_s

    def _finish(self, key: Key) -> None:
        self._running.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _promote(self) -> None:
        now_s = self._clock()
        while self._later and self._later[0][0] <= now_s:
            due_s, key = heapq.heappop(self._later)
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
        """Keys that wait for a worker now (not those put off)."""
        return len(self._ready)

    @property
    def running(self) -> int:
        """Keys that are being worked on."""
        return len(self._running)

    def head_age_s(self) -> float:
        """How long the oldest key has been waiting or worked on, in seconds."""
        oldest = min(
            next(iter(self._ready.values()), self._clock()),
            min(self._running.values(), default=self._clock()),
        )
        return self._clock() - oldest
