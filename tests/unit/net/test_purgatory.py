"""The purgatory: exactly-once completion, no lost wake-up, limits, and cost per notification."""

import asyncio
from collections.abc import Callable

import pytest

from tidemark_broker.purgatory import Purgatory, Watch


async def _until_waiting(purgatory: Purgatory, count: int) -> None:
    while purgatory.size != count:  # noqa: ASYNC110 - other tasks run until they all wait
        await asyncio.sleep(0)


async def test_a_condition_that_holds_never_waits() -> None:
    purgatory = Purgatory()
    assert await purgatory.wait(["k"], lambda: True, 10) is True
    assert purgatory.size == 0


async def test_a_notification_completes_what_waits_under_its_key_only() -> None:
    purgatory = Purgatory()
    state = {"a": False, "b": False}
    a = asyncio.create_task(purgatory.wait(["a"], lambda: state["a"], 30))
    b = asyncio.create_task(purgatory.wait(["b"], lambda: state["b"], 30))
    await _until_waiting(purgatory, 2)
    state["a"] = state["b"] = True
    purgatory.notify("a")
    assert await a is True
    assert not b.done()
    purgatory.notify("b")
    assert await b is True
    assert purgatory.size == 0
    assert not purgatory.waiting("a")


async def test_a_change_between_the_first_try_and_the_registration_is_seen() -> None:
    """The condition turns true without any notification after the first look at it."""
    answers = iter([False, True])
    assert await asyncio.wait_for(Purgatory().wait(["k"], lambda: next(answers), 30), 5) is True


async def test_time_out_answers_false_and_leaves_nothing_behind() -> None:
    purgatory = Purgatory()
    assert await purgatory.wait(["k"], lambda: False, 0.01) is False
    assert await purgatory.wait(["k"], lambda: False, 0) is False
    assert purgatory.size == 0


