"""Decisions of the S3-FIFO algorithm."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tidemark_broker.remote_log.s3_fifo import S3Fifo

#: After this time a use counts again.
LATER_S = 20.0


def filled(keys: Iterable[int], limit: int = 20, uses: int = 0) -> S3Fifo[int]:
    """Return queues with these entries of one byte."""
    queues: S3Fifo[int] = S3Fifo(limit, limit)
    for key in keys:
        queues.add(key, 1, 0)
        for number in range(uses):
            queues.use(key, LATER_S * (1 + number))
    return queues


def test_entries_stay_until_the_cache_is_full() -> None:
    queues = filled(range(20))
    assert (list(queues), queues.size_bytes) == (list(range(20)), 20)
    # Not before, although the small queue is above its share.
    changes = queues.add(20, 1, 0)
    assert changes.evicted == [(0, 1, False)]


def test_scan_does_not_evict_entries_that_were_used_more_than_once() -> None:
    queues = filled(range(10), uses=2)
    promoted = {key for number in range(1000) for key, _ in queues.add(100 + number, 1, 0).promoted}
    assert promoted == set(range(10))
    assert set(range(10)) <= set(queues)
    # The scan has the rest of the cache.
    assert len(queues) == 20


def test_entry_that_was_used_once_leaves_with_the_scan() -> None:
    queues = filled(range(10), uses=1)
    for number in range(20):
        queues.add(100 + number, 1, 0)
    assert not set(range(10)) & set(queues)


def test_requests_of_one_scan_count_as_one_use() -> None:
    queues = filled(range(10))
    for key in range(10):
        for second in range(6):
            queues.use(key, second)
    for number in range(20):
        queues.add(100 + number, 1, 6)
    assert not set(range(10)) & set(queues)


def test_key_that_returns_soon_joins_the_main_queue() -> None:
    queues = filled(range(20))
    assert queues.add(20, 1, 0).evicted == [(0, 1, False)]
    queues.add(0, 1, 0)
    assert queues.is_main(0)
    # Its place in the ghost queue is used up, so a later return is a first one again.
    queues.remove(0)
    queues.add(0, 1, 0)
    assert not queues.is_main(0)


def test_key_that_returns_late_is_new() -> None:
    queues = filled(range(20))
    for number in range(100):
        queues.add(100 + number, 1, 0)
    queues.add(0, 1, 0)
    assert not queues.is_main(0)


def test_used_entry_of_the_main_queue_gets_another_round() -> None:
    queues: S3Fifo[int] = S3Fifo(4, 4)
    for key in range(4):
        queues.add(key, 1, 0, main=True)
    queues.use(0, LATER_S)
    evicted = [key for number in range(3) for key, *_ in queues.add(10 + number, 1, 0).evicted]
    # Entry 0 is the oldest. New entries of the small queue, whose share is 0 here, leave next.
    assert evicted[0] == 1
    assert queues.is_main(0)


def test_shrinking_evicts_at_least_the_requested_bytes() -> None:
    queues: S3Fifo[int] = S3Fifo(100, 100)
    for key in range(10):
        queues.add(key, 10, 0)
    assert [key for key, *_ in queues.shrink(25).evicted] == [0, 1, 2]
    assert queues.size_bytes == 70
    queues.shrink(1000)
    assert (len(queues), queues.size_bytes) == (0, 0)


@given(
    limit=st.integers(1, 60),
    entries=st.integers(1, 12),
    steps=st.lists(
        st.tuples(st.sampled_from(["read", "remove", "shrink"]), st.integers(0, 15)), max_size=200
    ),
)
def test_limits_hold_and_every_entry_is_accounted_for(
    limit: int, entries: int, steps: list[tuple[str, int]]
) -> None:
    queues: S3Fifo[int] = S3Fifo(limit, entries)
    expected: dict[int, tuple[int, bool]] = {}
    for now, (step, key) in enumerate(steps):
        size = min(key + 1, limit)
        if step == "remove":
            assert queues.remove(key) == expected.pop(key, (None, False))[0]
            continue
        if step == "read" and queues.size_of(key) is not None:
            queues.use(key, now * LATER_S)
            continue
        changes = queues.shrink(size) if step == "shrink" else queues.add(key, size, now * LATER_S)
        # What the changes report is enough to follow the state of each entry.
        for promoted, _ in changes.promoted:
            assert not expected[promoted][1]
            expected[promoted] = (expected[promoted][0], True)
        for evicted, evicted_bytes, was_main in changes.evicted:
            assert expected.pop(evicted) == (evicted_bytes, was_main)
        if step == "read":
            expected[key] = (size, queues.is_main(key))
        assert {k: (queues.size_of(k), queues.is_main(k)) for k in queues} == expected
        assert queues.size_bytes == sum(size for size, _ in expected.values()) <= limit
        assert len(queues) == len(expected) <= entries
        # Memory for keys that are not cached is limited, too.
        assert len(queues._ghosts.keys) <= entries
        assert queues._uses.keys() == expected.keys()
