"""The order in which a broker takes its locks, and the check that enforces it in tests.

Two threads that take two locks in opposite orders can deadlock. So every lock of the log, cleaner,
replication and remote log packages has a rank, and a thread (or a task, for locks of the event
loop) takes locks in ascending rank only. Two locks of one rank, such as the locks of two logs, are
never held together. A reentrant lock may be taken again while it is held.

The ranks cost nothing in production: the functions here return the standard library's locks. Where
the environment variable ``TIDEMARK_LOCK_ORDER_REPORT`` names a file, they return locks that raise
:class:`LockOrderError` at the first step out of order, whether or not it happens to deadlock, and
append it to that file. ``tests/conftest.py`` sets the variable, also for brokers that tests start
as processes of their own, and fails the test in which the file grows.
"""

import asyncio
import os
import threading
import traceback
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

REPORT_VARIABLE = "TIDEMARK_LOCK_ORDER_REPORT"


class LockRank(IntEnum):
    """Every lock that may be held together with another one, outermost first."""

    #: Locks of the event loop. Name of a replica, while it is created, reopened or removed.
    REPLICA_NAME = 10
    #: One replica's role, epochs and log end.
    REPLICA = 20
    #: Local retention and tiering changes of one replica.
    RETENTION = 30
    #: One replica's ``partition.state``.
    STATE_FILE = 40
    #: One partition's head in the tier.
    TIER_HEAD = 50

    #: Quota of bytes that are copied to the tier.
    COPY_QUOTA = 60
    #: Turn of a read of the tier on the event loop.
    TIER_READ = 70

    #: Locks of threads. Creation of the log of one name.
    CREATING_LOG = 110
    #: Changes of one log's files (``PartitionLog.shaping``).
    SHAPING = 120
    #: Checkpoint files of all logs. Several requests share one write.
    CHECKPOINTS = 130
    #: Log starts that are due. Several requests share one write.
    LOG_STARTS_DUE = 140
    #: The journal and the checkpoints of log starts.
    LOG_STARTS = 150
    #: Sync of the names in the log directory. Several requests share one sync.
    DIRECTORY_NAMES = 160
    #: Table of open logs.
    OPEN_LOGS = 170
    #: One log's state in memory (``PartitionLog.lock``). The event loop waits for it, so its holder
    #: must not wait for another log or for a checkpoint.
    LOG = 180
    #: Table of closed segments that are kept open.
    OPEN_SEGMENTS = 190
    #: Queues and file names of the cache of remote chunks.
    CHUNK_FILES = 195
    #: Guards a few fields; no other lock is taken under it.
    LEAF = 200


class LockOrderError(AssertionError):
    """A lock was taken out of order."""


class ThreadLock(AbstractContextManager[bool], Protocol):
    """Common interface of :class:`threading.Lock` and :class:`threading.RLock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; return whether it was taken before the ``timeout`` in seconds."""

    def release(self) -> None:
        """Release the lock, in the thread that took it."""


def ordered_lock(rank: LockRank) -> ThreadLock:
    """Return a :class:`threading.Lock` of that rank."""
    return _ranked(rank, threading.Lock(), reentrant=False)


def ordered_rlock(rank: LockRank) -> ThreadLock:
    """Return a :class:`threading.RLock` of that rank."""
    return _ranked(rank, threading.RLock(), reentrant=True)


def ordered_condition(rank: LockRank) -> threading.Condition:
    """Return a :class:`threading.Condition` whose lock has that rank."""
    return threading.Condition(cast("threading.Lock", ordered_lock(rank)))


def ordered_async_lock(rank: LockRank) -> asyncio.Lock:
    """Return an :class:`asyncio.Lock` of that rank."""
    return _CheckedAsyncLock(rank) if _report() else asyncio.Lock()


def turn_of(rank: LockRank) -> AbstractContextManager[None]:
    """Return the context of a turn: a wait for other threads that no lock represents. A thread
    enters it before it waits, so that the wait is checked like a lock."""
    return _CheckedTurn(rank) if _report() else nullcontext()


