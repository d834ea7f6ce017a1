"""Reads of the tier by what was asked, so that a request that comes back finds its own.

A request waits only so long, and a loaded store takes longer. If its read were dropped then, the
next request for the same would begin behind everybody else's, and the more readers there are, the
less is ever served. So a read that was begun goes on: whoever asks for the same joins it, in its
place of the queue, and what came too late is kept until it is asked for. What is kept so has a
limit in bytes; those that wait are not counted, they hold their own. A read that nobody has asked
for in a while is not begun any more.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from tidemark.lru import Lru
from tidemark_broker.purgatory import Signal
from tidemark_broker.remote_log.thread_pools import Pool, soon

R = TypeVar("R")

ABANDONED_S = 5.0


class Abandoned(Exception):
    """Nobody has asked for it any more."""


class Job(Signal, Generic[R]):
    """One read, and how many wait for it now; itself the key under which they wait."""

    __slots__ = ("future", "key", "left_s", "waiters")
    future: Future[R]

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiters = 1
        self.left_s = 0.0


class ReadJobs(Generic[R]):
    """The loop's thread owns it. ``clock`` gives seconds; ``size_of`` a result's bytes, of which
    ``kept_bytes`` are kept for nobody in particular; ``on_end`` is called with a job that ended."""

    def __init__(
        self,
        pool: Pool,
        *,
        clock: Callable[[], float],
        size_of: Callable[[R], int],
        kept_bytes: int,
        on_end: Callable[[Job[R]], None],
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._size_of = size_of
        self._on_end = on_end
        self._jobs: dict[Hashable, Job[R]] = {}
        self._kept: Lru[Hashable, Job[R]] = Lru(kept_bytes)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def kept_bytes(self) -> int:
        """Of what is kept for nobody in particular."""
        return self._kept.weight

    def join(self, key: Hashable, work: Callable[[], R]) -> Job[R]:
        """Join the read of ``key``, or begin it with ``work``; :meth:`leave` follows. Raises
        :class:`PoolFull`."""
        job = self._jobs.get(key)
        if job is None:
            return self._begin(key, work)
        job.waiters += 1
        return job

    def _begin(self, key: Hashable, work: Callable[[], R]) -> Job[R]:
        job: Job[R] = Job(key)
        job.future = self._pool.submit(self._unless_abandoned, job, work)
        self._jobs[key] = job
        loop, ended = asyncio.get_running_loop(), partial(self._ended, job)
        job.future.add_done_callback(lambda _: soon(loop, ended))
        return job

    def leave(self, job: Job[R], *, keep: bool = True) -> None:
        """A caller takes what there is, or waits no longer; without ``keep`` the last one to leave
        ends it."""
        job.waiters -= 1
        job.left_s = self._clock()
        ends = not keep and not job.waiters
        if ends:
            job.future.cancel()
        if ends or job.future.done():
            self._forget(job)

    def _unless_abandoned(self, job: Job[R], work: Callable[[], R]) -> R:
        """In a thread."""
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
