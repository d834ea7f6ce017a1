"""Random histories, compacted again and again, cut short anywhere, against a plain model.

Whatever happens: of each key the last record is there, every record that is there was written with
that offset, offsets rise and none is nobody's, and the last batch of each producer tells its last
sequence number.
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
from tidemark.records.decode import decode_records
from tidemark_broker.log import CleanerSettings, CleaningStats, LogConfig, PartitionLog
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
        self.log.append_as_leader(data, leader_epoch=self.epoch, now_ms=self.now_ms)
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
        assert [each for each in self.written if each >= self.dirty_from and each not in left] == []
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
        producer_expiration_ms=10**9,
    )
    return log.clean(
        log.dirtiness(now_ms),
        settings,
        now_ms=now_ms,
        stopping=lambda: False,
        moved=lambda _: None,
    )


def read(log: PartitionLog, max_bytes: int) -> dict[int, Written]:
    """Every record by its offset, as a consumer reads them."""
    found: dict[int, Written] = {}
    offset = log.log_start_offset
    while offset < log.next_offset:
        part = log.read(offset, max_bytes=max_bytes, up_to_offset=log.next_offset, min_one=True)
        for position, header in iter_headers(part.data):
            for each in decode_records(memoryview(part.data)[position:]):
                assert each.key is not None
                assert offset <= each.offset <= header.last_offset
                found[each.offset] = Written(each.key, each.value, each.timestamp_ms)
        assert part.next_offset > offset
        offset = part.next_offset
    return found


def _last(records: dict[int, Written]) -> dict[bytes, bytes | None]:
    return {each.key: each.value for each in records.values()}


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
    with killed_at(3, monkeypatch), pytest.raises(Killed):
        history.clean()
    assert list(bench.directory.glob("*.log.swap"))
    end, step = history.log.next_offset, 0
    bench.crash(history.log)
    while list(bench.directory.glob("*.log.swap")):
        with killed_at(step, monkeypatch), suppress(Killed):
            bench.crash(bench.open(recovery_point=end))
        step += 1
    assert step > 2
    history.log = bench.open(recovery_point=end, high_watermark=end)
    history.check()
