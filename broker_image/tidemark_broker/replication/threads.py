"""Blocking file work off the loop, never left behind, in pools that do not wait for each other.

A role change writes and fsyncs a file or two; were its thread to come from where fsyncs of closed
segments, checkpoints or clients' look-ups wait, a fail-over would wait for them. So each kind of
work has threads of its own. A thread cannot be cancelled: when the task that waits for one is, the
wait goes on until the thread has ended, so that no lock is released and no file closed under it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class ThreadsBusy(Exception):
    """Too many calls of that kind wait already: try again later."""


#: Calls for each thread.
_BUSY = 16


class _Call(Generic[R]):
    """Begun by a thread, or given up by its caller, whichever comes first."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._taken: dict[str, object] = {}

    def __call__(self) -> R | None:
        """In the thread; None where nobody waits any more."""
        return self._function() if self._taken_by("thread") else None

    def give_up(self) -> bool:
        """By its caller; False if it has begun."""
        return self._taken_by("caller")

    def _taken_by(self, who: str) -> bool:
        return self._taken.setdefault("by", who) is who  # one step for all threads


class Threads:
    """A named pool; called with a function, it runs it to its end in one of ``threads`` threads.
    ``pending_max``: how many calls may wait (None: as many as there are callers). ``only_reads``: a
    call whose caller has gone before it began is not made."""

    def __init__(
        self, name: str, *, threads: int, pending_max: int | None = None, only_reads: bool = False
    ) -> None:
        self.name = name
        self._only_reads = only_reads
        self._running_max = threads
        self._pending_max = pending_max
        self._pending = 0
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run in a worker thread, and to its end also when the caller is cancelled meanwhile.
        Raises :class:`ThreadsBusy`. Call it on the loop's thread."""
        if self._pending_max is not None and self._pending >= self._running_max + self._pending_max:
            raise ThreadsBusy(f"{self._pending} {self.name} are under way already")
        call = _Call(partial(function, *args, **kwargs))
        work = asyncio.get_running_loop().run_in_executor(self._executor, call)
        self._pending += 1
        work.add_done_callback(self._ended)
        try:
            return cast(R, await asyncio.shield(work))
        except asyncio.CancelledError:
            if self._only_reads and call.give_up():
                work.cancel()
                raise
            if not work.done():
                await asyncio.wait([work])
            if not work.cancelled():
                work.exception()
            raise

    @property
    def is_busy(self) -> bool:
        """Do so many calls wait that one more, which need not be made, had better not be?"""
        return self._pending >= _BUSY * self._running_max

    def _ended(self, _: object) -> None:
        self._pending -= 1


#: Upkeep: flushes, checkpoints, retention, logs that are opened, made or removed.
in_thread = Threads("upkeep", threads=6)
#: What a change of role waits for: state files, leader epochs, truncations.
in_role_thread = Threads("role changes", threads=4)
#: Clients' look-ups by time, which unpack batches.
in_lookup_thread = Threads("look-ups", threads=2, pending_max=100, only_reads=True)
#: Batches of clients that are read before they are appended.
in_record_thread = Threads("records that are read", threads=2, pending_max=1000, only_reads=True)
#: Reads of what is not in memory, for consumers and for followers that are far behind.
in_read_thread = Threads("reads", threads=4, only_reads=True)
