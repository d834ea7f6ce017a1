"""Blocking work that is done once for all threads that request it.

Examples are an fsync of a directory and a write of the checkpoints. A thread that requests a run
during another one waits, and shares the next run with all others that wait.
"""

import threading
from collections.abc import Callable

from tidemark_broker.lock_order import LockRank, turn_of


class SharedWork:
    """Run ``work``, which blocks, never twice at a time.

    A caller may wait for the current run to end, as for a lock of that ``rank``.
    """

    def __init__(self, work: Callable[[], None], rank: LockRank) -> None:
        self._work = work
        self._turn = turn_of(rank)
        self._changed = threading.Condition()
        self._requests = 0
        self._done = 0
        self._running = False

    def run(self) -> None:
        """On return a run of ``work`` that started after this call has succeeded. Blocks.

        An exception is raised in the thread that ran it; the others retry.
        """
        with self._turn:
            self._run()

    def _run(self) -> None:
        """Run the work, or wait for a run by another thread that began after this request. Blocks.

        If that run fails, this thread runs the work itself.
        """
        with self._changed:
            self._requests += 1
            request = self._requests
            # A run that is already in progress may have missed this caller's changes: wait for the
            # next.
            self._changed.wait_for(lambda: self._done >= request or not self._running)
            # Another thread's run, which began after this request, has succeeded.
            if self._done >= request:
                return
            self._running, covers = True, self._requests
        # ``covers``: number of requests that this run satisfies; after a failure none.
        try:
            self._work()
        except BaseException:
            covers = 0
            raise
        finally:
            with self._changed:
                self._running = False
                self._done = max(self._done, covers)
                self._changed.notify_all()
