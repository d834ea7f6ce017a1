"""Producers and transactions of a log: its files agree with its batches after any history."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.conftest import T0, LogBench
from tidemark.logfiles.producer_snapshot import decode_snapshot
from tidemark.logfiles.transaction_index import AbortedTxn, decode_aborted
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker
from tidemark_broker.log import (
    InvalidRecords,
    LogConfig,
    OffsetOutOfRange,
    PartitionLog,
    ReadResult,
    appending,
    errors,
    flushing,
    producer_snapshots,
    reading,
    retention,
    start_offsets,
    truncation,
)
from tidemark_broker.log.batch_walk import walk_produced
from tidemark_broker.log.producer_states import ActiveProducer


def produce(
    log: PartitionLog, producer: int, sequence: int, count: int = 1, *, epoch: int = 0,
    transactional: bool = False,
) -> int:  # fmt: skip
    """Append one batch of the producer. Return the base offset in the answer."""
    batch = build_batch(
        [Record(b"k", bytes(20), (), T0 + log.next_offset)] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    guard = appending.begin_verification(log, batch, T0, supports_epoch_bump=False)
    return appending.append_as_leader(
        log, batch, leader_epoch=0, now_ms=T0, guard=guard
    ).base_offset


def finish(log: PartitionLog, producer: int, *, commit: bool, epoch: int = 0) -> int:
    return appending.append_marker(
        log,
        EndMarker(commit, 1),
        producer_id=producer,
        producer_epoch=epoch,
        transaction_version=1,
        leader_epoch=0,
        now_ms=T0,
    ).base_offset


def aborted_of(log: PartitionLog) -> list[AbortedTxn]:
    return reading.aborted_transactions(log, log.local_log_start_offset, log.next_offset)


def known(log: PartitionLog) -> list[ActiveProducer]:
    return sorted(log.active_producers())


def test_a_marker_without_a_producer_is_rejected(bench: LogBench) -> None:
    log = bench.create()
    with pytest.raises(InvalidRecords):
        finish(log, -1, commit=True)
    assert log.next_offset == 0


def test_a_duplicate_returns_its_offset_and_is_not_appended(bench: LogBench) -> None:
    log = bench.create()
    assert [produce(log, 1, 0, 2), produce(log, 1, 2)] == [0, 2]
    assert produce(log, 1, 0, 2) == 0
    assert log.next_offset == 3
    with pytest.raises(errors.OutOfOrderSequence):
        produce(log, 1, 9)
    assert log.next_offset == 3
    assert bench.check(log) == [0, 2]


def test_a_failed_write_does_not_change_the_producer_state(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    produce(log, 1, 0)

    def refuse(*_: object) -> None:
        raise OSError(28, "no room")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwritev", refuse)
        with pytest.raises(errors.StorageError):
            produce(log, 1, 1)
    # The retry of the failed batch is neither a duplicate nor a gap.
    assert produce(log, 1, 1) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, "sequence number"),
        ({"is_transactional": True}, "need a producer id"),
        (
            {"producer_id": 1, "producer_epoch": 0, "is_control": True, "is_transactional": True},
            "control records",
        ),
    ],
    ids=["sequence", "transactional", "control"],
)
def test_invalid_producer_fields_are_rejected(
    bench: LogBench, fields: dict[str, int], message: str
) -> None:
    batch = build_batch([Record(b"k", b"v", (), T0)], **fields)  # type: ignore[arg-type]
    with pytest.raises(InvalidRecords, match=message):
        appending.append_as_leader(bench.create(), batch, leader_epoch=0, now_ms=T0)


def test_each_roll_writes_a_snapshot_of_its_offset(bench: LogBench) -> None:
    log = bench.create()
    for sequence in range(30):
        produce(log, 1, sequence)
    flushing.flush(log)
    bases = [segment.base_offset for segment in log.segment_infos()][1:]
    assert len(bases) > 1
    for base in bases:
        [entry] = decode_snapshot((bench.directory / f"{base:020d}.snapshot").read_bytes())
        assert (entry.last_sequence, entry.last_offset) == (base - 1, base - 1)


def test_the_last_stable_offset_stops_at_an_open_transaction(bench: LogBench) -> None:
    log = bench.create()
    bench.fill(log, [2])
    produce(log, 1, 0, transactional=True)
    bench.fill(log, [2])
    log.advance_high_watermark(5)
    assert (log.last_stable_offset, log.high_watermark) == (2, 5)
    finish(log, 1, commit=True)
    # The marker is at offset 5, which is not committed yet.
    assert log.last_stable_offset == 2
    log.advance_high_watermark(6)
    assert log.last_stable_offset == 6


def test_a_log_start_within_an_open_transaction_is_stable(bench: LogBench) -> None:
    log = bench.create()
    produce(log, 1, 0, 3, transactional=True)
    log.advance_high_watermark(3)
    start_offsets.raise_log_start(log, 2)
    assert log.last_stable_offset == 2


def test_aborted_transactions_are_found_across_segments(bench: LogBench) -> None:
    log = bench.create()
    produce(log, 1, 0, transactional=True)
    bench.fill(log, [1] * 20)
    produce(log, 2, 0, transactional=True)
    finish(log, 2, commit=False)
    bench.fill(log, [1] * 20)
    finish(log, 1, commit=False)
    assert len(log.segment_infos()) > 2
    # Producer 2 aborts within the transaction of producer 1. Entries are in the order of their
    # markers.
    first, second = AbortedTxn(2, 21, 22, 0), AbortedTxn(1, 0, 43, 44)
    # From memory first, then from the .txnindex files that the flush writes.
    for flushed in (False, True):
        if flushed:
            flushing.flush(log)
        assert aborted_of(log) == [first, second]
        # A range gets the transactions that overlap it.
        assert reading.aborted_transactions(log, 5, 20) == [second]
        assert reading.aborted_transactions(log, 23, 44) == [second]
        assert reading.aborted_transactions(log, 21, 22) == [first, second]
        assert (reading.aborted_count(log, 0), reading.aborted_count(log, 43)) == (2, 1)
    files = sorted(bench.directory.glob("*.txnindex"))
    assert [list(decode_aborted(path.read_bytes())) for path in files] == [[first], [second]]


def test_retention_deletes_transaction_indexes_with_their_segments(bench: LogBench) -> None:
    log = bench.create()
    produce(log, 1, 0, transactional=True)
    finish(log, 1, commit=False)
    bench.fill(log, [1] * 20)
    flushing.flush(log)
    log.advance_high_watermark(log.next_offset)
    start_offsets.raise_log_start(log, 15)
    retention.apply_retention(log, T0, tiered=None)
    assert not list(bench.directory.glob("*.txnindex"))
    assert aborted_of(log) == []


@pytest.mark.parametrize("is_cached", [True, False])
def test_records_of_a_segment_that_is_removed_meanwhile_are_not_returned(
    bench: LogBench, is_cached: bool
) -> None:
    log = bench.create()
    produce(log, 1, 0, transactional=True)
    finish(log, 1, commit=False)
    bench.fill(log, [1] * 20)
    flushing.flush(log)
    log.advance_high_watermark(log.next_offset)
    function = reading.read_cached if is_cached else reading.read

    def read() -> ReadResult:
        end = log.last_stable_offset
        found = function(log, 0, max_bytes=1 << 20, up_to_offset=end, min_one=True)
        # Another thread deletes the segment, and the entry of its aborted transaction.
        start_offsets.raise_log_start(log, 15)
        retention.apply_retention(log, T0, tiered=None)
        return found

    with pytest.raises(OffsetOutOfRange):
        reading.with_aborted(log, 0, read)


def test_a_log_that_restarts_beyond_the_tier_uses_the_tiers_producers(bench: LogBench) -> None:
    log = bench.create()
    for sequence in range(3):
        produce(log, 1, sequence)
    # This snapshot stands for the one in the tier. Producer 2 is not in it.
    snapshot = log.producers.snapshot()
    produce(log, 2, 0)
    truncation.truncate_fully_and_start_at(
        log, 100, log_start_offset=0, epochs=(), producer_snapshot=snapshot
    )
    assert [item.producer_id for item in known(log)] == [1]
    bench.crash(log)
    reopened = bench.open(log_start_offset=0, recovery_point=100)
    assert [item.producer_id for item in known(reopened)] == [1]
    # The sequence continues where the tier's snapshot ended.
    assert produce(reopened, 1, 3) == 100


def test_a_crash_during_a_restart_from_the_tier_keeps_the_producers(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this replica leads later, it must still detect duplicates."""

    class Died(BaseException):
        pass

    def dies(*_: object, **__: object) -> None:
        raise Died

    log = bench.create()
    produce(log, 1, 0)
    snapshot = log.producers.snapshot()
    # The process dies after the files were replaced and before the bounds are set.
    with monkeypatch.context() as patch:
        patch.setattr("tidemark_broker.log.truncation.LogBounds.empty", dies)
        with pytest.raises(Died):
            truncation.truncate_fully_and_start_at(
                log, 100, log_start_offset=0, epochs=(), producer_snapshot=snapshot
            )
    bench.crash(log)
    log = bench.open(log_start_offset=0)
    assert log.next_offset == 100
    assert [item.producer_id for item in known(log)] == [1]


