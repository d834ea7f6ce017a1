"""The purgatory: exactly one completion, no lost wake-up, limits, and
the cost of a notification."""

import asyncio
from collections.abc import Callable

import pytest

from tidemark_broker.purgatory import Purgatory, Watch


async def _until_waiting(purgatory: Purgatory, count: int) -> None:
    while purgatory.size != count:  # noqa: ASYNC110 - other tasks run until they all wait
        await asyncio.sleep(0)


async def test_a_true_condition_does_not_wait() -> None:
    purgatory = Purgatory()
    assert await purgatory.wait(["k"], lambda: True, 10) is True
    assert purgatory.size == 0


async def test_a_notification_completes_only_operations_with_its_key() -> None:
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


async def test_a_change_between_the_first_check_and_the_registration_is_noticed() -> None:
    """The condition becomes true after its first check, without any notification."""
    answers = iter([False, True])
    assert await asyncio.wait_for(Purgatory().wait(["k"], lambda: next(answers), 30), 5) is True


async def test_a_timeout_returns_false_and_removes_the_operation() -> None:
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
    # The notification schedules a check, and the cancellation comes in the same turn of the loop.
    # Kafka's DelayedOperation.forceComplete has the same race.
    purgatory.notify("k")
    assert purgatory.cancel(["k"]) == 1
    assert await task is False
    await asyncio.sleep(0)


async def test_many_notifications_in_one_turn_check_once() -> None:
    purgatory = Purgatory()
    checks = 0

    def satisfied() -> bool:
        nonlocal checks
        checks += 1
        return False

    task = asyncio.create_task(purgatory.wait(["a", "b"], satisfied, 30))
    await _until_waiting(purgatory, 1)
    before = checks
    # A busy partition notifies for each append. The condition must not be evaluated for each.
    for _ in range(1000):
        purgatory.notify("a")
        purgatory.notify("b")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert checks == before + 1
    purgatory.cancel(["a"])
    await task


async def test_a_notification_touches_only_its_own_key_among_many_waiters() -> None:
    purgatory = Purgatory()
    checked: list[int] = []

    def condition_of(number: int) -> Callable[[], bool]:
        def condition() -> bool:
            checked.append(number)
            return False

        return condition

    tasks = [asyncio.create_task(purgatory.wait([n], condition_of(n), 60)) for n in range(5000)]
    await _until_waiting(purgatory, 5000)
    # The checks at the registration do not count.
    checked.clear()
    purgatory.notify(4711)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert checked == [4711]
    assert purgatory.cancel(range(5000)) == 5000
    await asyncio.gather(*tasks)
    assert purgatory.size == 0


async def test_an_error_of_the_condition_is_raised_in_the_waiting_task() -> None:
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


async def test_a_condition_may_notify_other_waiters() -> None:
    purgatory = Purgatory()
    log: list[str] = []

    # The condition of the first operation completes the second one, while the purgatory is in the
    # middle of its checks.
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


async def test_operations_beyond_the_limit_do_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    purgatory = Purgatory("fetch", operations_max=2)
    tasks = [asyncio.create_task(purgatory.wait(["k"], lambda: False, 30)) for _ in range(2)]
    await _until_waiting(purgatory, 2)
    assert await purgatory.wait(["k"], lambda: False, 30) is False
    assert purgatory.refused_total == 1
    assert "fetch is full" in caplog.text
    purgatory.cancel(["k"])
    await asyncio.gather(*tasks)


async def test_a_watch_collects_notifications_until_it_ends() -> None:
    purgatory, watch = Purgatory(), Watch[str]()
    for key in ("a", "b", "c"):
        purgatory.watch(watch, key, key.upper())
    purgatory.notify("b")
    purgatory.notify("other")
    assert list(watch.changed) == ["B"]
    watch.changed.clear()
    for key in ("a", "b"):
        # Unwatching twice is allowed, and c is still watched.
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


async def test_no_client_has_more_than_half_of_the_operations() -> None:
    """Requests of one client wait for a stuck follower. Other clients can still wait."""
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
    # Completed operations do not count towards the client's half any more.
    tasks = [waiting("ann")]
    await _until_waiting(purgatory, 1)
    assert purgatory.cancel(["k"]) == 1
    await asyncio.gather(*tasks)


async def test_a_callback_receives_the_end_once_in_the_turn_of_the_check() -> None:
    purgatory = Purgatory()
    ends: list[bool] = []
    ready = False
    operation = purgatory.when(["k"], lambda: ready, 30, ends.append, pytest.fail)
    assert operation is not None
    ready = True
    purgatory.notify("k")
    # Nothing is evaluated inside the code that notifies.
    assert ends == []
    await asyncio.sleep(0)
    assert ends == [True]
    assert purgatory.size == 0
    # It has ended, so nothing ends it again.
    assert not purgatory.give_up(operation)
    assert purgatory.cancel(["k"]) == 0
    assert ends == [True]


async def test_a_callback_that_is_given_up_is_never_called() -> None:
    purgatory = Purgatory()
    operation = purgatory.when(["k"], lambda: True, 30, pytest.fail, pytest.fail)
    assert operation is not None
    purgatory.notify("k")
    assert purgatory.give_up(operation)
    await asyncio.sleep(0)
    assert purgatory.size == 0
    assert not purgatory.waiting("k")


async def test_a_callback_may_end_and_start_operations_of_the_same_key() -> None:
    purgatory = Purgatory()
    ends: list[str] = []

    def first(_: bool) -> None:
        ends.append("first")
        assert purgatory.cancel(["k"]) == 1
        assert purgatory.when(["k"], lambda: True, 30, lambda _: ends.append("third"), pytest.fail)

    purgatory.when(["k"], lambda: True, 30, first, pytest.fail)
    purgatory.when(["k"], lambda: True, 30, lambda _: ends.append("second"), pytest.fail)
    purgatory.notify("k")
    await asyncio.sleep(0)
    assert ends == ["first", "second"]
    purgatory.notify("k")
    await asyncio.sleep(0)
    assert ends == ["first", "second", "third"]


async def test_a_callback_receives_a_time_out_and_an_error_of_the_condition() -> None:
    purgatory = Purgatory()
    over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    purgatory.when(["slow"], lambda: False, 0.01, over.set_result, pytest.fail)
    assert await over is False
    errors: list[Exception] = []

    def broken() -> bool:
        raise LookupError("no such partition")

    purgatory.when(["k"], broken, 30, pytest.fail, errors.append)
    purgatory.notify("k")
    await asyncio.sleep(0)
    assert [str(error) for error in errors] == ["no such partition"]
    assert purgatory.size == 0


async def test_a_quiet_key_of_a_watch_wakes_no_caller() -> None:
    purgatory, watch = Purgatory(), Watch[str]()
    purgatory.watch(watch, "quiet", "Q", wakes=False)
    purgatory.watch(watch, "loud", "L")
    ends: list[bool] = []
    purgatory.when([watch], lambda: True, 30, ends.append, pytest.fail)
    purgatory.notify("quiet")
    await asyncio.sleep(0)
    assert ends == []
    purgatory.notify("loud")
    await asyncio.sleep(0)
    assert ends == [True]
    # Both changes are in the watch.
    assert list(watch.changed) == ["Q", "L"]
