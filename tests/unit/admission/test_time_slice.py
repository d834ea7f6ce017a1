"""Time slices on the event loop, and the order in which requests start."""

import asyncio
import itertools
import random
import socket

import pytest

from tidemark_broker.admission.arrival_order import ArrivalOrder
from tidemark_broker.admission.time_slice import ReadTurns, TimeSlice, in_parts
from tidemark_broker.api.table import duplicates


class TickingClock:
    """Clock that advances one millisecond with each reading."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


async def test_other_tasks_run_between_slices() -> None:
    time_slice, progress = TimeSlice(TickingClock()), []

    async def other() -> None:
        while True:
            progress.append(len(made))
            await asyncio.sleep(0)

    made: list[int] = []
    task = asyncio.create_task(other())
    all_made = await time_slice.collect(made.append(n) or n for n in range(100))  # type: ignore[func-returns-value]
    task.cancel()
    assert all_made == list(range(100))
    assert len(progress) >= 100 / 6
    # A slice is 5 ms: at most six items with this clock.
    assert max(later - sooner for sooner, later in itertools.pairwise(progress)) <= 6


def test_batches_contain_every_item_in_order() -> None:
    entries = list(range(1001))
    parts = list(in_parts(entries))
    assert [item for part in parts for item in part] == entries
    assert max(map(len, parts)) == 250
    assert list(in_parts([])) == []


def test_duplicates_are_found() -> None:
    assert duplicates([("t", 0), ("t", 1)]) == set()
    assert duplicates([("t", 0), ("t", 1), ("t", 0), ("t", 0)]) == {("t", 0)}


async def _read(turns: ReadTurns, read_bytes: int, log: list[str], name: str = "read") -> None:
    await turns.take()
    log.append(name)
    turns.use(read_bytes)


async def test_requests_that_arrive_during_large_reads_start_before_the_next_read() -> None:
    turns, log, loop = ReadTurns(), list[str](), asyncio.get_running_loop()
    readable, writer = socket.socketpair()
    with readable, writer:
        # A request that arrives while the first read runs: the loop has to poll to receive it.
        loop.add_reader(readable, lambda: (readable.recv(1), log.append("produce")))

        async def first() -> None:
            await _read(turns, 1 << 20, log)
            writer.send(b"1")

        await asyncio.gather(first(), *(_read(turns, 1 << 20, log) for _ in range(9)))
        loop.remove_reader(readable)
    assert log.index("produce") <= 2
    assert log.count("read") == 10


async def test_small_reads_share_a_turn() -> None:
    turns, log = ReadTurns(), list[str]()
    asyncio.get_running_loop().call_soon(log.append, "next iteration")
    await asyncio.gather(*(_read(turns, 100, log) for _ in range(1000)))
    # The tasks start behind the callback, in one iteration.
    assert log == ["next iteration"] + ["read"] * 1000


@pytest.mark.parametrize("seed", range(20))
async def test_disconnects_neither_reorder_nor_stop_the_turns(seed: int) -> None:
    turns, log, chance = ReadTurns(), list[str](), random.Random(seed)
    names = [str(number) for number in range(40)]
    tasks = [asyncio.create_task(_read(turns, 1 << 20, log, name)) for name in names]
    # Some requests end before their turn, others just after they were admitted.
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        chance.choice(tasks).cancel()
    assert log == [name for name, task in zip(names, tasks, strict=True) if not task.cancelled()]
    assert 0 < len(log) < len(names)


async def test_requests_begin_in_order_of_arrival_despite_yielding() -> None:
    order, begun = ArrivalOrder(), list[str]()

    async def request(name: str, turns: int) -> None:
        place = order.take()
        await place.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        begun.append(name)
        place.leave()
        await asyncio.sleep(0.01)
        place.leave()  # the dispatcher calls it in any case

    await asyncio.gather(request("large", 50), request("small", 0), request("third", 3))
    assert begun == ["large", "small", "third"]
    assert len(order) == 0
