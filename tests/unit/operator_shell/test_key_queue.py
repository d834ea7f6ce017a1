"""The queue of keys: deduplicated, one worker per key, retried later, never lost."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loop_turns import many_turns
from tidemark_operator.kube.kinds import Key
from tidemark_operator.reconcile.queue import KeyQueue


class QueueClock:
    """Monotonic clock that tests advance."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def key(name: str) -> Key:
    return Key("Topic", "default", name)


@pytest.fixture
def clock() -> QueueClock:
    return QueueClock()


@pytest.fixture
def queue(clock: QueueClock) -> KeyQueue:
    return KeyQueue(clock)


async def next_of(queue: KeyQueue) -> Key | None:
    """Return the next key, or None if no key is ready."""
    try:
        async with asyncio.timeout(0):
            return await queue.get()
    except TimeoutError:
        return None


async def test_a_queue_contains_a_key_once_in_first_in_first_out_order(queue: KeyQueue) -> None:
    for name in ("b", "a", "b", "a"):
        queue.add(key(name))
    assert queue.depth == 2
    assert [await next_of(queue), await next_of(queue), await next_of(queue)] == [
        key("b"),
        key("a"),
        None,
    ]


async def test_urgent_keys_go_first_without_starving_others(
    queue: KeyQueue, clock: QueueClock
) -> None:
    for number in range(6):
        queue.add(key(f"new-{number}"))
    clock.now_s += 2.0
    for number in (5, 4, 3, 2):
        # Urgent keys are added twice: the second time must not move them back.
        queue.add(key(f"new-{number}"), ahead=True)
        queue.add(key(f"new-{number}"))
    assert queue.depth == 6
    assert queue.head_age_s() == 2.0
    order = [await next_of(queue) for _ in range(7)]
    # Every fourth key comes from the ordinary queue, so that urgent ones cannot starve it.
    assert order == [*(key(f"new-{number}") for number in (5, 4, 3, 0, 2, 1)), None]
    queue.add(key("other"))
    queue.add(key("new-5"), ahead=True)
    queue.add(key("new-5"))
    queue.done(key("new-5"))
    assert [await next_of(queue), await next_of(queue)] == [key("new-5"), key("other")]


async def test_key_added_during_its_processing_is_queued_again(
    queue: KeyQueue,
) -> None:
    queue.add(key("a"))
    assert await queue.get() == key("a")
    # Added twice during its processing: it is queued once more, after done().
    queue.add(key("a"))
    queue.add(key("a"))
    assert await next_of(queue) is None
    queue.done(key("a"))
    assert await next_of(queue) == key("a")
    queue.done(key("a"))
    assert await next_of(queue) is None


async def test_a_failed_key_waits_longer_each_time_and_success_forgets_it(
    queue: KeyQueue, clock: QueueClock
) -> None:
    delays: list[float] = []
    for _ in range(6):
        queue.add(key("a"))
        assert await next_of(queue) == key("a")
        delays.append(queue.failed(key("a")))
        assert await next_of(queue) is None
        clock.now_s += delays[-1] + 0.001
        assert await next_of(queue) == key("a")
        # Two more failures in a row, each with a longer delay.
        queue.failed(key("a"))
        clock.now_s += 60
        assert await next_of(queue) == key("a")
        queue.failed(key("a"))
        clock.now_s += 60
        assert await next_of(queue) == key("a")
        # Success resets the delay for the next round.
        queue.done(key("a"))
    assert max(delays) <= 0.2


async def test_retry_after_of_the_server_is_respected(queue: KeyQueue, clock: QueueClock) -> None:
    queue.add(key("a"))
    await queue.get()
    assert queue.failed(key("a"), at_least_s=7.0) >= 7.0
    clock.now_s += 6.9
    assert await next_of(queue) is None
    clock.now_s += 0.2
    assert await next_of(queue) == key("a")


async def test_earliest_of_several_delays_applies(queue: KeyQueue, clock: QueueClock) -> None:
    queue.add_later(key("a"), 10.0)
    queue.add_later(key("a"), 2.0)
    queue.add_later(key("a"), 30.0)
    clock.now_s += 2.1
    assert await next_of(queue) == key("a")
    queue.done(key("a"))
    # The later times were dropped with the first one.
    clock.now_s += 100
    assert await next_of(queue) is None


async def test_a_waiting_worker_wakes_when_a_key_is_added(queue: KeyQueue) -> None:
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add(key("a"))
    assert await waiting == key("a")


async def test_a_key_wakes_one_worker_however_many_wait(
    queue: KeyQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waking all workers for each key would cost time in proportion to their number."""
    waits, real = 0, queue._wait

    async def wait() -> None:
        nonlocal waits
        waits += 1
        await real()

    monkeypatch.setattr(queue, "_wait", wait)
    workers = [asyncio.create_task(queue.get()) for _ in range(32)]
    await many_turns()
    assert waits == 1
    # A delayed key wakes one worker, to shorten its timeout.
    queue.add_later(key("later"), 60.0)
    await many_turns()
    assert waits == 2
    for number in range(4):
        queue.add(key(f"k{number}"))
    await many_turns()
    assert waits == 3
    assert [worker.done() for worker in workers] == [True] * 4 + [False] * 28
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def test_the_age_of_the_head_counts_waiting_and_work(
    queue: KeyQueue, clock: QueueClock
) -> None:
    assert queue.head_age_s() == 0
    queue.add(key("a"))
    clock.now_s += 3
    queue.add(key("b"))
    assert queue.head_age_s() == 3
    await queue.get()
    clock.now_s += 2
    assert queue.head_age_s() == 2
    queue.done(key("a"))
    assert queue.head_age_s() == 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "work", "fail"]))))
def test_no_key_is_ever_lost(steps: list[tuple[str, str]]) -> None:
    """A key that was added after its last success is processed eventually."""

    async def run() -> None:
        clock = QueueClock()
        queue = KeyQueue(clock)
        expected: set[Key] = set()
        for name, step in steps:
            if step == "add":
                queue.add(key(name))
                expected.add(key(name))
            elif (got := await next_of(queue)) is not None:
                if step == "fail":
                    queue.failed(got)
                else:
                    expected.discard(got)
                    queue.done(got)
        clock.now_s += 1000
        # A key whose earlier failure is still due comes once more: harmless, so not counted.
        for _ in range(2 * len(steps)):
            if not expected:
                break
            got = await next_of(queue)
            assert got is not None
            expected.discard(got)
            queue.done(got)
        assert not expected

    asyncio.run(run())
