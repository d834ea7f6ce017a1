"""Random histories of a compacted log, truncated and crashed at any step, against a plain model.
The last record of each key always remains. Every remaining record was written with its offset.
Offsets rise without gaps in ownership. The last batch of each producer has its last sequence
number."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidemark.records.batch import iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker
from tidemark.records.decode import decode_records
from tidemark_broker.log import (
    LogConfig,
    PartitionLog,
    appending,
    batch_contents,
    flushing,
    reading,
)
from tidemark_broker.log.compaction import CleanerSettings, CleaningStats, dirtiness_of
from tidemark_broker.log.compaction import clean as clean_log
from tidemark_broker.log.compaction.offset_map import SLOT_BYTES

Bench = Any  # the LogBench of conftest.py
T0 = 1_700_000_000_000
RETENTION_MS = 1000
CONFIG = LogConfig(
    segment_bytes=2500,
    index_interval_bytes=200,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=RETENTION_MS,
)


class KilledInSwap(BaseException):
    """Death of the process: no later statement of the cleaning runs."""


@dataclass
class WrittenRecord:
    key: bytes
    value: bytes | None
    timestamp_ms: int


@dataclass
class CompactionHistory:
    """One log and every record that was ever written to it."""

    bench: Bench
    chance: random.Random
    log: PartitionLog
    now_ms: int = T0
    epoch: int = 0
    written: dict[int, WrittenRecord] = field(default_factory=dict)
    #: Offset from which on no record was compacted.
    dirty_from: int = 0
    #: Number of records written, by producer id.
    sequences: dict[int, int] = field(default_factory=dict)

    def append(self) -> None:
        count, producer_id = self.chance.randint(1, 6), self.chance.choice([-1, -1, 7, 8, 9])
        records = [self._record() for _ in range(count)]
        base = self.log.next_offset
        sequence = self.sequences.get(producer_id, 0)
        data = build_batch(
            records,
            codec=self.chance.choice([0, 0, 1, 2, 3, 4]),
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else sequence,
        )
        # Two of five batches have no producer. The others continue their producer's sequence, which
        # the producer state of the log validates.
        self.bench.append(self.log, data, now_ms=self.now_ms, epoch=self.epoch)
        for number, record in enumerate(records):
            assert record.key is not None
            self.written[base + number] = WrittenRecord(
                record.key, record.value, record.timestamp_ms
            )
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + count
        self.log.advance_high_watermark(self.log.next_offset)

    def _record(self) -> Record:
        # Keys 0 to 7 are drawn twice as often as the others, so that most batches overwrite some
        # key.
        key = b"key-%d" % self.chance.choice([*range(8), *range(60)])
        value = None if self.chance.random() < 0.2 else bytes(self.chance.randint(0, 60))
        return Record(key, value, (), self.now_ms - self.chance.randint(0, 50))

    def clean(self, keys: int = 10_000) -> CleaningStats:
        self.now_ms += self.chance.choice([0, RETENTION_MS // 2, 2 * RETENTION_MS])
        self.dirty_from = self.log.active_base_offset
        stats = clean(self.log, self.now_ms, keys=keys)
        assert stats.next_dirty <= self.dirty_from
        self.dirty_from = stats.next_dirty
        return stats

    def reopen(self) -> None:
        # Recovery reads from the recovery point. The compaction offset is a checkpoint of the
        # manager, which this bench does not have.
        recovery_point, first_dirty = self.log.recovery_point, self.log.first_dirty
        end = self.log.next_offset
        self.bench.crash(self.log)
        self.log = self.bench.open(recovery_point=recovery_point, high_watermark=end)
        self.log.first_dirty = first_dirty
        assert self.log.next_offset == end

    def check(self) -> None:
        """Compare the log with the model."""
        self.bench.check(self.log)
        remaining = read(self.log, self.chance.choice([1, 300, 1 << 20]))
        assert list(remaining) == sorted(remaining)
        for offset, record in remaining.items():
            assert record == self.written[offset]
        # Nothing is missing in the dirty part. In the clean part only tombstones may have been
        # removed.
        assert [
            item for item in self.written if item >= self.dirty_from and item not in remaining
        ] == []
        # Keys whose last record is a tombstone may be present or removed; all other keys have
        # their last value.
        assert _last(remaining) | _tombstones(self.written) == _last(self.written) | _tombstones(
            remaining
        )
        assert _values(remaining) == _values(self.written)
        self._check_producers()

    def _check_producers(self) -> None:
        found: dict[int, int] = {}
        # The last batch of each producer, even if empty, must show its last sequence number.
        # Otherwise a retry would be appended twice after the producer state is rebuilt.
        for _, header in iter_headers(self.bench.read_all(self.log)):
            if header.producer_id >= 0:
                found[header.producer_id] = header.base_sequence + header.last_offset_delta + 1
        assert found == self.sequences


def clean(log: PartitionLog, now_ms: int, *, keys: int = 10_000) -> CleaningStats:
    settings = CleanerSettings(
        memory_bytes=keys * SLOT_BYTES,
        load_factor=0.9,
        buffer_bytes=500,
    )
    return clean_log(
        log,
        dirtiness_of(log, now_ms),
        settings,
        now_ms=now_ms,
        stopping=lambda: False,
        moved=lambda _: 0.0,
    )


def read(log: PartitionLog, max_bytes: int) -> dict[int, WrittenRecord]:
    """Every record by its offset, as a consumer reads them."""
    found: dict[int, WrittenRecord] = {}
    offset = log.log_start_offset
    while offset < log.next_offset:
        part = reading.read(
            log, offset, max_bytes=max_bytes, up_to_offset=log.next_offset, min_one=True
        )
        for position, header in iter_headers(part.data):
            for decode_record in decode_records(memoryview(part.data)[position:]):
                assert decode_record.key is not None
                assert offset <= decode_record.offset <= header.last_offset
                found[decode_record.offset] = WrittenRecord(
                    decode_record.key, decode_record.value, decode_record.timestamp_ms
                )
        assert part.next_offset > offset
        offset = part.next_offset
    return found


def _last(records: dict[int, WrittenRecord]) -> dict[bytes, bytes | None]:
    return {record.key: record.value for record in records.values()}


def _tombstones(records: dict[int, WrittenRecord]) -> dict[bytes, bytes | None]:
    return {key: value for key, value in _last(records).items() if value is None}


def _values(records: dict[int, WrittenRecord]) -> dict[bytes, bytes | None]:
    return {key: value for key, value in _last(records).items() if value is not None}


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kill the process at the change of a file name with number ``step``. Yield the changes that
    were made before."""
    done: list[str] = []

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *arguments: Any, **keywords: Any) -> Any:
            if len(done) >= step:
                raise KilledInSwap
            done.append(f"{name} {path.name}")
            return real(path, *arguments, **keywords)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "rename", "unlink"):
            patch.setattr(Path, name, counting(name, getattr(Path, name)))
        yield done


