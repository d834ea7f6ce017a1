"""Work that many threads want done and that is as good for all of them when done once.

An fsync of a directory, a write of the checkpoints: who asks while one is under way waits, and
shares the next one with all others who do.
"""

import threading
from collections.abc import Callable

from tidemark_broker.lock_order import LockRank, turn_of


class SharedWork:
    """``work`` blocks and never runs twice at a time. A caller may have to wait until the present
    run ends, as for a lock of that ``rank``."""

    def __init__(self, work: Callable[[], None], rank: LockRank) -> None:
        self._work = work
        self._turn = turn_of(rank)
        self._changed = threading.Condition()
        self._requests = 0
        self._done = 0
        self._running = False

    def run(self) -> None:
        """T: on return ``work`` was begun after this call and has ended well. What it raises is
        raised in the thread that ran it; the others try again for themselves."""
        with self._turn:
            self._run()

    def _run(self) -> None:
        with self._changed:
            self._requests += 1
            mine = self._requests
            self._changed.wait_for(lambda: self._done >= mine or not self._running)
            if self._done >= mine:
                return
            self._running, covers = True, self._requests
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
