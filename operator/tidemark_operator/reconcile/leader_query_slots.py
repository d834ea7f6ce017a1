"""Limit of parallel queries per leader, so that a leader that hangs blocks few workers.

A caller without a slot does not wait: its key is queued again as soon as a slot is free. Workers
therefore stay free for other objects, and a leader that answers never lacks work.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kube.kinds import Key

AT_ONCE = 8


class LeaderQuerySlots:
    """Slots of one term, bounded by the number of keys. ``wake`` queues a key again."""

    def __init__(self, wake: Callable[[Key], None]) -> None:
        self._wake = wake
        self._asking: Counter[int] = Counter()
        self._waiting: dict[int, dict[Key, None]] = {}

    @contextlib.contextmanager
    def slot(self, node_id: int, key: Key) -> Iterator[None]:
        """Take one of a leader's slots for a query; a context manager that frees it at the end.

        Limits the concurrent queries to one broker to :data:`AT_ONCE`. Without a free slot, ``key``
        is queued again once one is free, and :class:`EngineUnavailable` is raised.
        """
        waiting = self._waiting.setdefault(node_id, {})
        if self._asking[node_id] >= AT_ONCE:
            waiting[key] = None
            raise EngineUnavailable(
                f"broker {node_id} has not answered {AT_ONCE} requests of this kind yet"
            )
        waiting.pop(key, None)
        self._asking[node_id] += 1
        try:
            yield
        finally:
            self._asking[node_id] -= 1
            # One waiting key per freed slot, in order of arrival.
            if waiting:
                first = next(iter(waiting))
                del waiting[first]
                self._wake(first)
