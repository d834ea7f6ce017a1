"""Reads of the tier by request key, so that a repeated request finds its own read.

A request waits for a limited time, and a loaded store may take longer. If its read were dropped
then, the next request for the same data would queue after all others. The more readers there are,
the fewer would ever be served. So a started read continues. A request for the same data joins it at
its place in the queue, and a result that came too late is kept until it is requested. Kept results
have a limit in bytes; results with waiting requests do not count. A read that was not requested for
a while is not started any more.
"""

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from tidemark.lru import Lru
from tidemark_broker.purgatory import Signal
from tidemark_broker.replication.threads import ThreadPool

R = TypeVar("R")

ABANDONED_S = 5.0


class Abandoned(Exception):
    """No request has waited for the read recently."""


class Job(Signal, Generic[R]):
    """One read, with the number of requests that wait for it. The job is their purgatory key."""

    __slots__ = ("future", "key", "left_s", "waiters")
    future: Future[R]

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiters = 1
        self.left_s = 0.0


class ReadJobs(Generic[R]):
    """Reads by key, owned by the loop's thread.

    ``clock`` returns seconds. ``size_of`` returns a result's bytes, of which ``kept_bytes`` may be
    kept without a waiting request. ``on_end`` is called with a job that ended.
    """

    def __init__(
        self,
        pool: ThreadPool,
        *,
        clock: Callable[[], float],
        size_of: Callable[[R], int],
        kept_bytes: int,
        on_end: Callable[[Job[R]], None],
    ) -> None:
        """Create it without reads; see the class for the parameters."""
        self._pool = pool
        self._clock = clock
        self._size_of = size_of
        self._on_end = on_end
        #: Reads that are queued or running, and finished ones whose result is kept.
        self._jobs: dict[Hashable, Job[R]] = {}
        #: Finished reads without a waiting request; the least recently used are dropped.
        self._kept: Lru[Hashable, Job[R]] = Lru(kept_bytes)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def kept_bytes(self) -> int:
        """Bytes of results without a waiting request."""
        return self._kept.weight

    def join(self, key: Hashable, work: Callable[[], R]) -> Job[R]:
        """Join the read of ``key``, or start it with ``work``.

        The caller must call :meth:`leave`. Raises :class:`ThreadsBusy`.
        """
        job = self._jobs.get(key)
        if job is None:
            return self._begin(key, work)
        job.waiters += 1
        return job

    def _begin(self, key: Hashable, work: Callable[[], R]) -> Job[R]:
        job: Job[R] = Job(key)
        job.future = self._pool.submit(
            partial(self._unless_abandoned, job, work), partial(self._ended, job)
        )
        self._jobs[key] = job
        return job

    def leave(self, job: Job[R], *, keep: bool = True) -> None:
        """Take the result, or stop waiting.

        Without ``keep`` the last caller to leave cancels the read.
        """
        job.waiters -= 1
        job.left_s = self._clock()
        # A request whose result is of its moment is worthless for others.
        ends = not keep and not job.waiters
        if ends:
            job.future.cancel()
        if ends or job.future.done():
            self._forget(job)

    def _unless_abandoned(self, job: Job[R], work: Callable[[], R]) -> R:
        """Run the work in a thread, unless no request has waited for ``ABANDONED_S``."""
        # The queue was longer than its clients' patience: skip the read.
        if not job.waiters and self._clock() - job.left_s > ABANDONED_S:
            raise Abandoned
        return work()

    def _ended(self, job: Job[R]) -> None:
        if job.future.cancelled() or job.future.exception() is not None:
            self._forget(job)
        elif not job.waiters and self._jobs.get(job.key) is job:
            self._keep(job)
        self._on_end(job)

    def _keep(self, job: Job[R]) -> None:
        self._kept.put(job.key, job, self._size_of(job.future.result()))
        for _, oldest in self._kept.evict():
            self._forget(oldest)

    def _forget(self, job: Job[R]) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
            self._kept.pop(job.key)
