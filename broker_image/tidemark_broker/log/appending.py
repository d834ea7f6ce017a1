"""Appending: batches of a client are checked and stamped, those of a leader are taken as they are.

Called on the loop thread. What a roll does there is small: it makes one empty file, the rest is
left to the next flush.
"""

from collections.abc import Sequence
from dataclasses import replace

from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH
from tidemark.records.batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    TimestampType,
    restamp,
    set_log_append_time,
    set_max_timestamp,
)
from tidemark_broker.log.errors import CorruptRecords
from tidemark_broker.log.files import remove_files
from tidemark_broker.log.segment import Segment, wall_clock_ms
from tidemark_broker.log.shrinking import ShrinkingLog
from tidemark_broker.log.timestamps import RecordTimes
from tidemark_broker.log.types import AppendInfo
from tidemark_broker.log.validate import (
    check_follower_batches,
    check_leader_batch,
    runs_for_segments,
)
from tidemark_broker.log.walk import BatchAt


class AppendingLog(ShrinkingLog):
    """Appends and rolls; :class:`PartitionLog` is the whole."""

    def append_as_leader(
        self, data: Buffer, *, leader_epoch: int, now_ms: int, times: RecordTimes | None = None
    ) -> AppendInfo:
        """Append the one batch that a client sent: checked, given offsets and the leader epoch.

        :class:`TimestampsInDoubt` asks for the ``times`` of its records (:func:`record_times`).
        """
        header = check_leader_batch(data, self.config, now_ms, times)
        if times is not None and header.max_timestamp != times.largest_ms:
            data, header = _corrected(data, header, times.largest_ms)
        with self._lock:
            self._check_usable()
            if leader_epoch < self.epochs.latest_epoch:
                raise ValueError(f"leader epoch {leader_epoch} < {self.epochs.latest_epoch}")
            base_offset = self._next_offset
            buffers, stamp = self._stamped(data, header, base_offset, leader_epoch, now_ms)
            batch = BatchAt(
                0,
                header.size_bytes,
                base_offset,
                base_offset + header.last_offset_delta,
                leader_epoch,
                header.max_timestamp if stamp == NO_TIMESTAMP else stamp,
            )
            rolled = self._append(buffers, [batch], now_ms)
        return AppendInfo(
            base_offset=base_offset,
            last_offset=batch.last_offset,
            max_timestamp_ms=batch.max_timestamp,
            log_append_time_ms=stamp,
            size_bytes=batch.size_bytes,
            rolled=rolled,
        )

    def _stamped(
        self, data: Buffer, header: BatchHeader, base_offset: int, leader_epoch: int, now_ms: int
    ) -> tuple[list[Buffer], int]:
        """(buffers to write, log append time or -1): a patched header before the untouched
        records."""
        if self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            whole = bytearray(data)
            set_log_append_time(whole, 0, header, now_ms)
            restamp(whole, 0, base_offset, leader_epoch)
            return [whole], now_ms
        head = bytearray(data[:HEADER_BYTES])
        restamp(head, 0, base_offset, leader_epoch)
        return [head, memoryview(data)[HEADER_BYTES:]], NO_TIMESTAMP

    def append_as_follower(self, data: Buffer, *, now_ms: int | None = None) -> AppendInfo:
        """Append batches as the leader has them: offsets kept, epochs taken from their headers."""
        batches = check_follower_batches(data, self.epochs.latest_epoch)
        if not batches:
            raise CorruptRecords("nothing to append")
        now_ms = wall_clock_ms() if now_ms is None else now_ms
        with self._lock:
            self._check_usable()
            self._check_continues(batches[0])
            view, rolled = memoryview(data), False
            room = self.config.segment_bytes - self._segments.active.size_bytes
            for first, last in runs_for_segments(batches, room, self.config.segment_bytes):
                run = batches[first:last]
                start = run[0].position
                buffers: list[Buffer] = [view[start : run[-1].end_position]]
                run = [batch._replace(position=batch.position - start) for batch in run]
                rolled |= self._append(buffers, run, now_ms)
        return AppendInfo(
            base_offset=batches[0].base_offset,
            last_offset=batches[-1].last_offset,
            max_timestamp_ms=max(batch.max_timestamp for batch in batches),
            log_append_time_ms=NO_TIMESTAMP,
            size_bytes=batches[-1].end_position,
            rolled=rolled,
        )

    def _check_continues(self, first: BatchAt) -> None:
        """An empty log whose start lies within the leader's first batch begins at that batch."""
        if first.base_offset == self._next_offset:
            return
        is_empty = not self._segments.size_bytes
        if is_empty and first.base_offset < self._next_offset <= first.last_offset:
            start = self._log_start_offset
            remove_files(self._replace_all_segments(first.base_offset))
            self._log_start_offset = self._local_log_start_offset = start
            return
        raise CorruptRecords(
            f"offset {first.base_offset} does not continue the log, which ends at "
            f"{self._next_offset}"
        )

    def _append(self, buffers: Sequence[Buffer], batches: Sequence[BatchAt], now_ms: int) -> bool:
        """Write one run of batches into one segment; whether a new one was begun for it."""
        last = batches[-1]
        rolled = self._roll_if_due(batches[0], last, now_ms)
        active = self._segments.active
        active.append(buffers, batches, self.config.index_interval_bytes)
        active.modified_ms = now_ms
        self._next_offset = last.last_offset + 1
        self._note_epochs(batches)
        return rolled

    def _note_epochs(self, batches: Sequence[BatchAt]) -> None:
        """New epochs go to their file with the next flush: until then the batches themselves tell
        them to a recovery."""
        latest = self.epochs.latest_epoch
        if batches[-1].leader_epoch == latest:
            return
        epochs = self.epochs
        for batch in batches:
            if batch.leader_epoch > latest and batch.leader_epoch != UNKNOWN_EPOCH:
                epochs = epochs.assign(batch.leader_epoch, batch.base_offset)
                latest = batch.leader_epoch
        self.epochs = epochs

    def roll(self, now_ms: int) -> bool:
        """Begin a new segment at the log's end; False when the active one is still empty."""
        with self._lock:
            self._check_usable()
            if not self._segments.active.size_bytes:
                return False
            self._segments.roll(self._next_offset, now_ms)
            return True

    def _roll_if_due(self, first: BatchAt, last: BatchAt, now_ms: int) -> bool:
        active, config = self._segments.active, self.config
        size = last.end_position
        if not active.size_bytes:
            return False
        if (
            active.size_bytes > config.segment_bytes - size
            or self._age_of(active, last.max_timestamp, now_ms) > config.segment_ms
            or not active.has_room_for(last.last_offset, config.segment_index_bytes)
        ):
            self._segments.roll(first.base_offset, now_ms)
            return True
        return False

    def _age_of(self, active: Segment, timestamp_ms: int, now_ms: int) -> int:
        """By the records' own clock where they have one (so that copies roll alike)."""
        if active.first_timestamp_ms >= 0 and timestamp_ms >= 0:
            return timestamp_ms - active.first_timestamp_ms
        return now_ms - active.created_ms


def _corrected(data: Buffer, header: BatchHeader, largest_ms: int) -> tuple[bytearray, BatchHeader]:
    """The batch with its largest timestamp as its records have it."""
    whole = bytearray(data)
    set_max_timestamp(whole, 0, header, largest_ms)
    return whole, replace(header, max_timestamp=largest_ms)
