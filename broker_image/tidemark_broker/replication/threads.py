"""Thread pools for blocking file work, separate for each kind of work.

A role change writes and fsyncs a few files. If it shared threads with segment fsyncs, checkpoints
or clients' look-ups, a failover would wait for them. A thread cannot be cancelled. If the task that
waits for one is cancelled, the wait continues until the thread has ended, so that no lock is
released and no file closed during its work.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class ThreadsBusy(Exception):
    """Too many calls of that kind are waiting: retry later."""


#: Waiting calls for each thread above which a pool counts as busy.
_BUSY = 16


class _Call(Generic[R]):
    """Call that a thread starts or its caller gives up, whichever comes first."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._taken: dict[str, object] = {}

    def __call__(self) -> R | None:
        """Run the function in the thread, unless the caller gave up. Then return None."""
        return self._function() if self._taken_by("thread") else None

    def give_up(self) -> bool:
        """Give up the call; return False if it has started."""
        return self._taken_by("caller")

    def _taken_by(self, taker: str) -> bool:
        return self._taken.setdefault("by", taker) is taker  # one step for all threads


class ThreadPool:
    """Named pool that runs a function to its end in one of ``threads`` threads.

    ``pending_max``: limit of waiting calls (None: no limit). ``only_reads``: a call is skipped if
    its caller gives up before it starts.
    """

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
        """Run a function in a worker thread, to its end even if the caller is cancelled.

        In a pool with ``only_reads`` a call that has not started is dropped instead. Raises
        :class:`ThreadsBusy` if too many calls are waiting. Call it on the loop's thread.
        """
        if self._pending_max is not None and self._pending >= self._running_max + self._pending_max:
            raise ThreadsBusy(f"{self._pending} {self.name} are under way already")
        # The call can be given up until a thread has started it.
        call = _Call(partial(function, *args, **kwargs))
        work = asyncio.get_running_loop().run_in_executor(self._executor, call)
        self._pending += 1
        work.add_done_callback(self._ended)
        try:
            # Shield: the thread cannot be interrupted, so its result must be awaited in any case.
            return cast(R, await asyncio.shield(work))
        except asyncio.CancelledError:
            if self._only_reads and call.give_up():
                work.cancel()
                raise
            if not work.done():
                await asyncio.wait([work])
            # Retrieve the exception, otherwise asyncio logs it as never retrieved.
            if not work.cancelled():
                work.exception()
            raise

    @property
    def is_busy(self) -> bool:
        """Whether the queue is so long that optional work should be skipped."""
        return self._pending >= _BUSY * self._running_max

    def _ended(self, _: object) -> None:
        self._pending -= 1


#: Maintenance: flushes, checkpoints, retention, and logs being opened, created or removed.
in_thread = ThreadPool("upkeep", threads=6)
#: Work that a role change waits for: state files, leader epochs, truncations.
in_role_thread = ThreadPool("role changes", threads=4)
#: Clients' look-ups by time, which unpack batches.
in_lookup_thread = ThreadPool("look-ups", threads=2, pending_max=100, only_reads=True)
#: Records of client batches that are read before the append.
in_record_thread = ThreadPool("records that are read", threads=2, pending_max=1000, only_reads=True)
#: Reads of uncached data, for consumers and for followers that are far behind.
in_read_thread = ThreadPool("reads", threads=4, only_reads=True)