def test_a_torn_snapshot_falls_back_to_the_previous_one(bench: LogBench) -> None:
    log = bench.create()
    for sequence in range(30):
        produce(log, 1, sequence)
    flushing.close(log)
    paths = sorted(bench.directory.glob("*.snapshot"))
    # The last two snapshots are torn. Recovery reads the batches since the third last.
    for path in paths[-2:]:
        path.write_bytes(path.read_bytes()[:9])
    reopened = bench.open(recovery_point=30, clean_shutdown=True)
    assert reopened.active_producers()[0].last_sequence == 29
    assert produce(reopened, 1, 27) == 27  # all five last batches are known, not only the last one


class ProducerModel:
    """Random producers of one log, some of them transactional."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.next_sequence: dict[int, int] = {}
        self.open: set[int] = set()

    def step(self, log: PartitionLog) -> None:
        producer = self.rng.randrange(6)
        transactional = producer % 2 == 1
        if producer in self.open and self.rng.random() < 0.3:
            finish(log, producer, commit=self.rng.random() < 0.5)
            self.open.discard(producer)
            return
        sequence, count = self.next_sequence.get(producer, 0), self.rng.randrange(1, 4)
        produce(log, producer, sequence, count, transactional=transactional)
        self.next_sequence[producer] = sequence + count
        if transactional:
            self.open.add(producer)

    def after_truncation(self, log: PartitionLog) -> None:
        """Take the producers from the log, which may have lost their last batches."""
        self.next_sequence = {
            active_producer.producer_id: active_producer.last_sequence + 1
            for active_producer in log.active_producers()
        }
        self.open = {
            active_producer.producer_id
            for active_producer in log.active_producers()
            if active_producer.txn_first_offset >= 0
        }


def replayed(bench: LogBench, log: PartitionLog, directory: Path) -> PartitionLog:
    """Return a follower's log of the same batches, from the first one on."""
    other = LogBench(directory, config=bench.config)
    made = other.create()
    appending.append_as_follower(made, bench.read_all(log), now_ms=T0)
    made.advance_high_watermark(log.high_watermark)
    bench.opened += other.opened
    return made


