"""Remote reads outlive the requests that started them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from tidemark_broker.remote_log.read_jobs import ABANDONED_S, Abandoned, Job, ReadJobs
from tidemark_broker.replication.threads import ThreadPool, ThreadsBusy

LIMIT = 10


class ReadJobWorld:
    """One thread that the test releases read by read, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.begun: list[str] = []
        self.ended: asyncio.Queue[Job[bytes]] = asyncio.Queue()
        self.go = threading.Semaphore(0)
        self.pool = ThreadPool("test", threads=1, pending_max=2)
        self.jobs: ReadJobs[bytes] = ReadJobs(
            self.pool,
            clock=lambda: self.now_s,
            size_of=len,
            kept_bytes=LIMIT,
            on_end=self.ended.put_nowait,
        )

    def request(self, name: str, result: bytes = b"1234") -> Job[bytes]:
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
        """Let the running read end. Return its job."""
        self.go.release()
        return await self.ended.get()


@pytest.fixture
async def world() -> AsyncIterator[ReadJobWorld]:
    made = ReadJobWorld()
    yield made
    for _ in range(20):
        made.go.release()
    await made.pool.close()


async def test_equal_requests_share_one_read(world: ReadJobWorld) -> None:
    jobs = [world.request("a") for _ in range(3)]
    assert await world.end() is jobs[0] is jobs[1] is jobs[2]
    for job in jobs:
        assert job.future.result() == b"1234"
        world.jobs.leave(job)
    # A result that all requests received is not kept.
    assert (world.begun, len(world.jobs), world.jobs.kept_bytes) == (["a"], 0, 0)
    repeated = world.request("a")
    await world.end()
    world.jobs.leave(repeated)
    assert world.begun == ["a", "a"]


async def test_a_repeated_request_finds_its_read_in_the_queue(world: ReadJobWorld) -> None:
    for name in ("a", "b", "c"):
        world.jobs.leave(world.request(name))  # its request timed out
    repeated = world.request("b")
    assert [job.key for job in [await world.end(), await world.end()]] == ["a", "b"]
    assert repeated.future.result() == b"1234"
    world.jobs.leave(repeated)
    await world.end()
    assert world.begun == ["a", "b", "c"]


async def test_an_abandoned_read_is_kept_until_it_is_requested(world: ReadJobWorld) -> None:
    # The Fetch timed out before the store answered. The client's retry must not start the read
    # again.
    world.jobs.leave(world.request("a"))
    await world.end()
    assert (len(world.jobs), world.jobs.kept_bytes) == (1, 4)
    job = world.request("a")
    assert job.future.result() == b"1234"
    world.jobs.leave(job)
    assert (world.begun, len(world.jobs), world.jobs.kept_bytes) == (["a"], 0, 0)


async def test_kept_results_are_limited_and_awaited_ones_are_not_dropped(
    world: ReadJobWorld,
) -> None:
    waited_for = world.request("w")
    await world.end()
    # Each result has 4 bytes and the limit is 10, so the oldest is dropped.
    for name in ("a", "b", "c"):
        world.jobs.leave(world.request(name))
        await world.end()
        assert world.jobs.kept_bytes <= LIMIT
    assert waited_for.future.result() == b"1234"
    assert world.jobs.kept_bytes == 8
    world.jobs.leave(waited_for)
    # The two newest results are still there, and are not read again.
    for name in ("b", "c"):
        world.jobs.leave(world.request(name))
    assert (world.begun, world.jobs.kept_bytes) == (["w", "a", "b", "c"], 0)


async def test_an_abandoned_read_is_not_started_after_a_while(world: ReadJobWorld) -> None:
    running, abandoned = world.request("a"), world.request("b")
    world.jobs.leave(abandoned)
    world.now_s += ABANDONED_S + 1
    await world.end()
    assert isinstance((await world.ended.get()).future.exception(), Abandoned)
    world.jobs.leave(running)
    assert (world.begun, len(world.jobs)) == (["a"], 0)


async def test_a_read_that_is_not_kept_ends_with_its_last_request(world: ReadJobWorld) -> None:
    running, queued = world.request("a"), world.request("b")
    assert world.request("b") is queued
    world.jobs.leave(running, keep=False)
    world.jobs.leave(queued, keep=False)
    # Another request still waits for the same read.
    assert not queued.future.cancelled()
    world.jobs.leave(queued, keep=False)
    assert queued.future.cancelled()
    await world.ended.get()
    await world.end()
    assert (world.begun, len(world.jobs), world.jobs.kept_bytes) == (["a"], 0, 0)


async def test_a_failure_reaches_all_waiters_and_is_not_cached(world: ReadJobWorld) -> None:
    waiting = world.request("a", b"")
    await world.end()
    with pytest.raises(OSError, match="it fails"):
        waiting.future.result()
    world.jobs.leave(waiting)
    world.jobs.leave(world.request("b", b""))
    await world.end()
    assert len(world.jobs) == 0


async def test_a_full_queue_rejects_only_new_reads(world: ReadJobWorld) -> None:
    first = [world.request(name) for name in ("a", "b", "c")]
    with pytest.raises(ThreadsBusy):
        world.request("d")
    assert world.request("c") is first[2]
