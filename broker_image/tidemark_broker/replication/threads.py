"""Thread pools for blocking file work, separate for each kind of work.

A role change writes and fsyncs a few files. If it shared threads with segment fsyncs, checkpoints
or clients' look-ups, a failover would wait for them. A thread cannot be cancelled. If the task that
waits for one is cancelled, the wait continues until the thread has ended, so that no lock is
released and no file closed during its work.

Calls of the tier limit themselves: copying, expiring and committing have at most one call in
progress for each led partition. Clients send any number of reads and look-ups, so their queues have
a limit beyond which a call is refused at once.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class ThreadsBusy(Exception):
    """Too many calls of that kind are waiting, or the pool is closed: retry later."""


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
    """Named pool that runs functions in ``threads`` threads; used from the loop's thread.

    ``pending_max``: limit of waiting calls (None: no limit). ``only_reads``: a call is skipped if
    its caller gives up before it starts.
    """

    def __init__(
        self, name: str, *, threads: int, pending_max: int | None = None, only_reads: bool = False
    ) -> None:
        self.name = name
        self.rejected_total = 0
        self._only_reads = only_reads
        self._threads = threads
        self._pending_max = pending_max
        self._pending = 0
        self._busy_s = 0.0
        self._started_s = time.monotonic()
        self._is_closed = False
        self._call_ended = asyncio.Event()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function in a worker thread, to its end even if the caller is cancelled.

        In a pool with ``only_reads`` a call that has not started is dropped instead. Raises
        :class:`ThreadsBusy` if too many calls are waiting.
        """
        self._check_room()
        # The call can be given up until a thread has started it.
        call = _Call(partial(self._timed, partial(function, *args, **kwargs)))
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

    def submit(
        self, function: Callable[[], R], then: Callable[[], object] = lambda: None
    ) -> "Future[R]":
        """Queue a call that runs to its end, also if the caller is cancelled.

        ``then`` is called on the loop's thread after the end, also of a call that is cancelled or
        dropped. Raises :class:`ThreadsBusy`.
        """
        self._check_room()
        loop = asyncio.get_running_loop()

        def ended() -> None:
            self._ended()
            then()

        future = self._executor.submit(self._timed, function)
        self._pending += 1
        future.add_done_callback(lambda _: soon(loop, ended))
        return future

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Wait for a call. If the caller is cancelled, a running call ends by itself."""
        return await asyncio.wrap_future(self.submit(partial(function, *args, **kwargs)))

    @property
    def is_busy(self) -> bool:
        """Whether the queue is so long that optional work should be skipped."""
        return self._pending >= _BUSY * self._threads

    @property
    def idle_threads(self) -> int:
        """Number of further calls that would start at once; 0 after :meth:`close`."""
        return 0 if self._is_closed else max(0, self._threads - self._pending)

    @property
    def queue_size(self) -> int:
        """Number of calls that wait for a thread."""
        return max(0, self._pending - self._threads)

    @property
    def idle_share(self) -> float:
        """Share of thread time that was idle since the start, 0 to 1."""
        total_s = (time.monotonic() - self._started_s) * self._threads
        return max(0.0, 1.0 - self._busy_s / total_s) if total_s > 0 else 1.0

    async def close(self) -> None:
        """Accept no more calls, drop queued ones, let running ones end.

        It blocks no thread, because a call that never ended would hold it forever.
        """
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        while self._pending:
            self._call_ended.clear()
            await self._call_ended.wait()

    def _check_room(self) -> None:
        if self._is_closed:
            raise ThreadsBusy(f"the pool of {self.name} is closed")
        # Refused at once: a longer queue would only serve requests whose clients have given up.
        if self._pending_max is not None and self._pending >= self._threads + self._pending_max:
            self.rejected_total += 1
            raise ThreadsBusy(f"{self._pending} {self.name} are pending, the limit")

    def _timed(self, function: Callable[[], R]) -> R:
        began_s = time.monotonic()
        try:
            return function()
        finally:
            self._busy_s += time.monotonic() - began_s

    def _ended(self, _: object = None) -> None:
        self._pending -= 1
        self._call_ended.set()


def soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Run ``work`` on the loop's thread, unless the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)


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
