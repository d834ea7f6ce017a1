"""Where a delayed operation waits: one implementation for produce, fetch, DeleteRecords, remote
fetch.

Kafka's rule: try, register under every key, try again, then start the
timer; completion happens exactly once. Here everything runs on one loop, so a notification only
marks its key, and the operations under all keys marked in one turn of the loop are looked at once,
afterwards: a condition is never evaluated from inside the code that changed the state.

What clients wait for has a limit, of which none of them has more than half: whose requests wait
without end, because a follower stands still, does not keep others from waiting.

Who waits for thousands of keys again and again (a follower's fetch session) keeps a :class:`Watch`
on them instead: a notification notes what has changed, and only that is looked at.
"""

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from typing import Any, Generic, TypeAlias, TypeVar

logger = logging.getLogger(__name__)

N = TypeVar("N", bound=Hashable)

OPERATIONS_MAX = 100_000


class Change(enum.StrEnum):
    """What may change of a partition, and so what an operation may wait for."""

    LOG_END = enum.auto()
    HIGH_WATERMARK = enum.auto()
    LOW_WATERMARK = enum.auto()
    SEGMENT_ROLLED = enum.auto()
    REMOTE_READ = enum.auto()


class Signal:
    """A key that is no partition's: only itself equals it."""

    __slots__ = ()


#: A change of a partition (topic, number), or a signal.
DelayedOperationKey: TypeAlias = tuple[Change, tuple[str, int]] | Signal


class _Operation:
    """One waiting caller. ``done`` resolves to whether the condition came true."""

    __slots__ = ("done", "keys", "satisfied", "who")

    def __init__(
        self,
        keys: tuple[DelayedOperationKey, ...],
        satisfied: Callable[[], bool],
        done: "asyncio.Future[bool]",
        who: Hashable,
    ) -> None:
        self.keys = keys
        self.satisfied = satisfied
        self.done = done
        self.who = who


class Watch(Signal, Generic[N]):
    """What has changed since :attr:`changed` was last emptied, under the names that its owner gave
    to the keys; whoever waits under the watch itself is woken by each of them."""

    __slots__ = ("changed",)

    def __init__(self) -> None:
        self.changed: dict[N, None] = {}


class Purgatory:
    """Waiting operations by key. Not safe for threads: call it on the loop's thread only."""

    def __init__(self, name: str = "operations", *, operations_max: int = OPERATIONS_MAX) -> None:
        self.name = name
        self._operations_max = operations_max
        self._by_key: dict[DelayedOperationKey, dict[_Operation, None]] = {}
        self._watches: dict[DelayedOperationKey, dict[Watch[Any], Hashable]] = {}
        self._size = 0
        self._of: Counter[Hashable] = Counter()
        self._marked: dict[DelayedOperationKey, None] = {}
        self._sweep_due = False
        self.refused_total = 0

    @property
    def size(self) -> int:
        """How many operations wait."""
        return self._size

    def waiting(self, key: DelayedOperationKey) -> bool:
        """Whether anybody waits for ``key`` (lets a caller skip work that nobody needs)."""
        return key in self._by_key

    async def wait(
        self,
        keys: Collection[DelayedOperationKey],
        satisfied: Callable[[], bool],
        timeout_s: float,
        *,
        who: Hashable = None,
    ) -> bool:
        """Wait until ``satisfied()`` is true, at most ``timeout_s`` seconds of the loop's clock.

        ``satisfied`` is asked at once, and again after any of ``keys`` was notified; it must be
        quick, and what it raises is raised here. False means time-out, :meth:`cancel`, or, when
        ``operations_max`` already wait, or half as many of ``who`` (None: the broker itself), that
        there is no room to wait.
        """
        if satisfied():
            return True
        if timeout_s <= 0:
            return False
        if self._size >= self._operations_max or (
            who is not None and self._of[who] >= self._operations_max // 2
        ):
            self._refuse()
            return False
        loop = asyncio.get_running_loop()
        operation = _Operation(tuple(dict.fromkeys(keys)), satisfied, loop.create_future(), who)
        self._add(operation)
        timer: asyncio.TimerHandle | None = None
        try:
            self._try(operation)
            if not operation.done.done():
                timer = loop.call_later(timeout_s, _settle, operation, False)
            return await operation.done
        finally:
            if timer is not None:
                timer.cancel()
            self._remove(operation)

    def notify(self, key: DelayedOperationKey) -> None:
        """State that operations under ``key`` look at has changed. Evaluates nothing."""
        watching = self._watches.get(key)
        if watching is not None:
            for watch, name in watching.items():
                watch.changed[name] = None
                self._mark(watch)
        self._mark(key)

    def watch(self, watch: Watch[N], key: DelayedOperationKey, name: N) -> None:
        """From now on a notification of ``key`` is noted as ``name``; until :meth:`unwatch`."""
        self._watches.setdefault(key, {})[watch] = name

    def unwatch(self, watch: Watch[Any], key: DelayedOperationKey) -> None:
        """Notifications of ``key`` are noted there no more."""
        watching = self._watches.get(key)
        if watching is not None and watching.pop(watch, None) is not None and not watching:
            del self._watches[key]

    def _mark(self, key: DelayedOperationKey) -> None:
        if key not in self._by_key:
            return
        self._marked[key] = None
        if not self._sweep_due:
            self._sweep_due = True
            asyncio.get_running_loop().call_soon(self._sweep)

    def cancel(self, keys: Collection[DelayedOperationKey]) -> int:
        """End every operation under ``keys`` now, unsatisfied; how many there were."""
        ended = 0
        for key in keys:
            for operation in self._by_key.get(key, ()):
                ended += _settle(operation, False)
        return ended

    def _sweep(self) -> None:
        self._sweep_due = False
        marked, self._marked = self._marked, {}
        looked_at: set[_Operation] = set()
        for key in marked:
            for operation in tuple(self._by_key.get(key, ())):
                if operation not in looked_at:
                    looked_at.add(operation)
                    self._try(operation)

    def _try(self, operation: _Operation) -> None:
        if operation.done.done():
            return
        try:
            satisfied = operation.satisfied()
        except Exception as error:  # noqa: BLE001 - raised again where the operation waits
            operation.done.set_exception(error)
            return
        if satisfied:
            _settle(operation, True)

    def _add(self, operation: _Operation) -> None:
        self._size += 1
        if operation.who is not None:
            self._of[operation.who] += 1
        for key in operation.keys:
            self._by_key.setdefault(key, {})[operation] = None

    def _remove(self, operation: _Operation) -> None:
        self._size -= 1
        if operation.who is not None:
            self._of[operation.who] -= 1
            if not self._of[operation.who]:
                del self._of[operation.who]
        for key in operation.keys:
            waiting = self._by_key[key]
            del waiting[operation]
            if not waiting:
                del self._by_key[key]

    def _refuse(self) -> None:
        self.refused_total += 1
        if self.refused_total & (self.refused_total - 1) == 0:
            logger.warning(
                "purgatory %s is full (%d operations): %d could not wait and were answered at once",
                self.name,
                self._size,
                self.refused_total,
            )


def _settle(operation: _Operation, satisfied: bool) -> bool:
    """Complete once; whether this call did."""
    if operation.done.done():
        return False
    operation.done.set_result(satisfied)
    return True
