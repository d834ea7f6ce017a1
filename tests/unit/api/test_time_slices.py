"""Work in slices, and the order in which requests start."""

import asyncio
import itertools

from tidemark_broker.api.time_slices import InOrder, TimeSlices, named_twice, some


class TickingClock:
    """Clock that advances one millisecond with each reading."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


async def test_other_tasks_run_between_slices() -> None:
    turns, progress = TimeSlices(TickingClock()), []

    async def other() -> None:
        while True:
            progress.append(len(made))
            await asyncio.sleep(0)

    made: list[int] = []
    task = asyncio.create_task(other())
    all_made = await turns.all_of(made.append(n) or n for n in range(100))  # type: ignore[func-returns-value]
    task.cancel()
    assert all_made == list(range(100))
    assert len(progress) >= 100 / 6
    # A slice is 5 ms: at most six items with this clock.
    assert max(later - sooner for sooner, later in itertools.pairwise(progress)) <= 6


def test_batches_contain_every_item_in_order() -> None:
    entries = list(range(1001))
    parts = list(some(entries))
    assert [item for part in parts for item in part] == entries
    assert max(map(len, parts)) == 250
    assert list(some([])) == []


def test_duplicates_are_found() -> None:
    assert named_twice([("t", 0), ("t", 1)]) == set()
    assert named_twice([("t", 0), ("t", 1), ("t", 0), ("t", 0)]) == {("t", 0)}


async def test_requests_begin_in_order_of_arrival_despite_yielding() -> None:
    lock, begun = asyncio.Lock(), []

    async def request(name: str, turns: int) -> None:
        order = InOrder(lock)
        await order.begin()
        for _ in range(turns):
            await asyncio.sleep(0)
        begun.append(name)
        order.begun()
        await asyncio.sleep(0.01)
        order.begun()  # the dispatcher calls it in any case

    await asyncio.gather(request("large", 50), request("small", 0), request("third", 3))
    assert begun == ["large", "small", "third"]
    assert not lock.locked()
