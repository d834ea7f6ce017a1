"""Thread pools of KIP-950 (copier, expiration, fetcher), and one for commits.

Their threads run calls that block on the object store. Copying, expiring and committing have at
most one call in progress for each led partition. So the number of partitions bounds their queues,
and callers wait for their turn. Clients send any number of reads, so their queue has a limit beyond
which a read is refused at once.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class PoolFull(Exception):
    """Too many calls are waiting: retry later."""


class Pool:
    """Pool of threads, used from the loop's thread.

    ``pending_max`` None: callers limit themselves.
    """

    def __init__(self, name: str, *, threads: int, pending_max: int | None = None) -> None:
        self.name = name
        self.threads = threads
        self.pending_max = pending_max
        self.busy_s = 0.0
        self.rejected_total = 0
        self._pending = 0
        self._quiet = asyncio.Event()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"remote-{name}")
        self._started_s = time.monotonic()

    @property
    def queue_size(self) -> int:
        """Number of calls that wait for a thread."""
        return max(0, self._pending - self.threads)

    @property
    def idle_share(self) -> float:
        """Share of thread time that was idle since the start, 0 to 1."""
        total_s = (time.monotonic() - self._started_s) * self.threads
        return max(0.0, 1.0 - self.busy_s / total_s) if total_s > 0 else 1.0

    @property
    def has_idle_thread(self) -> bool:
        """Whether another call would start at once."""
        return self._pending < self.threads

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Queue a call. Raises :class:`PoolFull`."""
        # Refused at once: a longer queue would only serve requests whose clients have given up.
        if self.pending_max is not None and self._pending >= self.threads + self.pending_max:
            self.rejected_total += 1
            raise PoolFull(f"{self._pending} calls of the {self.name} pool are pending, its limit")
        loop = asyncio.get_running_loop()
        try:
            future = self._executor.submit(partial(self._timed, function, *args, **kwargs))
        except RuntimeError as error:  # the broker shuts down
            raise PoolFull(f"the {self.name} pool is closed") from error
        self._pending += 1
        future.add_done_callback(lambda _: soon(loop, self._ended))
        return future

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Wait for a call. If the caller is cancelled, a running call ends by itself."""
        return await asyncio.wrap_future(self.submit(function, *args, **kwargs))

    async def run_to_end(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call in the pool; a cancelled caller waits until the call has ended.

        It is for calls whose effect the next call depends on, such as commits. A thread cannot be
        interrupted, so :meth:`run` would return while the call still runs.
        """
        work = asyncio.ensure_future(self.run(function, *args, **kwargs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                await asyncio.wait([work])
            if not work.cancelled():
                # Retrieve the exception, otherwise asyncio logs it as never retrieved.
                work.exception()
            raise

    async def close(self) -> None:
        """Accept no more calls, drop queued ones, let running ones end.

        It blocks no thread, because a call that never ended would hold it forever.
        """
        self._executor.shutdown(wait=False, cancel_futures=True)
        while self._pending:
            self._quiet.clear()
            await self._quiet.wait()

    def _ended(self) -> None:
        self._pending -= 1
        self._quiet.set()

    def _timed(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        began_s = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            self.busy_s += time.monotonic() - began_s


def soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Run ``work`` on the loop's thread, unless the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)
