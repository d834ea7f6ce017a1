"""Locks are taken in ascending rank; a step out of order fails, whether or not it deadlocks."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from tests.lock_order import reported
from tidemark_broker.lock_order import (
    REPORT_VARIABLE,
    LockOrderError,
    LockRank,
    ordered_async_lock,
    ordered_condition,
    ordered_lock,
    ordered_rlock,
    turn_of,
)


@pytest.fixture(autouse=True)
def _report_is_read() -> Iterator[None]:
    """Discard the violations that these tests provoke."""
    yield
    reported()


def test_descending_ranks_are_refused_and_reported() -> None:
    log, shaping = ordered_rlock(LockRank.LOG), ordered_rlock(LockRank.SHAPING)
    with shaping, log:
        pass
    # The order alone is refused: no other thread holds a lock.
    with log, pytest.raises(LockOrderError, match="rank SHAPING while it holds LOG"):
        shaping.acquire()
    assert "rank SHAPING while it holds LOG" in reported()
    with shaping:  # The refused lock is not held.
        pass


def test_locks_of_two_logs_are_never_held_together() -> None:
    first, second = ordered_rlock(LockRank.LOG), ordered_rlock(LockRank.LOG)
    with first, pytest.raises(LockOrderError), second:
        pass


def test_a_reentrant_lock_may_be_taken_again_below_others() -> None:
    shaping, log = ordered_rlock(LockRank.SHAPING), ordered_rlock(LockRank.LOG)
    with shaping, log, shaping, log:
        pass
    plain = ordered_lock(LockRank.LEAF)
    with plain, pytest.raises(LockOrderError):
        plain.acquire()  # it would wait for itself


def test_waiting_for_a_turn_counts_as_holding_a_lock() -> None:
    turn, log = turn_of(LockRank.CHECKPOINTS), ordered_rlock(LockRank.LOG)
    with log, pytest.raises(LockOrderError, match="CHECKPOINTS"), turn:
        pass
    with turn, log:
        pass


def test_a_condition_gives_its_lock_back_while_it_waits() -> None:
    condition, log = ordered_condition(LockRank.OPEN_LOGS), ordered_rlock(LockRank.LOG)
    done: list[bool] = []

    def wait() -> None:
        with condition:
            condition.wait_for(lambda: bool(done), timeout=10)
            with log:
                done.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    with condition:
        done.append(True)
        condition.notify_all()
    thread.join()
    assert done == [True, True]


async def test_tasks_take_locks_of_the_loop_in_order() -> None:
    replica, file = (
        ordered_async_lock(LockRank.REPLICA),
        ordered_async_lock(LockRank.STATE_FILE),
    )
    async with replica, file:
        pass
    async with file:
        with pytest.raises(LockOrderError, match="REPLICA while it holds STATE_FILE"):
            await replica.acquire()
        # Another task does not hold the lock of this one.
        await asyncio.create_task(_taken(replica))


async def _taken(lock: asyncio.Lock) -> None:
    async with lock:
        pass


def test_in_production_locks_are_the_standard_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    report = os.environ[REPORT_VARIABLE]
    monkeypatch.delenv(REPORT_VARIABLE)
    assert type(ordered_lock(LockRank.LOG)) is type(threading.Lock())
    assert type(ordered_rlock(LockRank.LOG)) is type(threading.RLock())
    assert type(ordered_async_lock(LockRank.REPLICA)) is asyncio.Lock
    with turn_of(LockRank.LOG), turn_of(LockRank.SHAPING):
        pass
    monkeypatch.setenv(REPORT_VARIABLE, report)
