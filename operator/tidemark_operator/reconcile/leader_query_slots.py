"""Turns at asking a leader: a few callers at once, so that one that hangs holds up few of them.

A caller that is not let in does not wait: its key is noted and comes again as soon as somebody is
done. So workers stay free for everything else, and a leader that answers is never short of work.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kube.kinds import Key

AT_ONCE = 8


class LeaderTurns:
    """Of one term. ``wake``: a key may try again. Bounded by the number of keys."""

    def __init__(self, wake: Callable[[Key], None]) -> None:
        self._wake = wake
        self._asking: Counter[int] = Counter()
        self._waiting: dict[int, dict[Key, None]] = {}

    @contextlib.contextmanager
    def turn(self, node_id: int, key: Key) -> Iterator[None]:
        """Ask a leader; raises :class:`EngineUnavailable` where others do."""
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
            if waiting:
                first = next(iter(waiting))
                del waiting[first]
                self._wake(first)
