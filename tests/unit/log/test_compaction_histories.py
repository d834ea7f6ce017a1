"""Random histories, compacted repeatedly and cut anywhere, against a plain model.

The last record of each key always remains. Every remaining record was written with its offset.
Offsets rise without gaps in ownership. The last batch of each producer has its last sequence
number.
"""

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
    batch_contents,
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


class Killed(BaseException):
    """The process ends here: nothing that follows is done."""


@dataclass
class Written:
    key: bytes
    value: bytes | None
    timestamp_ms: int


@dataclass
class History:
    """One log, and all that was ever written to it."""

    bench: Bench
    chance: random.Random
    log: PartitionLog
    now_ms: int = T0
    epoch: int = 0
    written: dict[int, Written] = field(default_factory=dict)
    #: From here on nothing was compacted.
    dirty_from: int = 0
    #: Of each producer id how many records it wrote.
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
        self.bench.append(self.log, data, now_ms=self.now_ms, epoch=self.epoch)
        for number, record in enumerate(records):
            assert record.key is not None
            self.written[base + number] = Written(record.key, record.value, record.timestamp_ms)
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + count
        self.log.advance_high_watermark(self.log.next_offset)

    def _record(self) -> Record:
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
        recovery_point, first_dirty = self.log.recovery_point, self.log.state.first_dirty
        end = self.log.next_offset
        self.bench.crash(self.log)
        self.log = self.bench.open(recovery_point=recovery_point, high_watermark=end)
        self.log.state.first_dirty = first_dirty
        assert self.log.next_offset == end

    def check(self) -> None:
        self.bench.check(self.log)
        left = read(self.log, self.chance.choice([1, 300, 1 << 20]))
        assert list(left) == sorted(left)
        for offset, record in left.items():
            assert record == self.written[offset]
        assert [item for item in self.written if item >= self.dirty_from and item not in left] == []
        assert _last(left) | _tombstones(self.written) == _last(self.written) | _tombstones(left)
        assert _values(left) == _values(self.written)
        self._check_producers()

    def _check_producers(self) -> None:
        found: dict[int, int] = {}
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


def read(log: PartitionLog, max_bytes: int) -> dict[int, Written]:
    """Every record by its offset, as a consumer reads them."""
    found: dict[int, Written] = {}
    offset = log.log_start_offset
    while offset < log.next_offset:
        part = log.read(offset, max_bytes=max_bytes, up_to_offset=log.next_offset, min_one=True)
        for position, header in iter_headers(part.data):
            for decode_record in decode_records(memoryview(part.data)[position:]):
                assert decode_record.key is not None
                assert offset <= decode_record.offset <= header.last_offset
                found[decode_record.offset] = Written(
                    decode_record.key, decode_record.value, decode_record.timestamp_ms
                )
        assert part.next_offset > offset
        offset = part.next_offset
    return found


def _last(records: dict[int, Written]) -> dict[bytes, bytes | None]:
    return {record.key: record.value for record in records.values()}


def _tombstones(records: dict[int, Written]) -> dict[bytes, bytes | None]:
    return {key: value for key, value in _last(records).items() if value is None}


def _values(records: dict[int, Written]) -> dict[bytes, bytes | None]:
    return {key: value for key, value in _last(records).items() if value is not None}


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """At the change of a name number ``step`` the process is killed; what was done before."""
    done: list[str] = []

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *arguments: Any, **more: Any) -> Any:
            if len(done) >= step:
                raise Killed
            done.append(f"{name} {path.name}")
            return real(path, *arguments, **more)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "rename", "unlink"):
            patch.setattr(Path, name, counting(name, getattr(Path, name)))
        yield done


def _history(bench: Bench, seed: int) -> History:
    bench.config = CONFIG
    return History(bench, random.Random(seed), bench.create())


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_written_and_compacted_the_last_of_each_key_is_there(
    bench: Bench, seed: int
) -> None:
    history = _history(bench, seed)
    for _ in range(10):
        for _ in range(history.chance.randint(1, 60)):
            history.append()
            history.epoch += history.chance.random() < 0.05
        history.clean(history.chance.choice([3, 20, 10_000]))
        history.check()
        if history.chance.random() < 0.3:
            history.reopen()
            history.check()
    assert len(read(history.log, 1 << 20)) < len(history.written)


