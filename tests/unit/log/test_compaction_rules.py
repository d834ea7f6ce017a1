"""Rules of compaction, one by one: the offset map, transactions, the filter of a batch, coverage of
removed offsets, the choice of the next log, and merging of segments."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import parse_header, restamp
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker, build_end_marker, read_end_marker
from tidemark.records.decode import decode_records
from tidemark.records.rewriting import delete_horizon_ms, without_records
from tidemark_broker.log import LogConfig, SegmentInfo
from tidemark_broker.log.bounds import LogBounds
from tidemark_broker.log.compaction import batch_filter, candidate_selection
from tidemark_broker.log.compaction.batch_filter import BatchFilter, CleanedTransactions, LastBatch
from tidemark_broker.log.compaction.candidate_selection import (
    Dirtiness,
    IndexedBytes,
    dirtiness,
    fits_into_group,
)
from tidemark_broker.log.compaction.cleaned_segment import RewrittenBatches
from tidemark_broker.log.compaction.cleaning_pace import CleaningPace
from tidemark_broker.log.compaction.offset_map import SLOT_BYTES, OffsetMap

T0 = 1_700_000_000_000
DAY_MS = 86_400_000
PACE = CleaningPace(lambda: False, lambda _: 0.0)

# ------------------------------------------------------------------ offset map


@pytest.mark.parametrize(("slots", "load_factor"), [(2, 0.9), (3, 1.0), (64, 0.9), (1000, 0.99)])
def test_the_map_has_the_last_offset_of_each_key_until_it_is_full(
    slots: int, load_factor: float
) -> None:
    offsets, model = OffsetMap(slots * SLOT_BYTES, load_factor), dict[bytes, int]()
    number = 0
    while not offsets.is_full:
        # 7 and 1201 are coprime: the keys repeat only after 1201 steps, in an order that is not
        # sorted.
        key = b"%d" % (number * 7 % 1201)
        offsets.put(key, number)
        model[key] = number
        number += 1
    # The map is full at its load factor, and always leaves one slot empty so that a probe for an
    # unknown key ends.
    assert len(offsets) == len(model) == min(max(int(slots * load_factor), 1), slots - 1)
    assert {key: offsets.get(key) for key in model} == model
    assert [offsets.get(b"other-%d" % index) for index in range(100)] == [-1] * 100
    for key in model:  # of keys that are there more may be said
        offsets.put(key, number)
        assert offsets.get(key) == number
    assert len(offsets) == len(model)
    assert offsets.latest_offset == number
    assert offsets.utilization == len(model) / slots
    offsets.close()


# ------------------------------------------------------------------ transactions


def _data(offset: int, producer_id: int = 1, *, transactional: bool = True) -> bytes:
    return build_batch(
        [Record(b"k", b"v")],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=transactional,
    )


def _marker(offset: int, kind: int, producer_id: int = 1) -> bytes:
    if kind == OTHER:
        # A control record of a type that this version does not know, as a newer leader may write
        # it.
        record = Record(bytes([0, 0, 0, kind]), bytes(6), (), T0)
        return build_batch([record], base_offset=offset, producer_id=producer_id, is_control=True)
    batch = bytearray(
        build_end_marker(
            EndMarker(kind == COMMIT, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=T0,
        )
    )
    restamp(batch, 0, offset, 0)
    return bytes(batch)


ABORT, COMMIT, OTHER = 0, 1, 9


def _may_drop(transactions: CleanedTransactions, batches: Iterable[bytes]) -> list[bool]:
    found = []
    for batch in batches:
        header = parse_header(batch)
        if header.is_control:
            found.append(transactions.may_drop_marker(header, read_end_marker(batch)))
        else:
            found.append(transactions.may_drop_data(header))
    return found


@pytest.mark.parametrize(
    ("aborted", "batches", "expected"),
    [
        # Committed data stays, and its marker with it.
        ([], [_data(0), _marker(1, COMMIT)], [False, False]),
        # A marker of nothing goes.
        ([], [_marker(1, COMMIT)], [True]),
        ([], [_data(0), _marker(1, COMMIT), _marker(2, COMMIT)], [False, False, True]),
        # Aborted data goes; its marker only once none of it is left.
        ([(1, 0, 2, 0)], [_data(0), _data(1), _marker(2, ABORT)], [True, True, False]),
        ([(1, 0, 2, 0)], [_marker(2, ABORT)], [True]),
        # Each producer has its own.
        (
            [(2, 1, 3, 0)],
            [_data(0), _data(1, 2), _marker(2, COMMIT), _marker(3, ABORT, 2)],
            [False, True, False, False],
        ),
        # One aborted transaction behind another, and a committed one.
        (
            [(1, 0, 1, 0), (1, 2, 3, 2)],
            [_data(0), _marker(1, ABORT), _data(2), _marker(3, ABORT), _data(4)],
            [True, False, True, False, False],
        ),
        # A record outside transactions has no owner. An unknown marker stays, an empty one goes.
        ([(1, 0, 9, 0)], [_data(0, transactional=False)], [False]),
        ([], [_marker(0, OTHER)], [False]),
        ([], [without_records(parse_header(_marker(0, COMMIT)))], [True]),
    ],
    ids=[
        "committed", "marker only", "two markers", "aborted", "abort only", "two producers",
        "one after the other", "plain", "unknown", "empty",
    ],
)  # fmt: skip
def test_transactional_batches_are_dropped_as_kafka_drops_them(
    aborted: list[tuple[int, int, int, int]], batches: list[bytes], expected: list[bool]
) -> None:
    transactions = CleanedTransactions()
    for _ in range(2):  # the same transaction is listed in each segment that it spans
        transactions.add_aborted(AbortedTxn(*item) for item in aborted)
    assert _may_drop(transactions, batches) == expected
    # Only producers with remaining data are reported: their markers stay.
    kept = [header.producer_id for header in map(parse_header, batches) if not header.is_control]
    assert {item.producer_id for item in transactions.take_kept()} <= set(kept)
    assert transactions.take_kept() == []


# ------------------------------------------------------------------ filter of a batch


def _filter(
    last: Mapping[bytes, int],
    *,
    now_ms: int = T0,
    latest: int = 10**6,
    last_batches: Mapping[int, LastBatch] | None = None,
    aborted: Iterable[AbortedTxn] = (),
) -> BatchFilter:
    offsets = OffsetMap(100 * SLOT_BYTES, 0.9)
    # The map takes keys in the order of the log, so the largest offset of a key wins.
    for key, offset in sorted(last.items(), key=lambda item: item[1]):
        offsets.put(key, offset)
    offsets.latest_offset = latest
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    return BatchFilter(
        offsets,
        transactions,
        last_batches or {},
        PACE,
        now_ms=now_ms,
        delete_retention_ms=DAY_MS,
    )


def _left(keep: BatchFilter, batch: bytes) -> bytes | None:
    return keep.filtered(parse_header(batch), batch)


def _offsets(batch: bytes | None) -> list[int] | None:
    return (
        None if batch is None else [decode_record.offset for decode_record in decode_records(batch)]
    )


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_the_last_record_of_each_key_stays(codec: int) -> None:
    keys = [b"a", b"b", b"a", b"c"]
    batch = build_batch([Record(key, b"v", (), T0) for key in keys], base_offset=100, codec=codec)
    assert _offsets(_left(_filter({b"a": 102, b"b": 101, b"c": 103}), batch)) == [101, 102, 103]
    # Two of the keys occur again later in the log: only b, whose last offset is in this batch,
    # stays.
    assert _offsets(_left(_filter({b"a": 500, b"b": 101, b"c": 600}), batch)) == [101]
    assert _left(_filter({b"a": 500, b"b": 501, b"c": 600}), batch) is None
    # The map ends before this batch, so nothing is known of any of its records, and the batch is
    # not rewritten.
    assert _left(_filter({b"a": 500}, latest=99), batch) is batch
    assert _offsets(_left(_filter({b"a": 500, b"b": 501}, latest=101), batch)) == [102, 103]


def test_records_whose_key_is_not_in_the_map_stay() -> None:
    """The key occurs again later, in a batch that cannot be decoded."""
    batch = build_batch([Record(b"a", b"v", (), T0)], base_offset=5)
    assert _left(_filter({}), batch) is batch


def test_records_without_a_key_are_removed_and_counted() -> None:
    keep = _filter({b"a": 1})
    batch = build_batch([Record(None, b"v", (), T0), Record(b"a", b"v", (), T0)])
    assert _offsets(_left(keep, batch)) == [1]
    assert keep.keyless == 1


def test_a_tombstone_stays_until_its_delete_horizon() -> None:
    """KIP-534: delete.retention.ms counts from the first cleaning that sees the tombstone."""
    batch = build_batch([Record(b"a", None, (), T0 - 1), Record(b"b", b"v", (), T0 - 1)])
    last = {b"a": 0, b"b": 1}
    first = _left(_filter(last, now_ms=T0), batch)
    assert first is not None
    assert _offsets(first) == [0, 1]
    # The first cleaning stores the horizon in the base timestamp; the records' own timestamps do
    # not change.
    assert delete_horizon_ms(parse_header(first)) == T0 + DAY_MS
    assert [decode_record.timestamp_ms for decode_record in decode_records(first)] == [T0 - 1] * 2
    # The last millisecond before the horizon, then the horizon itself.
    assert _left(_filter(last, now_ms=T0 + DAY_MS - 1), first) is first
    assert _offsets(_left(_filter(last, now_ms=T0 + DAY_MS), first)) == [1]
    # With a later record of b nothing of the batch remains.
    assert _left(_filter({b"a": 0, b"b": 9}, now_ms=T0 + DAY_MS), first) is None


def test_the_last_batch_of_a_producer_stays_without_records() -> None:
    batch = build_batch(
        [Record(b"a", b"v", (), T0)], producer_id=5, producer_epoch=1, base_sequence=8
    )
    overwritten = {b"a": 50}
    # An empty batch preserves the sequence number from which the producer state is rebuilt.
    empty = without_records(parse_header(batch))
    assert _left(_filter(overwritten, last_batches={5: LastBatch(0, 1)}), batch) == empty
    assert _left(_filter(overwritten, last_batches={5: LastBatch(7, 1)}), batch) is None
    assert _left(_filter(overwritten), batch) is None  # the producer was forgotten
    assert _left(_filter(overwritten, last_batches={5: LastBatch(0, 1)}), empty) == empty


def test_an_unreadable_batch_stays_unchanged() -> None:
    good = build_batch([Record(b"a", b"v", (), T0)], codec=1)
    poison = good[:-8] + bytes(8)
    keep = _filter({b"a": 50})
    assert _left(keep, poison) is poison
    assert _left(keep, good) is None
    assert keep.unreadable == 1


def test_a_batch_above_the_decompression_limit_stays_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_filter, "UNPACKED_BYTES_MAX", 1000)
    monkeypatch.setattr(batch_filter, "RECORDS_MAX", 3)
    large = build_batch([Record(b"a", bytes(100_000), (), T0)], codec=4)
    many = build_batch([Record(b"a", b"", (), T0)] * 4)
    keep = _filter({b"a": 50})
    assert (_left(keep, large), _left(keep, many)) == (large, many)
    assert keep.unreadable == 2


def test_aborted_data_is_removed_at_once_and_its_marker_later() -> None:
    aborted = [AbortedTxn(1, 0, 1, 0)]
    data, marker = _data(0), _marker(1, ABORT)
    keep = _filter({}, aborted=aborted, last_batches={1: LastBatch(0, 0)})
    assert _left(keep, data) == without_records(parse_header(data))
    assert _left(keep, marker) is marker  # some of the data was still there this time
    # The next cleaning finds no data of the transaction and sets the marker's delete horizon.
    keep = _filter({}, aborted=aborted)
    horizon = _left(keep, marker)
    assert horizon is not None
    assert delete_horizon_ms(parse_header(horizon)) == T0 + DAY_MS
    assert _left(_filter({}, now_ms=T0 + DAY_MS - 1), horizon) is horizon
    assert _left(_filter({}, now_ms=T0 + DAY_MS), horizon) is None
    # The marker is the producer's last batch (sequence -1): it stays, without its record.
    fenced = _filter({}, now_ms=T0 + DAY_MS, last_batches={1: LastBatch(-1, 0)})
    assert _left(fenced, horizon) == without_records(parse_header(horizon))
    assert _left(fenced, without_records(parse_header(horizon))) is not None


# ------------------------------------------------------------------ removed offsets


def _plain(offset: int, count: int = 1, *, epoch: int = 0, producer_id: int = -1) -> bytes:
    return build_batch(
        [Record(b"k", b"v", (), T0)] * count,
        base_offset=offset,
        leader_epoch=epoch,
        producer_id=producer_id,
    )


def _rewritten(steps: list[tuple[bytes, bool]]) -> list[tuple[int, int, int, int]]:
    """Return base offset, last offset, epoch and count of each batch that is written."""
    batches, written = RewrittenBatches(), list[bytes]()
    for batch, stays in steps:
        header = parse_header(batch)
        written += batches.keep(header, batch) if stays else batches.drop(header)
    written += batches.finish()
    headers = [parse_header(item) for item in written]
    # Every offset belongs to exactly one batch, so that followers find no gap.
    for before, after in pairwise(headers):
        assert after.base_offset == before.next_offset
    return [(h.base_offset, h.last_offset, h.partition_leader_epoch, h.count) for h in headers]


def test_removed_offsets_are_covered_by_the_preceding_batch() -> None:
    steps = [(_plain(0, 2), True), (_plain(2, 3), False), (_plain(5), False), (_plain(6), True)]
    assert _rewritten(steps) == [(0, 5, 0, 2), (6, 6, 0, 1)]


def test_removed_offsets_at_the_start_are_one_empty_batch() -> None:
    steps = [(_plain(0), False), (_plain(1, 4), False), (_plain(5), True)]
    assert _rewritten(steps) == [(0, 4, 0, 0), (5, 5, 0, 1)]
    assert _rewritten([(_plain(0), False), (_plain(1), False)]) == [(0, 1, 0, 0)]


def test_a_batch_with_a_producer_id_keeps_its_last_offset() -> None:
    """Its last offset determines the producer's last sequence number."""
    steps = [(_plain(0, producer_id=4), True), (_plain(1), False), (_plain(2), False)]
    assert _rewritten(steps) == [(0, 0, 0, 1), (1, 2, 0, 0)]