@pytest.mark.parametrize("seed", range(12))
def test_producer_state_agrees_with_the_batches_after_any_history(
    bench: LogBench, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    log, model, flushed = bench.create(), ProducerModel(rng), 0
    for number in range(8):
        for _ in range(rng.randrange(1, 25)):
            model.step(log)
        # A random part is committed, and one of five events happens.
        log.advance_high_watermark(rng.randrange(log.next_offset + 1))
        action = rng.choice(["flush", "crash", "close", "cut", "roll"])
        if action == "flush":
            flushed = flushing.flush(log)
        elif action == "roll":
            appending.roll(log, T0)
        elif action == "cut":
            truncation.truncate_to(log, rng.randrange(log.high_watermark, log.next_offset + 1))
            flushed = min(flushed, log.recovery_point)
        else:
            committed = log.high_watermark
            flushing.close(log) if action == "close" else bench.crash(log)
            flushed = log.next_offset if action == "close" else flushed
            log = bench.open(
                recovery_point=flushed,
                clean_shutdown=action == "close",
                high_watermark=committed,
            )
        model.after_truncation(log)
        # A follower builds its state from the batches alone. Both must agree.
        same = replayed(bench, log, tmp_path / f"replayed-{number}" / "t-0")
        assert known(log) == known(same)
        assert aborted_of(log) == aborted_of(same)
        assert log.last_stable_offset == same.last_stable_offset
        bench.check(log)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-3], lambda data: data[:-34] + b"\x07" + data[-33:]],
    ids=["torn", "another version"],
)
def test_a_damaged_transaction_index_is_rebuilt_from_the_batches(
    bench: LogBench, damage: Callable[[bytes], bytes]
) -> None:
    log = bench.create()
    for producer in range(4):
        produce(log, producer, 0, transactional=True)
        bench.fill(log, [1] * 10)
        finish(log, producer, commit=False)
    flushing.close(log)
    expected = aborted_of(log)
    assert len(expected) == 4
    path = sorted(bench.directory.glob("*.txnindex"))[1]
    path.write_bytes(damage(path.read_bytes()))
    # The first opening rebuilds the file, the second one reads it.
    for _ in range(2):
        log = bench.open(recovery_point=100, clean_shutdown=True, high_watermark=100)
        assert aborted_of(log) == expected
        flushing.close(log)