def _report() -> str:
    return os.environ.get(REPORT_VARIABLE, "")


def _ranked(rank: LockRank, lock: Any, *, reentrant: bool) -> ThreadLock:
    return _CheckedLock(rank, lock, reentrant=reentrant) if _report() else lock


# -- the check, in tests only -------------------------------------------------------------------


class _Ranked:
    """A lock or turn with a rank."""

    def __init__(self, rank: LockRank, *, reentrant: bool) -> None:
        self.rank = rank
        self.reentrant = reentrant


class _ThreadLocks(threading.local):
    def __init__(self) -> None:
        self.locks: list[_Ranked] = []


_by_thread = _ThreadLocks()
_by_task: "WeakKeyDictionary[asyncio.Task[Any], list[_Ranked]]" = WeakKeyDictionary()


def _check(requested: _Ranked, acquired: list[_Ranked]) -> None:
    """Raise :class:`LockOrderError` if a lock must not be taken while ``acquired`` are held.

    Locks are taken in ascending rank. ``acquired`` contains the locks that the thread or task
    holds.
    """
    # Reentrant locks are exempt only while the same one is held.
    if requested in acquired:
        if requested.reentrant:
            return
    elif not any(lock.rank >= requested.rank for lock in acquired):
        return
    names = ", ".join(lock.rank.name for lock in acquired)
    message = (
        f"{threading.current_thread().name} takes a lock of rank {requested.rank.name} while it "
        f"holds {names}. Take locks in ascending rank (tidemark_broker/lock_order.py), or release "
        "the other one first."
    )
    path = _report()
    # The report reaches the test even if the exception is swallowed.
    if path:
        with open(path, "a") as report:  # noqa: PTH123 - one append, of whole entries
            report.write(message + "\n" + "".join(traceback.format_stack(limit=12)) + "\n")
    raise LockOrderError(message)


def _drop(lock: _Ranked, acquired: list[_Ranked]) -> None:
    """Remove the last entry of the lock, which may be held several times."""
    for index in range(len(acquired) - 1, -1, -1):
        if acquired[index] is lock:
            del acquired[index]
            return


class _CheckedLock(_Ranked, AbstractContextManager[bool]):
    """A lock of threads, usable as the lock of a :class:`threading.Condition`."""

    def __init__(self, rank: LockRank, lock: Any, *, reentrant: bool) -> None:
        super().__init__(rank, reentrant=reentrant)
        self._lock = lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        _check(self, _by_thread.locks)
        taken = bool(self._lock.acquire(blocking, timeout))
        if taken:
            _by_thread.locks.append(self)
        return taken

    def release(self) -> None:
        _drop(self, _by_thread.locks)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self in _by_thread.locks


class _CheckedTurn(_Ranked, AbstractContextManager[None]):
    """A turn; several threads may be in it at once."""

    def __init__(self, rank: LockRank) -> None:
        super().__init__(rank, reentrant=False)

    def __enter__(self) -> None:
        _check(self, _by_thread.locks)
        _by_thread.locks.append(self)

    def __exit__(self, *_: object) -> None:
        _drop(self, _by_thread.locks)


class _CheckedAsyncLock(asyncio.Lock, _Ranked):
    """A lock of the event loop, held by a task."""

    def __init__(self, rank: LockRank) -> None:
        asyncio.Lock.__init__(self)
        _Ranked.__init__(self, rank, reentrant=False)

    async def acquire(self) -> "bool":  # type: ignore[override]
        acquired = _locks_of_task()
        _check(self, acquired)
        await super().acquire()
        acquired.append(self)
        return True

    def release(self) -> None:
        _drop(self, _locks_of_task())
        super().release()


def _locks_of_task() -> list[_Ranked]:
    task = asyncio.current_task()
    return [] if task is None else _by_task.setdefault(task, [])