def test_no_batch_covers_offsets_of_another_leader_epoch() -> None:
    steps = [
        (_plain(0), True),
        (_plain(1), False),
        (_plain(2, epoch=1), False),
        (_plain(3, epoch=1), False),
        (_plain(4, epoch=2), False),
        (_plain(5, epoch=2), True),
    ]
    assert _rewritten(steps) == [(0, 1, 0, 1), (2, 3, 1, 0), (4, 4, 2, 0), (5, 5, 2, 1)]


def test_no_batch_covers_more_offsets_than_its_delta_can_express() -> None:
    # lastOffsetDelta is an INT32: a batch at 0 ends at 2^31 - 1 at most.
    far = 2**31
    steps = [(_plain(0), True), (_plain(far - 1), False), (_plain(far), False)]
    assert [item[:2] for item in _rewritten([*steps[:2]])] == [(0, far - 1)]
    batches = RewrittenBatches()
    written = [*batches.keep(parse_header(steps[0][0]), steps[0][0])]
    for batch, _ in steps[1:]:
        written += batches.drop(parse_header(batch))
    written += batches.finish()
    assert [parse_header(item).last_offset for item in written] == [far - 1, far]


# ------------------------------------------------------------------ choice of logs and segments


def _infos(*ends: int, **fields: Any) -> list[SegmentInfo]:
    """Return closed segments of 100 bytes that end at ``ends``, and an empty active one."""
    infos, base = [], 0
    for end in ends:
        infos.append(
            SegmentInfo(
                base_offset=base,
                next_base_offset=end,
                size_bytes=100,
                largest_timestamp_ms=T0 + end,
                modified_ms=T0,
                is_active=False,
                first_timestamp_ms=T0 + base + 1,
                **fields,
            )
        )
        base = end
    active = replace(infos[-1], base_offset=base, next_base_offset=base, is_active=True)
    return [*infos, replace(active, size_bytes=0)]


COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}))


def _dirtiness(
    config: LogConfig = COMPACT,
    *,
    first_dirty: int | None = None,
    stable: int = 30,
    now_ms: int = T0,
    log_start: int = 0,
) -> Dirtiness:
    return dirtiness(
        _infos(10, 20, 30),
        LogBounds(log_start, log_start, 30, 30, 30),
        config,
        first_dirty=first_dirty,
        last_stable_offset=stable,
        now_ms=now_ms,
    )


@pytest.mark.parametrize(
    ("given", "first_dirty", "first_uncleanable", "clean", "cleanable"),
    [
        ({}, 0, 30, 0, 300),
        ({"first_dirty": 10}, 10, 30, 100, 200),
        ({"first_dirty": 15}, 15, 30, 100, 200),
        ({"first_dirty": 30}, 30, 30, 300, 0),
        # The recorded offset does not fit the log any more.
        ({"first_dirty": 31}, 0, 30, 0, 300),
        ({"first_dirty": 5, "log_start": 12}, 12, 30, 100, 200),
        # Nothing that is not stable, and whole segments only.
        ({"stable": 29}, 0, 20, 0, 200),
        ({"stable": 9}, 0, 0, 0, 0),
        ({"stable": 9, "first_dirty": 10}, 10, 10, 100, 0),
        # Nothing that is too young.
        ({"config": replace(COMPACT, min_compaction_lag_ms=5), "now_ms": T0 + 25}, 0, 20, 0, 200),
        ({"config": replace(COMPACT, min_compaction_lag_ms=5), "now_ms": T0 + 35}, 0, 30, 0, 300),
    ],
    ids=str,
)
def test_the_cleanable_range_is_stable_old_enough_and_not_yet_clean(
    given: dict[str, Any], first_dirty: int, first_uncleanable: int, clean: int, cleanable: int
) -> None:
    found = _dirtiness(**given)
    assert (found.first_dirty, found.first_uncleanable) == (first_dirty, first_uncleanable)
    assert (found.clean_bytes, found.cleanable_bytes) == (clean, cleanable)


