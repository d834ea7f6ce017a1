"""Bench for one log in one directory: small batches to append, crashes, and a consistency check."""

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidemark.logfiles.offset_index import OffsetIndex
from tidemark.logfiles.time_index import TimeIndex
from tidemark.records.batch import check_crc, iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import decode_records
from tidemark_broker.log import (
    AppendInfo,
    LogConfig,
    LogManager,
    PartitionLog,
    RecordsInDoubt,
    appending,
    batch_contents,
    flushing,
    reading,
)
from tidemark_broker.log.opening import create_log, open_log
from tidemark_broker.log.segment_list import OpenSegments

TOPIC_ID = uuid.UUID(int=0x1234)
T0 = 1_700_000_000_000


@dataclass
class LogBench:
    """Makes, fills, reopens and checks the log of one directory."""

    directory: Path
    config: LogConfig = field(
        default_factory=lambda: LogConfig(segment_bytes=1000, index_interval_bytes=100)
    )
    opened: list[PartitionLog] = field(default_factory=list)
    open_segments: OpenSegments = field(default_factory=OpenSegments)

    def create(self) -> PartitionLog:
        log = create_log(
            self.directory,
            topic="t",
            topic_id=TOPIC_ID,
            partition=0,
            config=self.config,
            open_segments=self.open_segments,
        )
        self.opened.append(log)
        return log

    def open(
        self,
        *,
        recovery_point: int = 0,
        clean_shutdown: bool = False,
        log_start_offset: int | None = None,
        high_watermark: int | None = None,
    ) -> PartitionLog:
        # By default as after kill -9: everything is read and verified from the recovery point 0
        # on.
        log = open_log(
            self.directory,
            topic="t",
            topic_id=TOPIC_ID,
            partition=0,
            config=self.config,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            open_segments=self.open_segments,
        )
        self.opened.append(log)
        return log

    def crash(self, log: PartitionLog) -> None:
        """Close the files without a flush, as kill -9 does."""
        log.close_files()

    @staticmethod
    def batch(count: int = 1, *, timestamp_ms: int = T0, size: int = 30, codec: int = 0) -> bytes:
        return build_batch(
            [Record(b"k", bytes(size), (), timestamp_ms + number) for number in range(count)],
            codec=codec,
        )

    def fill(self, log: PartitionLog, counts: Sequence[int], *, epoch: int = 0) -> None:
        """One batch for each count; timestamps rise by 10 ms an offset."""
        for count in counts:
            appending.append_as_leader(
                log,
                self.batch(count, timestamp_ms=T0 + 10 * log.next_offset),
                leader_epoch=epoch,
                now_ms=T0,
            )

    @staticmethod
    def append(log: PartitionLog, data: bytes, *, now_ms: int = T0, epoch: int = 0) -> AppendInfo:
        """Append as the leader's request handler does: read the records only if the header is in
        doubt."""
        try:
            return appending.append_as_leader(log, data, leader_epoch=epoch, now_ms=now_ms)
        except RecordsInDoubt:
            contents = batch_contents(data)
            return appending.append_as_leader(
                log, data, leader_epoch=epoch, now_ms=now_ms, contents=contents
            )

    @staticmethod
    def read_all(log: PartitionLog, *, max_bytes: int = 1 << 20) -> bytes:
        """Everything from the local log start to the end, read in steps of ``max_bytes``."""
        offset, parts = log.local_log_start_offset, []
        while offset < log.next_offset:
            result = reading.read(
                log, offset, max_bytes=max_bytes, up_to_offset=log.next_offset, min_one=True
            )
            assert result.next_offset > offset
            offset = result.next_offset
            parts.append(result.data)
        return b"".join(parts)

    def bytes_on_disk(self) -> bytes:
        """All log files, one after the other."""
        return b"".join(path.read_bytes() for path in sorted(self.directory.glob("*.log")))

    def check(self, log: PartitionLog) -> list[int]:
        """Check files, sizes, indexes and records against each other. Return the batches' base
        offsets."""
        bases, expected = [], log.segment_infos()[0].base_offset
        for segment in log.segment_infos():
            assert segment.base_offset == expected
            data = (self.directory / f"{segment.base_offset:020d}.log").read_bytes()
            assert len(data) == segment.size_bytes
            # Walk the file on its own, without the log's indexes: the CRC, the record count and
            # the continuity of offsets of every batch.
            positions, largest, read = {}, -1, 0
            for position, header in iter_headers(data):
                check_crc(data, position, header)
                assert header.base_offset == expected
                assert len(list(decode_records(data[position:]))) == header.count
                bases.append(header.base_offset)
                positions[header.last_offset] = position
                largest, expected = max(largest, header.max_timestamp), header.next_offset
                read += header.size_bytes
            assert read == len(data)
            assert (segment.next_base_offset, segment.largest_timestamp_ms) == (expected, largest)
            # Only closed segments have complete indexes: the active one's are built in memory and
            # written by the roll or the flush.
            if not segment.is_active:
                flushing.flush(log, 0)  # syncs no record, but writes what is in memory still
                self._check_indexes(segment.base_offset, positions, largest)
        # The log's totals and bounds agree with the files: log start <= local log start <= high
        # watermark <= log end.
        assert log.next_offset == expected
        assert log.size_bytes == sum(segment.size_bytes for segment in log.segment_infos())
        assert log.log_start_offset <= log.local_log_start_offset
        assert log.local_log_start_offset <= log.high_watermark <= log.next_offset
        # No epoch begins at or beyond the end, except the first one of an empty log.
        for entry in log.epochs.entries:
            assert entry.start_offset < max(expected, 1)
        return bases

    def _check_indexes(self, base: int, positions: dict[int, int], largest: int) -> None:
        raw = (self.directory / f"{base:020d}.index").read_bytes()
        index = OffsetIndex.from_bytes(base, raw)
        # An entry is 8 bytes: the offset relative to the base, then the position of the batch
        # that ends at this offset (Kafka's OffsetIndex).
        for number in range(len(index)):
            entry = raw[8 * number : 8 * number + 8]
            offset = base + int.from_bytes(entry[:4], "big")
            assert positions[offset] == int.from_bytes(entry[4:], "big")
        times = (self.directory / f"{base:020d}.timeindex").read_bytes()
        assert TimeIndex.from_bytes(base, times).last().timestamp_ms == largest


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LogBench]:
    """Bench for ``t-0``. It closes the files of every log that it opened."""
    found = LogBench(tmp_path / "t-0")
    yield found
    for log in found.opened:
        log.close_files()


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], LogManager]]:
    """Return a function that starts the manager of one directory with the module's CONFIG. Each
    start first closes the former manager as a crash does."""
    managers: list[LogManager] = []

    def close_all() -> None:
        for manager in managers:
            for log in manager.logs():
                log.close_files()
            # The lock belongs to the open file, so a manager that is only dropped keeps it.
            if manager._lock_descriptor is not None:
                os.close(manager._lock_descriptor)
                manager._lock_descriptor = None

    def open_manager() -> LogManager:
        close_all()
        manager = LogManager.open(tmp_path / "logs", node_id=1, cluster_id="c")
        manager.open_all(lambda _: request.module.CONFIG)
        managers.append(manager)
        return manager

    yield open_manager
    close_all()
