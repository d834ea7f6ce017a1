"""A read that was begun is not lost with the request that began it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from tidemark_broker.remote_log.read_jobs import ABANDONED_S, Abandoned, Job, ReadJobs
from tidemark_broker.remote_log.thread_pools import Pool, PoolFull

LIMIT = 10


class World:
    """One thread that the test releases read by read, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.begun: list[str] = []
        self.ended: asyncio.Queue[Job[bytes]] = asyncio.Queue()
        self.go = threading.Semaphore(0)
        self.pool = Pool("test", threads=1, pending_max=2)
        self.jobs: ReadJobs[bytes] = ReadJobs(
            self.pool,
            clock=lambda: self.now_s,
            size_of=len,
            kept_bytes=LIMIT,
            on_end=self.ended.put_nowait,
        )

    def ask(self, name: str, result: bytes = b"1234") -> Job[bytes]:
        return self.jobs.join(name, self.read(name, result))

    def read(self, name: str, result: bytes) -> Callable[[], bytes]:
        def work() -> bytes:
            self.begun.append(name)
            assert self.go.acquire(timeout=10)
            if not result:
                raise OSError("it fails")
            return result

        return work

    async def end(self) -> Job[bytes]:
        """Let the running read end."""
        self.go.release()
        return await self.ended.get()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    for _ in range(20):
        made.go.release()
    await made.pool.close()


async def test_equal_requests_share_one_read(world: World) -> None:
    jobs = [world.ask("a") for _ in range(3)]
    assert await world.end() is jobs[0] is jobs[1] is jobs[2]
    for job in jobs:
        assert job.future.result() == b"1234"
        world.jobs.leave(job)
    assert (world.begun, len(world.jobs), world.jobs.kept_bytes) == (["a"], 0, 0)
    again = world.ask("a")
    await world.end()
    world.jobs.leave(again)
    assert world.begun == ["a", "a"]


async def test_a_repeated_request_finds_its_read_in_the_queue(world: World) -> None:
    for name in ("a", "b", "c"):
        world.jobs.leave(world.ask(name))  # it waited no longer
    again = world.ask("b")
    assert [job.key for job in [await world.end(), await world.end()]] == ["a", "b"]
    assert again.future.result() == b"1234"
    world.jobs.leave(again)
    await world.end()
    assert world.begun == ["a", "b", "c"]


async def test_an_abandoned_read_is_kept_until_it_is_requested(world: World) -> None:
    world.jobs.leave(world.ask("a"))
    await world.end()
    assert (len(world.jobs), world.jobs.kept_bytes) == (1, 4)
    job = world.ask("a")
    assert job.future.result() == b"1234"
    world.jobs.leave(job)
    assert (world.begun, len(world.jobs), world.jobs.kept_bytes) == (["a"], 0, 0)


async def test_what_is_kept_has_a_limit_and_what_is_waited_for_is_not_dropped(
    world: World,
) -> None:
    waited_for = world.ask("w")
    await world.end()
    for name in ("a", "b", "c"):
        world.jobs.leave(world.ask(name))
        await world.end()
        assert world.jobs.kept_bytes <= LIMIT
    assert waited_for.future.result() == b"1234"
    assert world.jobs.kept_bytes == 8
    world.jobs.leave(waited_for)
    for name in ("b", "c"):
        world.jobs.leave(world.ask(name))
    assert (world.begun, world.jobs.kept_bytes) == (["w", "a", "b", "c"], 0)


async def test_a_cancelled_read_is_not_started(world: World) -> None:
    running, gone = world.ask("a"), world.ask("b")
    world.jobs.leave(gone)
    world.now_s += ABANDONED_S + 1
    await world.end()
    assert isinstance((await world.ended.get()).future.exception(), Abandoned)
    world.jobs.leave(running)
    assert (world.begun, len(world.jobs)) == (["a"], 0)


async def test_what_is_not_to_be_kept_ends_with_the_last_who_waits(world: World) -> None:
    running, queued = world.ask("a"), world.ask("b")
    assert world.ask("b") is queued
    world.jobs.leave(running, keep=False)
    world.jobs.leave(queued, keep=False)
    assert not queued.future.cancelled()
    world.jobs.leave(queued, keep=False)
    assert queued.future.cancelled()
    await world.ended.get()
    await world.end()
    assert (world.begun, len(world.jobs), world.jobs.kept_bytes) == (["a"], 0, 0)


async def test_a_failure_reaches_all_waiters_and_is_not_cached(world: World) -> None:
    waiting = world.ask("a", b"")
    await world.end()
    with pytest.raises(OSError, match="it fails"):
        waiting.future.result()
    world.jobs.leave(waiting)
    world.jobs.leave(world.ask("b", b""))
    await world.end()
    assert len(world.jobs) == 0


async def test_a_queue_that_is_full_refuses_only_what_is_new(world: World) -> None:
    first = [world.ask(name) for name in ("a", "b", "c")]
    with pytest.raises(PoolFull):
        world.ask("d")
    assert world.ask("c") is first[2]
