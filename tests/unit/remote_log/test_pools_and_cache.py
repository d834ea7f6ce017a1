"""State that several threads share: thread pools with limits, and a cache that loads once."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tidemark.tier.metadata.cache import ByteCache
from tidemark.tier.stores.objects import NotInMemory
from tidemark_broker.remote_log.tier_failure import (
    CustomMetadataTooLarge,
    LocalDataMissing,
    failure_of,
    jittered,
)
from tidemark_broker.replication.threads import ThreadPool, ThreadsBusy


async def test_a_pool_rejects_calls_beyond_its_queue_and_after_its_end() -> None:
    pool, release = ThreadPool("p", threads=1, pending_max=1), threading.Event()
    # One call runs and one waits in the queue of one.
    wait, ended = partial(release.wait, 5), list[int]()
    calls = [pool.submit(wait, lambda: ended.append(threading.get_ident())) for _ in range(2)]
    assert (pool.queue_size, pool.idle_threads) == (1, 0)
    with pytest.raises(ThreadsBusy):
        pool.submit(wait)
    assert pool.rejected_total == 1
    release.set()
    assert [await asyncio.wrap_future(call) for call in calls] == [True, True]
    await asyncio.sleep(0)
    assert pool.idle_threads == 1
    # The caller is notified of each end on its own thread.
    assert ended == [threading.get_ident()] * 2
    assert 0 <= pool.idle_share <= 1
    await pool.close()
    with pytest.raises(ThreadsBusy, match="closed"):
        pool.submit(wait)


def test_a_cache_evicts_the_least_recently_used_entry() -> None:
    cache: ByteCache[int, bytes] = ByteCache(10, len)
    for key in (1, 2, 1, 3):
        assert cache.get(key, lambda: bytes(4)) == bytes(4)
    assert (1 in cache, 2 in cache, 3 in cache) == (True, False, True)
    assert (cache.size_bytes, len(cache), cache.hits, cache.misses) == (8, 2, 1, 3)
    # A value above the limit is returned, but it must not evict everything else.
    assert len(cache.get(4, lambda: bytes(11))) == 11
    assert (4 in cache, cache.size_bytes) == (False, 8)
    cache.forget(lambda key: key == 1)
    assert (1 in cache, 3 in cache, cache.size_bytes) == (False, True, 4)


def test_many_threads_load_once_and_a_failure_is_not_cached() -> None:
    cache: ByteCache[int, bytes] = ByteCache(100, len)
    inside, release, loads = threading.Event(), threading.Event(), []

    def load() -> bytes:
        loads.append(1)
        inside.set()
        release.wait(5)
        return b"data"

    def fail() -> bytes:
        raise OSError("gone")

    # Three threads request a missing key. The first load lasts until all three wait for it.
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(cache.get, 1, load) for _ in range(3)]
        inside.wait(5)
        release.set()
        assert [future.result(5) for future in calls] == [b"data"] * 3
    assert len(loads) == 1
    with pytest.raises(OSError, match="gone"):
        cache.get(2, fail)
    assert 2 not in cache
    assert cache.get(2, lambda: b"after all") == b"after all"


def test_missing_entries_are_loaded_by_one_call() -> None:
    cache: ByteCache[int, bytes] = ByteCache(100, len)
    loaded_keys: list[tuple[int, ...]] = []
    other_loads, release = threading.Event(), threading.Event()

    def load(keys: Sequence[int]) -> list[bytes]:
        loaded_keys.append(tuple(keys))
        return [b"%d" % key for key in keys]

    def slowly() -> bytes:
        other_loads.set()
        release.wait(5)
        return b"3, by another"

    # Of four keys, 2 is in the cache and 3 is being loaded by another thread.
    cache.get(2, lambda: b"2, kept")
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(cache.get, 3, slowly)
        other_loads.wait(5)
        many = threads.submit(cache.get_many, (1, 2, 3, 4), load)
        release.set()
        assert many.result(5) == [b"1", b"2, kept", b"3, by another", b"4"]
        assert other.result(5) == b"3, by another"
    assert loaded_keys == [(1, 4)]

    def fail(keys: Sequence[int]) -> list[bytes]:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        cache.get_many((4, 5, 6), fail)
    # A failure leaves no entry, so the next request loads again.
    assert (4 in cache, 5 in cache, 6 in cache) == (True, False, False)


def test_event_loop_waits_for_no_load_of_another_thread() -> None:
    cache: ByteCache[int, bytes] = ByteCache(100, len)
    inside, release = threading.Event(), threading.Event()

    def slow() -> bytes:
        inside.set()
        assert release.wait(10)
        return b"1"

    cache.get(2, lambda: b"2")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(cache.get, 1, slow)
        assert inside.wait(10)
        with pytest.raises(NotInMemory):
            cache.get_many_cached((2, 1))
        assert cache.get_cached(2) == b"2"
        release.set()
        assert loading.result(10) == b"1"
    assert list(cache.get_many_cached((1, 2))) == [b"1", b"2"]
    with pytest.raises(NotInMemory):
        cache.get_cached(3)
    # What is neither cached nor being loaded may be loaded in the loop itself.
    assert list(cache.get_many_cached((3, 1, 4), lambda keys: [b"%d" % key for key in keys])) == [
        b"3",
        b"1",
        b"4",
    ]
    assert cache.get_cached(4) == b"4"


def test_values_loaded_in_advance_are_not_evicted_before_their_use() -> None:
    unused: list[int] = []
    cache: ByteCache[int, bytes] = ByteCache(40, len, advance_bytes=20, on_unused=unused.append)
    cache.load_in_advance((1, 2), lambda keys: [bytes(5) for _ in keys])
    # Values that are only read once pass through the rest of the cache.
    for key in range(100, 200):
        cache.get(key, lambda: bytes(10))
    assert (1 in cache, 2 in cache, cache.size_bytes) == (True, True, 40)
    # Once it is used, a value is one like any other.
    assert cache.get(1, lambda: b"loaded again") == bytes(5)
    for key in range(200, 300):
        cache.get(key, lambda: bytes(10))
    assert (1 in cache, 2 in cache, unused) == (False, True, [])
    # Their part of the cache is limited, and the oldest one is evicted.
    cache.load_in_advance(range(3, 7), lambda keys: [bytes(5) for _ in keys])
    assert (2 in cache, 3 in cache, unused) == (False, True, [5])
    assert cache.size_bytes <= 40
    # A value that is needed again soon is protected as well.
    cache.get(300, lambda: bytes(5))
    cache.protect(300)
    for key in range(400, 500):
        cache.get(key, lambda: bytes(10))
    assert (300 in cache, unused) == (True, [5, 5])
    cache.forget(lambda key: key == 300)
    assert 300 not in cache


def test_request_joins_the_load_in_advance() -> None:
    unused: list[int] = []
    cache: ByteCache[int, bytes] = ByteCache(40, len, advance_bytes=20, on_unused=unused.append)
    inside, release, loaded_keys = threading.Event(), threading.Event(), []

    def slowly(keys: Sequence[int]) -> list[bytes]:
        loaded_keys.extend(keys)
        inside.set()
        release.wait(5)
        return [bytes(5) for _ in keys]

    with ThreadPoolExecutor(3) as threads:
        ahead = threads.submit(cache.load_in_advance, (1, 2), slowly)
        inside.wait(5)
        # Another load in advance does not wait for it.
        cache.load_in_advance((1, 2), slowly)
        read = threads.submit(cache.get, 1, lambda: b"loaded twice")
        while 1 not in cache._loading[1].requested:
            pass
        release.set()
        assert read.result(5) == bytes(5)
        ahead.result(5)
    assert loaded_keys == [1, 2]
    # Key 1 was requested, so it does not count as unused: only key 2 has a protected place.
    cache.load_in_advance(range(3, 7), lambda keys: [bytes(5) for _ in keys])
    assert unused == [5]


def test_a_failure_has_a_reason_and_a_message() -> None:
    assert failure_of(CustomMetadataTooLarge("big")).reason == "CustomMetadataTooLarge"
    assert failure_of(LocalDataMissing("hole")).reason == "LocalDataMissing"
    assert failure_of(OSError(28, "No space left")).reason == "StorageError"
    unforeseen = failure_of(ZeroDivisionError())
    assert (unforeseen.reason, unforeseen.message) == ("RemoteLogError", "ZeroDivisionError")
    assert all(0.8 <= jittered(1.0, 0.2) <= 1.2 for _ in range(50))
