"""Delayed operations: one implementation for produce, fetch, DeleteRecords and remote fetch.

Kafka's rule is: try, register under every key, try again, then start the timer; completion happens
exactly once. Here everything runs on one loop. A notification only marks its key, and the
operations under all keys marked in one turn of the loop are evaluated once, afterwards. A condition
is never evaluated from inside the code that changed the state.

The number of waiting operations is limited, and one client may have at most half of it. A client
whose requests wait without end, because a follower makes no progress, cannot keep other clients
from waiting.

A coroutine waits with :meth:`Purgatory.wait`. An operation of each record, such as a follower's
fetch, continues in a callback instead (:meth:`Purgatory.when`): a task costs more than its work.

A caller that waits for thousands of keys repeatedly (a follower's fetch session) registers a
:class:`Watch` on them instead. A notification adds the changed key's name to it, and only changed
names are evaluated.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from tidemark_broker.admission.fair_share import UsageByClient

logger = logging.getLogger(__name__)

N = TypeVar("N", bound=Hashable)

OPERATIONS_MAX = 100_000


class PartitionChange(enum.StrEnum):
    """State of a partition whose change an operation may wait for."""

    LOG_END = enum.auto()
    HIGH_WATERMARK = enum.auto()
    LOW_WATERMARK = enum.auto()
    SEGMENT_ROLLED = enum.auto()
    CONFIG = enum.auto()
    REMOTE_READ = enum.auto()


class Signal:
    """A key that belongs to no partition and equals only itself."""

    __slots__ = ()


#: A change of a partition (topic, number), or a signal.
DelayedOperationKey: TypeAlias = tuple[PartitionChange, tuple[str, int]] | Signal


@dataclass(slots=True, eq=False)
class DelayedOperation:
    """One waiting operation, which ends once.

    ``ended``: receives True if the condition became true, False after a time-out or a
    :meth:`Purgatory.cancel`. ``failed``: receives an error of the condition instead. Neither
    raises.
    """

    keys: tuple[DelayedOperationKey, ...]
    satisfied: Callable[[], bool]
    ended: Callable[[bool], object]
    failed: Callable[[Exception], object]
    client: Hashable
    is_waiting: bool = True
    timer: asyncio.TimerHandle | None = None


class Watch(Signal, Generic[N]):
    """Set of changed names since :attr:`changed` was last emptied, each given by the owner to a
    key.

    A caller that waits under the watch itself wakes at each change.
    """

    __slots__ = ("changed",)

    def __init__(self) -> None:
        self.changed: dict[N, None] = {}


class Purgatory:
    """Waiting operations by key (Kafka's ``DelayedOperationPurgatory``).

    Not thread-safe: use it on the loop's thread only.
    """

    def __init__(self, name: str = "operations", *, operations_max: int = OPERATIONS_MAX) -> None:
        """Create an empty purgatory in which at most ``operations_max`` operations may wait."""
        self.name = name
        self._operations_max = operations_max
        #: Waiting operations of each key, in the order of arrival.
        self._by_key: dict[DelayedOperationKey, dict[DelayedOperation, None]] = {}
        #: Watches of each key, with the name that the owner of the watch has given to the key, and
        #: whether it wakes callers.
        self._watches: dict[DelayedOperationKey, dict[Watch[Any], tuple[Hashable, bool]]] = {}
        self._size = 0
        #: Number of waiting operations of each client.
        self._by_client = UsageByClient()
        #: Keys that were notified since the last sweep.
        self._marked: dict[DelayedOperationKey, None] = {}
        self._sweep_due = False
        #: Operations that could not wait because a limit was reached.
        self.refused_total = 0

    @property
    def size(self) -> int:
        """Number of waiting operations."""
        return self._size

    def waiting(self, key: DelayedOperationKey) -> bool:
        """Whether an operation waits for ``key``, so a caller can skip needless work."""
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

        Return True if the condition became true. Return False after a time-out or :meth:`cancel`,
        and at once if ``operations_max`` operations already wait, or half as many of the client
        ``who`` (None: the broker itself). ``satisfied`` is evaluated at once, and again after a
        notification of any of ``keys``. It must be quick, and its exceptions are raised here.
        """
        # The common case needs neither a future nor a timer.
        if satisfied():
            return True
        if timeout_s <= 0:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        operation = self.when(
            keys,
            satisfied,
            timeout_s,
            partial(_unless_done, future, future.set_result),
            partial(_unless_done, future, future.set_exception),
            who=who,
        )
        if operation is None:
            return False
        # A change between the first evaluation and the registration has no notification, so
        # evaluate again.
        try:
            self._try(operation)
            return await future
        # Also reached when the waiting task is cancelled, which must not leave the operation
        # registered.
        finally:
            self.give_up(operation)

    def when(
        self,
        keys: Collection[DelayedOperationKey],
        satisfied: Callable[[], bool],
        timeout_s: float,
        ended: Callable[[bool], object],
        failed: Callable[[Exception], object],
        *,
        who: Hashable = None,
    ) -> DelayedOperation | None:
        """Wait as :meth:`wait` does, but call ``ended`` or ``failed`` in a later turn of the loop.

        It needs neither a task nor a future. ``satisfied`` is evaluated after notifications only.
        Return None, without a wait, if a limit is reached.
        """
        # One client may have at most half of all operations.
        if self._size >= self._operations_max or (
            who is not None and self._by_client[who] >= self._operations_max // 2
        ):
            self._refuse()
            return None
        # Register it under each key, then start its timer.
        operation = DelayedOperation(tuple(dict.fromkeys(keys)), satisfied, ended, failed, who)
        self._size += 1
        self._by_client.add(who, 1)
        for key in operation.keys:
            self._by_key.setdefault(key, {})[operation] = None
        operation.timer = asyncio.get_running_loop().call_later(
            timeout_s, self._settle, operation, False
        )
        return operation

    def give_up(self, operation: DelayedOperation) -> bool:
        """End a wait without a call of ``ended``. Return False if it has ended already."""
        if not operation.is_waiting:
            return False
        operation.is_waiting = False
        if operation.timer is not None:
            operation.timer.cancel()
        self._size -= 1
        self._by_client.add(operation.client, -1)
        for key in operation.keys:
            waiting = self._by_key[key]
            del waiting[operation]
            if not waiting:
                del self._by_key[key]
        return True

    def notify(self, key: DelayedOperationKey) -> None:
        """Mark a change of the state behind ``key``. Nothing is evaluated here."""
        # Most appends have no waiter. Hashing a key costs more than these comparisons.
        if self._watches and (watching := self._watches.get(key)) is not None:
            for watch, (name, wakes) in watching.items():
                watch.changed[name] = None
                if wakes and watch in self._by_key:
                    self._mark(watch)
        if self._by_key and key in self._by_key:
            self._mark(key)

    def watch(
        self, watch: Watch[N], key: DelayedOperationKey, name: N, *, wakes: bool = True
    ) -> None:
        """Add ``name`` to the watch at each notification of ``key``, until :meth:`unwatch`.

        ``wakes``: whether it wakes callers that wait under the watch.
        """
        self._watches.setdefault(key, {})[watch] = (name, wakes)

    def unwatch(self, watch: Watch[Any], key: DelayedOperationKey) -> None:
        """Stop adding notifications of ``key`` to the watch."""
        watching = self._watches.get(key)
        if watching is not None and watching.pop(watch, None) is not None and not watching:
            del self._watches[key]

    def _mark(self, key: DelayedOperationKey) -> None:
        self._marked[key] = None
        # One sweep per iteration of the event loop evaluates an operation once, however often its
        # keys are notified.
        if not self._sweep_due:
            self._sweep_due = True
            asyncio.get_running_loop().call_soon(self._sweep)

    def cancel(self, keys: Collection[DelayedOperationKey]) -> int:
        """End every operation under ``keys`` unsatisfied. Return how many were ended."""
        ended = 0
        for key in keys:
            for operation in tuple(self._by_key.get(key, ())):
                ended += self._settle(operation, False)
        return ended

    def _sweep(self) -> None:
        self._sweep_due = False
        marked, self._marked = self._marked, {}
        looked_at: set[DelayedOperation] = set()
        for key in marked:
            # The end of an operation removes it, and may start others under the same key.
            for operation in tuple(self._by_key.get(key, ())):
                if operation not in looked_at:
                    looked_at.add(operation)
                    self._try(operation)

    def _try(self, operation: DelayedOperation) -> None:
        # An operation that was evaluated before it may have ended this one.
        if not operation.is_waiting:
            return
        try:
            satisfied = operation.satisfied()
        except Exception as error:  # noqa: BLE001 - the waiting operation handles it
            self.give_up(operation)
            operation.failed(error)
            return
        if satisfied:
            self._settle(operation, True)

    def _settle(self, operation: DelayedOperation, satisfied: bool) -> bool:
        """End an operation. Return False if it has ended already."""
        if not self.give_up(operation):
            return False
        operation.ended(satisfied)
        return True

    def _refuse(self) -> None:
        self.refused_total += 1
        # Log at powers of two, so that a full purgatory does not flood the log.
        if self.refused_total & (self.refused_total - 1) == 0:
            logger.warning(
                "purgatory %s is full (%d operations): answered %d requests without waiting",
                self.name,
                self._size,
                self.refused_total,
            )


def _unless_done(future: "asyncio.Future[bool]", settle: Callable[[Any], None], end: Any) -> None:
    """Settle a future, unless its task was cancelled."""
    if not future.done():
        settle(end)