@pytest.mark.parametrize("seed", range(2))
def test_a_cleaning_that_is_killed_at_any_step_leaves_the_old_or_the_new(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = _history(bench, seed)
    step, ended = 0, False
    while not ended:
        for _ in range(10 if step else 60):
            history.append()
        history.log.flush()
        with killed_at(step, monkeypatch), suppress(Killed):
            history.clean()
            ended = True
        history.reopen()
        history.check()
        left = {path.suffix for path in bench.directory.iterdir()}
        assert not left & {".cleaned", ".swap", ".deleted"}
        step += 1
    assert step > 10


@pytest.mark.parametrize("seed", range(2))
def test_an_opening_that_is_killed_while_it_finishes_a_swap_is_finished_by_the_next(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = _history(bench, seed)
    for _ in range(60):
        history.append()
    history.log.flush()
    step = 0
    while not list(bench.directory.glob("*.log.swap")):
        history.reopen()
        with killed_at(step, monkeypatch), pytest.raises(Killed):
            history.clean()
        step += 1
    end, step = history.log.next_offset, 0
    bench.crash(history.log)
    while list(bench.directory.glob("*.log.swap")):
        with killed_at(step, monkeypatch), suppress(Killed):
            bench.crash(bench.open(recovery_point=end))
        step += 1
    assert step > 2
    history.log = bench.open(recovery_point=end, high_watermark=end)
    history.check()


# ------------------------------------------------------------------ transactions


def _committed(log: PartitionLog) -> dict[int, tuple[bytes, bytes | None]]:
    """Return the records that a read_committed consumer sees, computed as clients do."""
    stable = log.last_stable_offset
    begins = sorted(
        (
            (aborted_transaction.first_offset, aborted_transaction)
            for aborted_transaction in log.aborted_transactions(0, stable)
        ),
        reverse=True,
    )
    aborted: set[int] = set()
    found: dict[int, tuple[bytes, bytes | None]] = {}
    offset = 0
    while offset < stable:
        part = log.read(offset, max_bytes=500, up_to_offset=stable, min_one=True)
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
class Transactions:
    """Producers that write transactions side by side, into one log."""

    bench: Bench
    chance: random.Random
    log: PartitionLog
    now_ms: int = T0
    #: Of each producer what it has written in its open transaction.
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
        guard = self.log.begin_verification(data, self.now_ms, supports_epoch_bump=False)
        done = self.log.append_as_leader(
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
        written, commit = self.open.pop(producer_id), self.chance.random() < 0.6
        self.log.append_marker(
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
        first_dirty, stable = self.log.state.first_dirty, self.log.last_stable_offset
        self.bench.crash(self.log)
        self.log = self.bench.open(recovery_point=recovery_point, high_watermark=end)
        self.log.state.first_dirty = first_dirty
        assert (self.log.next_offset, self.log.last_stable_offset) == (end, stable)


@pytest.mark.parametrize("seed", range(6))
def test_committed_records_are_seen_and_aborted_ones_are_not(bench: Bench, seed: int) -> None:
    bench.config = CONFIG
    work = Transactions(bench, random.Random(seed), bench.create())
    for _ in range(6):
        for _ in range(work.chance.randint(5, 80)):
            work.step()
        work.now_ms += work.chance.choice([0, 2 * RETENTION_MS])
        clean(work.log, work.now_ms, keys=work.chance.choice([3, 10_000]))
        bench.check(work.log)
        work.check()
        if work.chance.random() < 0.4:
            work.reopen()
            work.check()
    work.end_all()
    work.log.roll(work.now_ms)
    for _ in range(3):  # data first, then the markers' horizon, then the markers
        work.now_ms += 2 * RETENTION_MS
        clean(work.log, work.now_ms)
        work.check()
    work.reopen()
    work.check()
    left = [header for _, header in iter_headers(bench.read_all(work.log))]
    aborted = work.log.aborted_transactions(0, work.log.last_stable_offset)
    assert len(aborted) <= len(work.sequences)  # of each the last batch stays, though empty
    assert sum(header.is_control for header in left) < 20