def test_a_log_is_due_when_enough_of_it_is_dirty_or_a_record_has_waited_too_long() -> None:
    # 200 of 300 bytes are dirty, then 100 of 300. The limit is half.
    half = replace(COMPACT, min_cleanable_dirty_ratio=0.5)
    assert _dirtiness(half, first_dirty=10).is_due
    assert not _dirtiness(half, first_dirty=20).is_due
    assert not _dirtiness(replace(half, min_cleanable_dirty_ratio=1.0)).is_due
    # The first dirty record of the segment from offset 20 is dated T0 + 21, so the lag of 100 ms
    # ends at T0 + 121.
    hurry = replace(half, max_compaction_lag_ms=100)
    assert not _dirtiness(hurry, first_dirty=20, now_ms=T0 + 121).is_due
    late = _dirtiness(hurry, first_dirty=20, now_ms=T0 + 122)
    assert (late.is_due, late.overdue_ms) == (True, 1)
    # Without a dirty segment nothing can be overdue.
    assert not _dirtiness(hurry, first_dirty=30, now_ms=T0 + 10_000).is_due


@pytest.mark.parametrize(
    ("config", "log_bytes", "index_bytes", "expected"),
    [
        (LogConfig(), 100, 8, True),
        (LogConfig(segment_bytes=200), 100, 8, True),
        (LogConfig(segment_bytes=200), 101, 8, False),
        (LogConfig(segment_index_bytes=16), 100, 8, True),
        (LogConfig(segment_index_bytes=16), 100, 9, False),
    ],
    ids=["small", "just fits", "too large", "index fits", "index too large"],
)
def test_segments_are_merged_within_the_segment_and_index_limits(
    config: LogConfig, log_bytes: int, index_bytes: int, expected: bool
) -> None:
    first, second, *_ = _infos(10, 20)
    written = IndexedBytes(log_bytes, index_bytes)
    assert fits_into_group([first], written, second, 8, config) is expected


def test_merged_segments_stay_within_relative_offsets_and_the_group_limit() -> None:
    # Index entries have 32-bit offsets relative to the base: 2^31 is the last end that fits.
    first, *others = _infos(10, 2**31, 2**31 + 1)
    written = IndexedBytes(0, 0)
    assert fits_into_group([first], written, others[0], 0, LogConfig())
    assert not fits_into_group([first], written, others[1], 0, LogConfig())
    many = [first] * candidate_selection.GROUP_SEGMENTS_MAX
    assert not fits_into_group(many, written, others[0], 0, LogConfig())
