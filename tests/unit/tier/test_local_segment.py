"""A damaged file of a local log does not enter the tier."""

import itertools
import os
import threading
import tracemalloc
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tidemark.logfiles.offset_index import OffsetIndex
from tidemark.logfiles.time_index import TimeEntry, TimeIndex
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import BatchHeader, iter_headers, require_crc, restamp
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker, build_end_marker
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments import local_segment
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux
from tidemark.tier.segments.local_segment import LocalLogDamaged, LocalSegment

PATH = Path("/data/flights-3/00000000000000000010.log")
PRODUCER = 7


def batch(base: int, count: int, epoch: int = 1, **named: Any) -> bytes:
    """Return a batch whose records have their offsets as timestamps."""
    records = [Record(None, b"v", (), base + n) for n in range(count)]
    return build_batch(records, base_offset=base, leader_epoch=epoch, **named)


def data(base: int, count: int, producer_id: int = PRODUCER) -> bytes:
    return batch(base, count, producer_id=producer_id, producer_epoch=0, is_transactional=True)


def marker(base: int, *, commit: bool, producer_id: int = PRODUCER) -> bytes:
    built = bytearray(
        build_end_marker(
            EndMarker(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=base
        )
    )
    restamp(built, 0, base, 1)
    return bytes(built)


LOG = batch(10, 3) + batch(13, 1) + batch(14, 6)


def entry_of(place: Any, log: bytes, **named: Any) -> SegmentEntry:
    """Return the entry of a log that starts at offset 10."""
    (*_, (_, last)) = iter_headers(log)
    named.setdefault("max_timestamp_ms", last.last_offset)
    entry: SegmentEntry = place.segment(10, last.last_offset, size_bytes=len(log), **named)
    return entry


def parts_of(log: bytes, size: int) -> list[bytes]:
    return [log[begin : begin + size] for begin in range(0, len(log), size)]


def local(
    entry: SegmentEntry,
    behind: Iterable[AbortedTxn] = (),
    open_before: Mapping[int, int] = MappingProxyType({}),
) -> LocalSegment:
    aux = Aux(
        offset_index=b"another",
        time_index=b"",
        leader_epochs=b"",
        producer_snapshot=b"",
        aborted=AbortedRanges(tuple(behind)),
    )
    return LocalSegment(entry, PATH, aux, 0, open_before)


def copied(entry: SegmentEntry, log: bytes) -> Aux:
    segment = local(entry)
    assert b"".join(segment.log([log])) == log
    return segment.aux()


def restamped(log: bytes, number: int, base_offset: int, epoch: int) -> bytes:
    changed = bytearray(log)
    restamp(changed, [position for position, _ in iter_headers(log)][number], base_offset, epoch)
    return bytes(changed)


@pytest.mark.parametrize("part_bytes", [1, 60, 61, 100, 10_000])
def test_batches_of_a_log_in_parts_are_checked(place: Any, part_bytes: int) -> None:
    entry, parts = entry_of(place, LOG), parts_of(LOG, part_bytes)
    assert list(local(entry).log(parts)) == parts
    # No CRC covers the base offset and the leader epoch of a batch.
    for change, message in (
        (LOG[:-1] + bytes([LOG[-1] ^ 1]), "CRC of the batch at offset 14"),
        (LOG[:-1], "it ends within a batch"),
        (LOG[: -len(batch(14, 6))], "its batches end before offset 14"),
        (restamped(LOG, 0, 0, 1), "begins with offset 0, not with 10"),
        (restamped(LOG, 1, 12, 1), "begins with offset 12, not with 13"),
        (restamped(LOG, 0, 10, 2), "the batch at offset 10 is of leader epoch 2"),
        (restamped(LOG, 2, 14, 0), "the batch at offset 14 is of leader epoch 0"),
    ):
        with pytest.raises(LocalLogDamaged, match=message) as caught:
            list(local(entry).log(parts_of(change, part_bytes)))
        for expected in ("broker 1: ", str(PATH), "RecordDeletion before offset 20"):
            assert expected in str(caught.value)
    # Epochs that ended below the log start are not in the entry.
    early = restamped(LOG, 0, 10, 0)
    assert b"".join(local(entry).log(parts_of(early, part_bytes))) == early


def test_epochs_must_begin_where_the_checkpoint_says(place: Any) -> None:
    log = batch(10, 3) + batch(13, 1, epoch=2) + batch(14, 6, epoch=4)
    copied(entry_of(place, log, epochs=((1, 10), (2, 13), (4, 14))), log)
    for epochs in (((1, 10), (2, 14), (4, 15)), ((1, 10), (4, 13)), ((1, 10), (2, 13))):
        with pytest.raises(LocalLogDamaged, match="leader-epoch-checkpoint says"):
            copied(entry_of(place, log, epochs=epochs), log)


def test_indexes_are_built_from_the_batches(place: Any) -> None:
    aux, base = copied(entry_of(place, LOG), LOG), 10
    index = OffsetIndex.from_bytes(base, aux.offset_index)
    positions = [position for position, _ in iter_headers(LOG)]
    # The first batch of a segment is found without an entry.
    assert [index.entry_for(offset) for offset in (12, 13, 19)] == [
        (base, 0),
        (13, positions[1]),
        (19, positions[2]),
    ]
    times = TimeIndex.from_bytes(base, aux.time_index)
    assert [times.lookup(time_ms) for time_ms in (12, 13, 99)] == [
        TimeEntry(-1, base),
        TimeEntry(13, 13),
        TimeEntry(19, 19),
    ]


def test_indexes_of_a_log_have_a_limited_number_of_entries(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = b"".join(batch(offset, 1) for offset in range(10, 210))
    monkeypatch.setattr(local_segment, "_ENTRIES_MAX", 20)
    aux = copied(entry_of(place, log), log)
    assert 10 <= len(OffsetIndex.from_bytes(10, aux.offset_index)) <= 20


def test_a_wrong_largest_timestamp_of_the_time_index_is_refused(place: Any) -> None:
    with pytest.raises(LocalLogDamaged, match="the largest timestamp is 19, not 18") as caught:
        copied(entry_of(place, LOG, max_timestamp_ms=18), LOG)
    path = PATH.with_suffix(".timeindex")
    for expected in (f"broker 1: {path} is damaged", f"(truncate -s 1 {path}) and restart"):
        assert expected in str(caught.value)
    # Records without timestamps have the time of their append.
    untimed = build_batch([Record(None, b"v", (), -1)], base_offset=10, leader_epoch=1)
    copied(entry_of(place, untimed, max_timestamp_ms=123), untimed)


#: A transaction that is aborted, one that is committed, and another producer's that stays open.
TRANSACTIONS = (
    batch(10, 1)
    + data(11, 3)
    + marker(14, commit=False)
    + data(15, 1)
    + data(16, 1, producer_id=8)
    + marker(17, commit=True)
    + data(18, 1)
    + marker(19, commit=False)
)


@pytest.mark.parametrize("part_bytes", [1, 70, 10_000])
@pytest.mark.parametrize(
    ("open_before", "first", "stable"), [({}, 11, 15), ({9: 2, 7: 5}, 5, 2), ({7: 5, 9: 6}, 5, 6)]
)
def test_aborted_transactions_are_derived_from_the_markers(
    place: Any, part_bytes: int, open_before: dict[int, int], first: int, stable: int
) -> None:
    behind = AbortedTxn(8, 16, 30, 31)
    segment = local(entry_of(place, TRANSACTIONS), [behind], open_before)
    assert list(segment.log(parts_of(TRANSACTIONS, part_bytes)))
    assert segment.aux().aborted.transactions == (
        AbortedTxn(PRODUCER, first, 14, stable),
        AbortedTxn(PRODUCER, 18, 19, stable if open_before else 16),
        behind,
    )


def test_a_transaction_without_records_is_not_aborted_here(place: Any) -> None:
    log = marker(10, commit=False) + marker(11, commit=True) + marker(12, commit=False)
    assert copied(entry_of(place, log), log).aborted.transactions == ()


def test_a_damaged_length_does_not_fill_the_memory(place: Any) -> None:
    log = bytearray(batch(0, 1) + batch(1, 1))
    # The first batch says 16 MiB more than it has, as many as the whole log has.
    log[8] ^= 1
    part, count = bytes(64 * 1024), 100
    entry = place.segment(0, 1, size_bytes=len(log) + len(part) * count)
    parts = itertools.chain((bytes(log),), itertools.repeat(part, count))
    tracemalloc.start()
    try:
        with pytest.raises(LocalLogDamaged, match="batch"):
            for _ in local(entry).log(parts):
                pass
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(part) * count / 10


def test_one_thread_at_a_time_checks_crcs(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = b"".join(batch(number, 1) for number in range(10, 210))
    entry, at_work, together = entry_of(place, log), set[int](), set[int]()

    def recorded(header: BatchHeader, crc: int) -> None:
        at_work.add(threading.get_ident())
        together.add(len(at_work))
        # Gives other threads a turn within the check.
        os.sched_yield()
        require_crc(header, crc)
        at_work.remove(threading.get_ident())

    monkeypatch.setattr(local_segment, "require_crc", recorded)
    with ThreadPoolExecutor(4) as threads:
        checked = threads.map(lambda _: list(local(entry).log([log])), range(4))
        assert list(checked) == [[log]] * 4
    assert together == {1}
