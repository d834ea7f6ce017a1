"""The copy of a segment describes all of its transactions, so that no
reader needs another segment."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.conftest import T0, LogBench
from tests.unit.log.test_producers_of_a_log import finish, produce
from tests.unit.tier.conftest import TierPartition
from tidemark.logfiles.producer_snapshot import decode_snapshot
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import BatchHeader
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.local_segment import LocalSegment
from tidemark_broker.log import PartitionLog, SegmentInfo, appending, flushing, producer_snapshots
from tidemark_broker.log.batch_walk import BatchAt, walk_produced
from tidemark_broker.log.producer_snapshots import TransactionEnds
from tidemark_broker.remote_log.copier import prepare


def uploaded(log: PartitionLog, segment: SegmentInfo, ends: TransactionEnds) -> Aux:
    prepared = prepare(log, segment, ends)
    entry = TierPartition().segment(
        segment.base_offset,
        segment.next_base_offset - 1,
        epochs=prepared.leader_epochs,
        size_bytes=segment.size_bytes,
        max_timestamp_ms=segment.largest_timestamp_ms,
    )
    data = prepared.data
    local = LocalSegment(entry, data.log, data.aux, 0, data.open_before)
    assert list(local.log([data.log.read_bytes()]))
    return local.aux()


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the base offset of each batch that is read behind a segment."""
    passed: list[int] = []

    def counted(*arguments: Any) -> Iterator[tuple[BatchAt, BatchHeader]]:
        for item in walk_produced(*arguments):
            passed.append(item[0].base_offset)
            yield item

    monkeypatch.setattr(producer_snapshots, "walk_produced", counted)
    return passed


def test_a_copy_describes_producers_and_transactions_that_end_after_it(tmp_path: Path) -> None:
    bench = LogBench(tmp_path / "t-0")
    log = bench.create()
    produce(log, 1, 0, transactional=True)
    produce(log, 2, 0, transactional=True)
    # Both transactions begin in the first segment. One commits in the second, the other aborts in
    # the third.
    appending.roll(log, T0)
    produce(log, 2, 1, transactional=True)
    finish(log, 2, commit=True)
    appending.roll(log, T0)
    finish(log, 1, commit=False)
    appending.roll(log, T0)
    bench.fill(log, [1])
    first, second, third, _ = log.segment_infos()
    aborted_transaction = AbortedTxn(1, 0, 4, 5)
    # The abort at offset 4 concerns records of the first segment only, but its range 0 to 4
    # overlaps all three.
    # Outcomes that one copy has read are known to the next ones.
    ends = TransactionEnds()
    found = [uploaded(log, item, ends) for item in (first, second, third)]
    assert [item.aborted.transactions for item in found] == [(aborted_transaction,)] * 3
    assert {item.aborted.first_open_offset for item in found} == {None}
    # Each copy has the producer state at its own end.
    states = [decode_snapshot(item.producer_snapshot) for item in found]
    assert [entry.producer_id for entry in states[0]] == [1, 2]
    assert [entry.current_txn_first_offset for entry in states[0]] == [0, 1]
    assert [entry.current_txn_first_offset for entry in states[2]] == [-1, -1]
    flushing.close(log)


def test_a_long_transaction_is_read_to_its_end_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each segment has one batch of the transaction.
    log = LogBench(tmp_path / "t-0").create()
    for sequence in range(20):
        produce(log, 1, sequence, transactional=True)
        appending.roll(log, T0)
    finish(log, 1, commit=False)
    appending.roll(log, T0)
    flushing.flush(log)
    passed = counted_reads(monkeypatch)
    # The first copy reads up to the marker, and the others know its offset.
    ends = TransactionEnds()
    *closed, _ = log.segment_infos()
    for segment in closed:
        assert uploaded(log, segment, ends).aborted.transactions == (AbortedTxn(1, 0, 20, 21),)
    assert len(passed) == 20
    flushing.close(log)


def test_overlapping_transactions_are_read_to_their_ends_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each segment begins a transaction that aborts ten segments later.
    log = LogBench(tmp_path / "t-0").create()
    expected = []
    for number in range(40):
        produce(log, number, 0, transactional=True)
        if number >= 10:
            marker = finish(log, number - 10, commit=False)
            expected.append((number - 10, marker))
        appending.roll(log, T0)
    expected += [(number, finish(log, number, commit=False)) for number in range(30, 40)]
    flushing.flush(log)
    # Count the batches that copies read behind their segments.
    reads = counted_reads(monkeypatch)
    # Copy all segments in order.
    ends, found = TransactionEnds(), set()
    *closed, _ = log.segment_infos()
    for segment in closed:
        aborted = uploaded(log, segment, ends).aborted.transactions
        assert list(aborted) == sorted(aborted, key=lambda item: item.last_offset)
        # All that overlap the segment, and no others.
        begun = [item for item in aborted if item.first_offset < segment.next_base_offset]
        assert len(begun) == len(aborted)
        assert all(item.last_offset >= segment.base_offset for item in aborted)
        found |= {(item.producer_id, item.last_offset) for item in aborted}
    assert found == set(expected)
    # The rest of the active segment is looked for again.
    assert len(set(reads)) <= len(reads) <= 2 * log.next_offset
    flushing.close(log)


def test_a_flush_does_not_wait_while_ends_of_transactions_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBench(tmp_path / "t-0").create()
    produce(log, 1, 0, transactional=True)
    appending.roll(log, T0)
    finish(log, 1, commit=True)
    # A flush runs to its end while the segment behind is read.
    flushed = []

    def flushing_meanwhile(*arguments: Any) -> Iterator[tuple[BatchAt, BatchHeader]]:
        thread = threading.Thread(target=lambda: flushed.append(flushing.flush(log)))
        thread.start()
        thread.join(30)
        yield from walk_produced(*arguments)

    # The transaction is open at the end of the first segment.
    segment, _ = log.segment_infos()
    files = flushing.segment_files(log, segment.base_offset)
    monkeypatch.setattr(producer_snapshots, "walk_produced", flushing_meanwhile)
    flushing.aborted_behind(log, TransactionEnds(), files, segment.next_base_offset)
    assert flushed == [2]
    flushing.close(log)