@pytest.mark.parametrize("damaged", [1, 2, 99])
def test_a_damaged_snapshot_is_replayed_for_a_copy(bench: LogBench, damaged: int) -> None:
    # That of the last segment, of the one before it, too, or all. Some transactions cross segments.
    log = bench.create()
    for number in range(12):
        produce(log, number, 0, transactional=True)
        bench.fill(log, [1] * 10)
        if number % 3:
            finish(log, number, commit=bool(number % 2))
    flushing.flush(log)
    *closed, _ = log.segment_infos()
    expected = flushing.segment_files(log, closed[-1].base_offset).producer_snapshot
    assert len(decode_snapshot(expected)) > 9
    for path in sorted(bench.directory.glob("*.snapshot"))[-damaged:]:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    for _ in range(2):
        found = flushing.segment_files(log, closed[-1].base_offset).producer_snapshot
        assert sorted(decode_snapshot(found)) == sorted(decode_snapshot(expected))
        # It is repaired, for later copies, and for the next start.
        assert path_of(bench, closed[-1].next_base_offset).read_bytes() == found
    bench.check(log)


def test_the_first_segment_of_a_log_needs_no_snapshot_before_it(
    bench: LogBench, caplog: pytest.LogCaptureFixture
) -> None:
    log = bench.create()
    produce(log, 1, 0)
    appending.roll(log, T0)
    assert not flushing.segment_files(log, 0).open_before
    assert not caplog.records
    assert not path_of(bench, 0).exists()


def path_of(bench: LogBench, offset: int) -> Path:
    return bench.directory / f"{offset:020d}.snapshot"


def test_the_last_stable_offset_is_constant_while_producers_are_rebuilt(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetches read the last stable offset without the lock, also during a truncation."""
    log = bench.create()
    bench.fill(log, [2])
    produce(log, 1, 0, transactional=True)
    bench.fill(log, [1] * 60)
    log.advance_high_watermark(50)
    seen = []

    def spied(*args: Any, **options: Any) -> Any:
        for item in walk_produced(*args, **options):
            seen.append(log.last_stable_offset)
            yield item

    monkeypatch.setattr(producer_snapshots, "walk_produced", spied)
    flushing.flush(log)
    # Without snapshots the truncation must replay every batch.
    for path in bench.directory.glob("*.snapshot"):
        path.unlink()
    truncation.truncate_to(log, 55)
    assert set(seen) == {2}
    assert log.last_stable_offset == 2


@pytest.mark.parametrize("roll", [False, True])
def test_a_clean_shutdown_preserves_duplicate_detection(bench: LogBench, roll: bool) -> None:
    log = bench.create()
    # Producer 1 stays in its epoch, producer 2 begins a new one with each batch.
    for sequence in range(40):
        produce(log, 1, sequence)
        produce(log, 2, 0, epoch=sequence)
    produce(log, 3, 0, transactional=True)
    finish(log, 3, commit=True, epoch=1)
    if roll:
        appending.roll(log, T0)
    end = log.next_offset
    flushing.close(log)
    log = bench.open(recovery_point=end, clean_shutdown=True, high_watermark=end)
    # The last five batches are duplicates, the sixth last is out of order.
    for sequence in range(35, 40):
        assert produce(log, 1, sequence) == 2 * sequence
    with pytest.raises(errors.OutOfOrderSequence):
        produce(log, 1, 34)
    # Only the newest epoch of producer 2 is known, and the marker has fenced epoch 0 of producer
    # 3.
    assert produce(log, 2, 0, epoch=39) == 79
    with pytest.raises(errors.InvalidProducerEpoch):
        produce(log, 2, 0, epoch=38)
    assert log.next_offset == end
    with pytest.raises(errors.InvalidProducerEpoch):
        produce(log, 3, 0, epoch=0)


@pytest.mark.parametrize("clean", [False, True])
def test_retries_of_packed_producers_are_detected(bench: LogBench, clean: bool) -> None:
    """There are more producers than the log keeps as objects. Retries come before and after a
    restart."""
    bench.config = LogConfig(segment_bytes=40_000)
    log, count = bench.create(), 1_000
    for number in range(count):
        assert produce(log, number, 0) == number
    retried = range(0, count, 100)
    assert [produce(log, number, 0) for number in retried] == [*retried]
    flushing.flush(log)
    end = log.next_offset
    if clean:
        flushing.close(log)
    log = bench.open(recovery_point=end if clean else 0, clean_shutdown=clean, high_watermark=end)
    assert [produce(log, number, 0) for number in retried] == [*retried]
    assert log.next_offset == end == count
    assert len(log.producers) == count