def _history(bench: Bench, seed: int) -> CompactionHistory:
    bench.config = CONFIG
    return CompactionHistory(bench, random.Random(seed), bench.create())


@pytest.mark.parametrize("seed", range(8))
def test_the_last_record_of_each_key_survives_any_history(bench: Bench, seed: int) -> None:
    history = _history(bench, seed)
    for _ in range(10):
        for _ in range(history.chance.randint(1, 60)):
            history.append()
            history.epoch += history.chance.random() < 0.05
        # An offset map of 3 or 20 keys is full early, so that a cleaning covers only part of the
        # log.
        history.clean(history.chance.choice([3, 20, 10_000]))
        history.check()
        # Some histories crash between cleanings.
        if history.chance.random() < 0.3:
            history.reopen()
            history.check()
    # Guards against a cleaner that removes nothing.
    assert len(read(history.log, 1 << 20)) < len(history.written)


@pytest.mark.parametrize("seed", range(2))
def test_a_cleaning_killed_at_any_rename_leaves_the_old_or_the_new_segments(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = _history(bench, seed)
    step, ended = 0, False
    # Kill at the first file-name change, then at the second, and so on, until one cleaning runs
    # to its end.
    while not ended:
        for _ in range(10 if step else 60):
            history.append()
        flushing.flush(history.log)
        with killed_at(step, monkeypatch), suppress(KilledInSwap):
            history.clean()
            ended = True
        # Recovery completes or removes every temporary file of the killed cleaning.
        history.reopen()
        history.check()
        suffixes = {path.suffix for path in bench.directory.iterdir()}
        assert not suffixes & {".cleaned", ".swap", ".deleted"}
        step += 1
    assert step > 10


@pytest.mark.parametrize("seed", range(2))
def test_a_recovery_killed_during_a_swap_is_completed_by_the_next(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = _history(bench, seed)
    for _ in range(60):
        history.append()
    flushing.flush(history.log)
    step = 0
    # Kill cleanings later and later until one dies with committed swap files.
    while not list(bench.directory.glob("*.log.swap")):
        history.reopen()
        with killed_at(step, monkeypatch), pytest.raises(KilledInSwap):
            history.clean()
        step += 1
    # Then kill the recoveries, again one step later each time.
    end, step = history.log.next_offset, 0
    bench.crash(history.log)
    while list(bench.directory.glob("*.log.swap")):
        with killed_at(step, monkeypatch), suppress(KilledInSwap):
            bench.crash(bench.open(recovery_point=end))
        step += 1
    assert step > 2
    history.log = bench.open(recovery_point=end, high_watermark=end)
    history.check()


# ------------------------------------------------------------------ transactions


def _committed(log: PartitionLog) -> dict[int, tuple[bytes, bytes | None]]:
    """Return the records that a read_committed consumer sees, computed as clients do."""
    stable = log.last_stable_offset
    # As the Java consumer's CompletedFetch: aborted transactions become active at their first
    # offset and end at their abort marker.
    begins = sorted(
        (
            (aborted_transaction.first_offset, aborted_transaction)
            for aborted_transaction in reading.aborted_transactions(log, 0, stable)
        ),
        reverse=True,
    )
    aborted: set[int] = set()
    found: dict[int, tuple[bytes, bytes | None]] = {}
    offset = 0
    while offset < stable:
        part = reading.read(log, offset, max_bytes=500, up_to_offset=stable, min_one=True)
        for position, header in iter_headers(part.data):
            while begins and begins[-1][0] <= header.last_offset:
                aborted.add(begins.pop()[1].producer_id)
            if header.is_control:
                aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for decode_record in decode_records(memoryview(part.data)[position:]):
                    assert decode_record.key is not None
                    found[decode_record.offset] = decode_record.key, decode_record.value
        offset = part.next_offset
    return found


@dataclass
class InterleavedTransactions:
    """Producers whose transactions interleave in one log."""

    bench: Bench
    chance: random.Random
    log: PartitionLog
    now_ms: int = T0
    #: Records of the open transactions, by producer id.
    open: dict[int, dict[int, tuple[bytes, bytes]]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    committed: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def step(self) -> None:
        producer_id = self.chance.randint(1, 3)
        if producer_id in self.open and self.chance.random() < 0.3:
            self._end(producer_id)
        else:
            self._write(producer_id)
        self.log.advance_high_watermark(self.log.next_offset)

    def end_all(self) -> None:
        for producer_id in list(self.open):
            self._end(producer_id)
        self.log.advance_high_watermark(self.log.next_offset)

    def _write(self, producer_id: int) -> None:
        count, sequence = self.chance.randint(1, 3), self.sequences.get(producer_id, 0)
        pairs = [
            (b"k%d" % self.chance.randint(0, 15), self.chance.randbytes(9)) for _ in range(count)
        ]
        data = build_batch(
            [Record(key, value, (), self.now_ms) for key, value in pairs],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        # Verification guard of KIP-890 part 1: a transactional append without one is rejected.
        guard = appending.begin_verification(self.log, data, self.now_ms, supports_epoch_bump=False)
        done = appending.append_as_leader(
            self.log,
            data,
            leader_epoch=0,
            now_ms=self.now_ms,
            guard=guard,
            contents=batch_contents(data),
        )
        self.sequences[producer_id] = sequence + count
        written = self.open.setdefault(producer_id, {})
        written.update({done.base_offset + at: pair for at, pair in enumerate(pairs)})

    def _end(self, producer_id: int) -> None:
        # Six of ten transactions commit. The model keeps only their records.
        written, commit = self.open.pop(producer_id), self.chance.random() < 0.6
        appending.append_marker(
            self.log,
            EndMarker(commit, 0),
            producer_id=producer_id,
            producer_epoch=0,
            transaction_version=1,
            leader_epoch=0,
            now_ms=self.now_ms,
        )
        if commit:
            self.committed.update(written)

    def check(self) -> None:
        stable = self.log.last_stable_offset
        seen = _committed(self.log)
        expected = {at: item for at, item in sorted(self.committed.items()) if at < stable}
        assert all(expected.get(at) == item for at, item in seen.items())
        assert dict(seen[at] for at in sorted(seen)) == dict(expected.values())

    def reopen(self) -> None:
        recovery_point, end = self.log.recovery_point, self.log.next_offset
        first_dirty, stable = self.log.first_dirty, self.log.last_stable_offset
        self.bench.crash(self.log)
        self.log = self.bench.open(recovery_point=recovery_point, high_watermark=end)
        self.log.first_dirty = first_dirty
        assert (self.log.next_offset, self.log.last_stable_offset) == (end, stable)


@pytest.mark.parametrize("seed", range(6))
def test_a_read_committed_consumer_sees_exactly_the_committed_records(
    bench: Bench, seed: int
) -> None:
    bench.config = CONFIG
    transactions = InterleavedTransactions(bench, random.Random(seed), bench.create())
    for _ in range(6):
        for _ in range(transactions.chance.randint(5, 80)):
            transactions.step()
        transactions.now_ms += transactions.chance.choice([0, 2 * RETENTION_MS])
        # Cleanings run while transactions are open: the map ends at the last stable offset.
        clean(transactions.log, transactions.now_ms, keys=transactions.chance.choice([3, 10_000]))
        bench.check(transactions.log)
        transactions.check()
        if transactions.chance.random() < 0.4:
            transactions.reopen()
            transactions.check()
    # With every transaction ended, cleanings after the delete horizon remove the markers of
    # removed data.
    transactions.end_all()
    appending.roll(transactions.log, transactions.now_ms)
    for _ in range(3):  # data first, then the markers' horizon, then the markers
        transactions.now_ms += 2 * RETENTION_MS
        clean(transactions.log, transactions.now_ms)
        transactions.check()
    transactions.reopen()
    transactions.check()
    headers = [header for _, header in iter_headers(bench.read_all(transactions.log))]
    aborted = reading.aborted_transactions(transactions.log, 0, transactions.log.last_stable_offset)
    assert len(aborted) <= len(transactions.sequences)  # of each the last batch stays, though empty
    assert sum(header.is_control for header in headers) < 20