async def test_cancelling_the_waiting_task_removes_the_operation() -> None:
    purgatory = Purgatory()
    task = asyncio.create_task(purgatory.wait(["a", "b"], lambda: False, 30))
    await _until_waiting(purgatory, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert purgatory.size == 0
    assert not purgatory.waiting("a")
    assert not purgatory.waiting("b")


async def test_cancel_by_key_ends_operations_unsatisfied() -> None:
    purgatory = Purgatory()
    tasks = [asyncio.create_task(purgatory.wait(["k", i], lambda: False, 30)) for i in range(3)]
    await _until_waiting(purgatory, 3)
    assert purgatory.cancel(["k", 1]) == 3
    assert await asyncio.gather(*tasks) == [False, False, False]


async def test_completion_and_expiry_in_one_turn_settle_once() -> None:
    purgatory = Purgatory()
    state = {"ready": False}
    task = asyncio.create_task(purgatory.wait(["k"], lambda: state["ready"], 30))
    await _until_waiting(purgatory, 1)
    state["ready"] = True
    purgatory.notify("k")
    assert purgatory.cancel(["k"]) == 1
    assert await task is False
    await asyncio.sleep(0)


async def test_many_notifications_in_one_turn_look_once() -> None:
    purgatory = Purgatory()
    looks = 0

    def satisfied() -> bool:
        nonlocal looks
        looks += 1
        return False

    task = asyncio.create_task(purgatory.wait(["a", "b"], satisfied, 30))
    await _until_waiting(purgatory, 1)
    before = looks
    for _ in range(1000):
        purgatory.notify("a")
        purgatory.notify("b")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert looks == before + 1
    purgatory.cancel(["a"])
    await task


async def test_a_notification_touches_only_its_own_key_among_many_waiters() -> None:
    purgatory = Purgatory()
    looked_at: list[int] = []

    def condition_of(number: int) -> Callable[[], bool]:
        def condition() -> bool:
            looked_at.append(number)
            return False

        return condition

    tasks = [asyncio.create_task(purgatory.wait([n], condition_of(n), 60)) for n in range(5000)]
    await _until_waiting(purgatory, 5000)
    looked_at.clear()
    purgatory.notify(4711)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert looked_at == [4711]
    assert purgatory.cancel(range(5000)) == 5000
    await asyncio.gather(*tasks)
    assert purgatory.size == 0


async def test_an_error_of_the_condition_is_raised_where_it_waits() -> None:
    purgatory = Purgatory()
    broken = False

    def satisfied() -> bool:
        if broken:
            raise LookupError("no such partition")
        return False

    task = asyncio.create_task(purgatory.wait(["k"], satisfied, 30))
    await _until_waiting(purgatory, 1)
    broken = True
    purgatory.notify("k")
    with pytest.raises(LookupError, match="no such"):
        await task
    assert purgatory.size == 0


async def test_a_condition_may_notify_and_another_waiter_is_served() -> None:
    purgatory = Purgatory()
    log: list[str] = []

    def first() -> bool:
        if "go" in log:
            log.append("first")
            purgatory.notify("second")
            return True
        return False

    one = asyncio.create_task(purgatory.wait(["first"], first, 30))
    two = asyncio.create_task(purgatory.wait(["second"], lambda: "first" in log, 30))
    await _until_waiting(purgatory, 2)
    log.append("go")
    purgatory.notify("first")
    assert await one is True
    assert await two is True


async def test_no_more_than_the_limit_wait(caplog: pytest.LogCaptureFixture) -> None:
    purgatory = Purgatory("fetch", operations_max=2)
    tasks = [asyncio.create_task(purgatory.wait(["k"], lambda: False, 30)) for _ in range(2)]
    await _until_waiting(purgatory, 2)
    assert await purgatory.wait(["k"], lambda: False, 30) is False
    assert purgatory.refused_total == 1
    assert "fetch is full" in caplog.text
    purgatory.cancel(["k"])
    await asyncio.gather(*tasks)


async def test_a_watch_notes_what_was_notified_until_it_ends() -> None:
    purgatory, watch = Purgatory(), Watch[str]()
    for key in ("a", "b", "c"):
        purgatory.watch(watch, key, key.upper())
    purgatory.notify("b")
    purgatory.notify("other")
    assert list(watch.changed) == ["B"]
    watch.changed.clear()
    for key in ("a", "b"):
        purgatory.unwatch(watch, key)
        purgatory.unwatch(watch, key)
    for key in ("a", "b", "c"):
        purgatory.notify(key)
    assert list(watch.changed) == ["C"]


async def test_a_watch_is_woken_by_each_of_its_keys() -> None:
    purgatory, watch = Purgatory(), Watch[str]()
    for key in ("a", "b"):
        purgatory.watch(watch, key, key)
    waiting = asyncio.create_task(purgatory.wait([watch], lambda: "b" in watch.changed, 30))
    await _until_waiting(purgatory, 1)
    purgatory.notify("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    purgatory.notify("b")
    assert await waiting is True


async def test_no_client_has_more_than_half_of_the_room() -> None:
    """Requests of one client wait for a stuck follower; others can still wait."""
    purgatory = Purgatory(operations_max=4)

    def waiting(who: str | None) -> asyncio.Task[bool]:
        return asyncio.create_task(purgatory.wait(["k"], lambda: False, 30, who=who))

    tasks = [waiting("ann"), waiting("ann")]
    await _until_waiting(purgatory, 2)
    assert await purgatory.wait(["k"], lambda: False, 30, who="ann") is False
    tasks += [waiting("bob"), waiting(None)]
    await _until_waiting(purgatory, 4)
    assert purgatory.cancel(["k"]) == 4
    assert await asyncio.gather(*tasks) == [False] * 4
    tasks = [waiting("ann")]
    await _until_waiting(purgatory, 1)
    assert purgatory.cancel(["k"]) == 1
    await asyncio.gather(*tasks)
