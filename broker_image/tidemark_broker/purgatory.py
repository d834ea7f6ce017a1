"""Delayed operations: one implementation for produce, fetch, DeleteRecords and remote fetch.

Kafka's rule is: try, register under every key, try again, then start the timer; completion happens
exactly once. Here everything runs on one loop. A notification only marks its key, and the
operations under all keys marked in one turn of the loop are evaluated once, afterwards. A condition
is never evaluated from inside the code that changed the state.

The number of waiting operations is limited, and one client may have at most half of it. A client
whose requests wait without end, because a follower makes no progress, cannot keep other clients
from waiting.

A caller that waits for thousands of keys repeatedly (a follower's fetch session) registers a
:class:`Watch` on them instead. A notification adds the changed key's name to it, and only changed
names are evaluated.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
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
class _Operation:
    """One waiting caller. ``done`` becomes True if the condition became true, False on time-out."""

    keys: tuple[DelayedOperationKey, ...]
    satisfied: Callable[[], bool]
    done: "asyncio.Future[bool]"
    client: Hashable


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
        self._by_key: dict[DelayedOperationKey, dict[_Operation, None]] = {}
        #: Watches of each key, with the name that the owner of the watch has given to the key.
        self._watches: dict[DelayedOperationKey, dict[Watch[Any], Hashable]] = {}
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
        if self._size >= self._operations_max or (
            who is not None and self._by_client[who] >= self._operations_max // 2
        ):
            self._refuse()
            return False
        loop = asyncio.get_running_loop()
        operation = _Operation(tuple(dict.fromkeys(keys)), satisfied, loop.create_future(), who)
        self._add(operation)
        timer: asyncio.TimerHandle | None = None
        # A change between the first evaluation and the registration has no notification, so
        # evaluate again.
        try:
            self._try(operation)
            if not operation.done.done():
                timer = loop.call_later(timeout_s, _settle, operation, False)
            return await operation.done
        # Also reached when the waiting task is cancelled, which must not leave the operation
        # registered.
        finally:
            if timer is not None:
                timer.cancel()
            self._remove(operation)

    def notify(self, key: DelayedOperationKey) -> None:
        """Mark a change of the state behind ``key``. Nothing is evaluated here."""
        watching = self._watches.get(key)
        if watching is not None:
            for watch, name in watching.items():
                watch.changed[name] = None
                self._mark(watch)
        self._mark(key)

    def watch(self, watch: Watch[N], key: DelayedOperationKey, name: N) -> None:
        """Add ``name`` to the watch at each notification of ``key``, until :meth:`unwatch`."""
        self._watches.setdefault(key, {})[watch] = name

    def unwatch(self, watch: Watch[Any], key: DelayedOperationKey) -> None:
        """Stop adding notifications of ``key`` to the watch."""
        watching = self._watches.get(key)
        if watching is not None and watching.pop(watch, None) is not None and not watching:
            del self._watches[key]

    def _mark(self, key: DelayedOperationKey) -> None:
        # Nearly every append notifies without a waiter, so that case must cost one lookup.
        if key not in self._by_key:
            return
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
            for operation in self._by_key.get(key, ()):
                ended += _settle(operation, False)
        return ended

    def _sweep(self) -> None:
        self._sweep_due = False
        marked, self._marked = self._marked, {}
        looked_at: set[_Operation] = set()
        for key in marked:
            # A settled operation removes itself later, on its own task. The copy guards against
            # that and new ones.
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
        self._by_client.add(operation.client, 1)
        for key in operation.keys:
            self._by_key.setdefault(key, {})[operation] = None

    def _remove(self, operation: _Operation) -> None:
        self._size -= 1
        self._by_client.add(operation.client, -1)
        for key in operation.keys:
            waiting = self._by_key[key]
            del waiting[operation]
            if not waiting:
                del self._by_key[key]

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


def _settle(operation: _Operation, satisfied: bool) -> bool:
    """Complete an operation once. Return whether this call completed it."""
    if operation.done.done():
        return False
    operation.done.set_result(satisfied)
    return True
