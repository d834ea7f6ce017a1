"""One replica's log: the segments of one directory and the offsets that bound them.

Order that always holds: log start <= local log start <= high watermark <= log end. The loop thread
appends and reads; calls marked T block on the disk and are run in a thread by their callers. A
lock guards the segment list; T calls hold it only for what is in memory, except truncations, which
stop everything else on the log anyway. What a roll does on the loop is small: save the index
entries of the closed segment, write a snapshot of a few bytes, create three empty files.
"""

import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import (
    CheckpointFormatError,
    read_partition_metadata,
    write_partition_metadata,
)
from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH, EpochEntry, LeaderEpochs
from tidemark.records.batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    TimestampType,
    restamp,
    set_log_append_time,
)
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.epoch_file import EpochFile
from tidemark_broker.log.errors import (
    CorruptRecords,
    LogError,
    OffsetOutOfRange,
    StorageError,
    storage_errors,
)
from tidemark_broker.log.files import sync_directory, sync_file, write_whole
from tidemark_broker.log.lookup import first_at_or_after
from tidemark_broker.log.recovery import load_segments
from tidemark_broker.log.retention import RetentionInput, RetentionPlan, plan_retention
from tidemark_broker.log.segment import Segment, wall_clock_ms
from tidemark_broker.log.segment_list import SegmentList
from tidemark_broker.log.types import (
    AppendInfo,
    ReadResult,
    SegmentFiles,
    SegmentInfo,
    TieredRetention,
    TimestampOffset,
)
from tidemark_broker.log.validate import (
    check_follower_batches,
    check_leader_batch,
    check_read_range,
    runs_for_segments,
)
from tidemark_broker.log.walk import BatchAt

logger = logging.getLogger(__name__)


class PartitionLog:
    """Append, read, roll, truncate, delete; see the module for who may call what from where.

    ``config`` may be replaced at any time. ``highest_remote_offset`` (inclusive, -1 = nothing) is
    kept here for others and not used by the log itself.
    """

    def __init__(
        self,
        directory: Path,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        segments: SegmentList,
        epochs: LeaderEpochs,
        epoch_file: EpochFile,
        log_start_offset: int,
        recovery_point: int,
        high_watermark: int,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.config = config
        self.epochs = epochs
        self.highest_remote_offset = -1
        #: Log start that a crash cannot take back (its checkpoint is on disk); set by the manager.
        self.durable_log_start_offset = log_start_offset
        #: Whether a log start stands on disk at all; without it a start begins at the first segment.
        self.has_log_start_checkpoint = False
        #: Called (in a thread) before a step that relies on checkpoints being as the log is now.
        self.persist_checkpoints: Callable[[], None] | None = None
        #: Whether opening had to cut bytes that a clean shutdown would have kept.
        self.truncated_at_open = False
        self._segments = segments
        self._log_start_offset = log_start_offset
        self._local_log_start_offset = max(log_start_offset, segments.items[0].base_offset)
        self._next_offset = segments.active.next_offset
        self._recovery_point = min(recovery_point, self._next_offset)
        self._high_watermark = min(max(high_watermark, log_start_offset), self._next_offset)
        self._lock = threading.RLock()
        self._epoch_file = epoch_file
        self._truncations = 0
        self._failure: str | None = None
        self._closed = False

    # -- opening -----------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
    ) -> "PartitionLog":
        """T: a new, empty log at offset 0. The directory must not exist, or be empty."""
        with storage_errors(f"{directory} cannot be created"):
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise StorageError(f"{directory} is not empty: open it, or remove it first")
        write_whole(
            directory / names.PARTITION_METADATA, write_partition_metadata(topic_id).encode()
        )
        segment = Segment.create(directory, 0, created_ms=wall_clock_ms())
        log = cls(
            directory,
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            config=config,
            segments=SegmentList(directory, [segment]),
            epochs=LeaderEpochs(),
            epoch_file=EpochFile(directory),
            log_start_offset=0,
            recovery_point=0,
            high_watermark=0,
        )
        log._epoch_file.save(log.epochs)
        with storage_errors(f"{directory} cannot be synced"):
            sync_directory(directory.parent)
        return log

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        recovery_point: int,
        clean_shutdown: bool,
        log_start_offset: int | None,
        high_watermark: int | None = None,
    ) -> "PartitionLog":
        """T: open what is there and repair what a crash left.

        ``log_start_offset`` None (no checkpoint): the first local offset. A log start beyond the
        log's end begins the log anew there; the high watermark is clamped between the two.
        """
        _check_identity(directory, topic_id)
        loaded = load_segments(
            directory,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
            index_interval_bytes=config.index_interval_bytes,
            base_if_empty=log_start_offset or 0,
            now_ms=wall_clock_ms(),
        )
        end = loaded.segments[-1].next_offset
        epoch_file = EpochFile(directory)
        epochs = epoch_file.load(loaded)
        start = loaded.segments[0].base_offset if log_start_offset is None else log_start_offset
        log = cls(
            directory,
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            config=config,
            segments=SegmentList(directory, loaded.segments),
            epochs=epochs.truncate_from_start(start),
            epoch_file=epoch_file,
            log_start_offset=min(start, end),
            recovery_point=recovery_point,
            high_watermark=high_watermark or 0,
        )
        log.truncated_at_open = loaded.truncated or end < recovery_point
        epoch_file.save(log.epochs)
        if start > end:
            logger.warning(
                "%s ends at %d, below its log start %d: begun anew", directory, end, start
            )
            log.truncated_at_open = True
            log.truncate_fully_and_start_at(start, log_start_offset=start, epochs=())
        log._segments.remove_snapshots_above(log.next_offset)
        return log

    # -- offsets -----------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """First offset a client may see, in either tier."""
        return self._log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        """First offset that is read from here."""
        return self._local_log_start_offset

    @property
    def next_offset(self) -> int:
        """The log end offset."""
        return self._next_offset

    @property
    def high_watermark(self) -> int:
        """Exclusive end of what is committed, as this replica knows it."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of what read_committed may see; the high watermark, without transactions."""
        return self._high_watermark

    @property
    def recovery_point(self) -> int:
        """Everything below is on disk for good."""
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        """Bytes of all local log files."""
        return self._segments.size_bytes

    @property
    def needs_flush(self) -> bool:
        """Whether a closed segment, or ``flush.messages`` records, are not on disk for good yet."""
        point, segments = self._recovery_point, tuple(self._segments.items)
        return bool(segments) and (
            point < segments[-1].base_offset
            or self._next_offset - point >= self.config.flush_messages
        )

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to ``offset``, at most to the log's end; never back."""
        with self._lock:
            offset = min(offset, self._next_offset)
            if offset <= self._high_watermark:
                return False
            self._high_watermark = offset
            return True

    def raise_log_start(self, offset: int) -> bool:
        """Raise the log start (DeleteRecords, the leader's log start); never back, never above the
        HW (:class:`OffsetOutOfRange`). Segments below go at the next retention run."""
        with self._lock:
            if offset > self._high_watermark:
                raise OffsetOutOfRange(
                    f"log start {offset} is above the high watermark {self._high_watermark}"
                )
            if offset <= self._log_start_offset:
                return False
            self._log_start_offset = offset
            self._local_log_start_offset = max(self._local_log_start_offset, offset)
            self.epochs = self.epochs.truncate_from_start(offset)
            return True

    def raise_local_log_start(self, offset: int) -> bool:
        """Raise the first offset that is read from here; never back, never above the HW."""
        with self._lock:
            if offset > self._high_watermark:
                raise OffsetOutOfRange(
                    f"local log start {offset} is above the high watermark {self._high_watermark}"
                )
            if offset <= self._local_log_start_offset:
                return False
            self._local_log_start_offset = offset
            return True

    def drop_remote_part(self) -> bool:
        """The topic has no remote part (any more): the log start becomes the local log start."""
        with self._lock:
            if self._local_log_start_offset == self._log_start_offset:
                return False
            self._log_start_offset = self._local_log_start_offset
            self.epochs = self.epochs.truncate_from_start(self._log_start_offset)
            return True

    def assign_leader_epoch(self, epoch: int) -> bool:
        """T: a new leader's epoch begins at the log's end, even if nothing is ever appended in it."""
        with self._lock:
            if epoch <= self.epochs.latest_epoch:
                return False
            self.epochs = self.epochs.assign(epoch, self._next_offset)
        self._epoch_file.save(self.epochs)
        return True

    # -- appending ---------------------------------------------------------------------------

    def append_as_leader(self, data: Buffer, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append the one batch that a client sent: checked, given offsets and the leader epoch."""
        header = check_leader_batch(data, self.config, now_ms)
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
        """(buffers to write, log append time or -1): a patched header before the untouched records."""
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
            self._replace_all_segments(first.base_offset)
            self._log_start_offset = self._local_log_start_offset = start
            return
        raise CorruptRecords(
            f"offset {first.base_offset} does not continue the log, which ends at {self._next_offset}"
        )

    def _append(self, buffers: Sequence[Buffer], batches: Sequence[BatchAt], now_ms: int) -> bool:
        """Write one run of batches into one segment; whether a new one was begun for it."""
        last = batches[-1]
        rolled = self._roll_if_due(batches[0], last, now_ms)
        self._segments.active.append(buffers, batches, self.config.index_interval_bytes)
        self._next_offset = last.last_offset + 1
        self._note_epochs(batches)
        return rolled

    def _note_epochs(self, batches: Sequence[BatchAt]) -> None:
        """New epochs go to their file at once but without fsync: until the next flush the batches
        themselves tell them to a recovery."""
        latest = self.epochs.latest_epoch
        if batches[-1].leader_epoch == latest:
            return
        epochs = self.epochs
        for batch in batches:
            if batch.leader_epoch > latest and batch.leader_epoch != UNKNOWN_EPOCH:
                epochs = epochs.assign(batch.leader_epoch, batch.base_offset)
                latest = batch.leader_epoch
        if epochs is not self.epochs:
            self.epochs = epochs
            self._epoch_file.save_soon(epochs)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)
        if self._closed:
            raise StorageError(f"{self.directory} is closed")

    # -- rolling -----------------------------------------------------------------------------

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

    def roll(self, now_ms: int) -> bool:
        """Begin a new segment at the log's end; False when the active one is still empty."""
        with self._lock:
            self._check_usable()
            if not self._segments.active.size_bytes:
                return False
            self._segments.roll(self._next_offset, now_ms)
            return True

    # -- reading -----------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool) -> ReadResult:
        """Whole batches from the one that holds ``offset`` on, all of one segment.

        Only batches that end below ``up_to_offset`` (exclusive), at most ``max_bytes`` of them;
        with ``min_one`` the first one even if it is larger.
        """
        with self._lock:
            if self._closed:
                raise StorageError(f"{self.directory} is closed")
            check_read_range(offset, self._local_log_start_offset, self._next_offset)
            if offset >= min(up_to_offset, self._next_offset):
                return ReadResult(b"", offset)
            return self._segments.read(offset, max_bytes, up_to_offset, min_one=min_one)

    def offset_by_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """T: the first local record at or behind the local log start that is not older."""
        with self._lock:
            start = self._local_log_start_offset
            for segment in self._segments.items:
                if segment.largest_timestamp_ms < timestamp_ms or segment.next_offset <= start:
                    continue
                found = first_at_or_after(self._segments.loaded(segment), timestamp_ms, start)
                if found is not None:
                    return found
        return None

    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments of this moment, oldest first; the last one is active."""
        with self._lock:
            return self._segments.infos()

    def segment_files(self, base_offset: int) -> SegmentFiles:
        """T: the files of a closed segment, for copying (flush up to its end first)."""
        with self._lock:
            return self._segments.files_of(base_offset)

    # -- durability --------------------------------------------------------------------------

    def flush(self, up_to_offset: int | None = None) -> int:
        """T: fsync all below ``up_to_offset`` (default: everything); the new recovery point.

        A failed fsync may have lost pages for good, so nothing is appended any more until the log
        is opened again (which checks every byte).
        """
        with self._lock:
            self._check_usable()
            target = self._next_offset if up_to_offset is None else up_to_offset
            target = min(target, self._next_offset)
            if target <= self._recovery_point:
                return self._recovery_point
            active = self._segments.active
            active.save_indexes()
            first = self._segments.number_of(self._recovery_point)
            due = [s for s in self._segments.items[first:] if s.base_offset < target]
            if not due:  # all below the target went by retention
                return self._recovery_point
            # A flush of the active segment covers all that was appended before it began.
            reached = self._next_offset if due[-1] is active else due[-1].next_offset
            truncations = self._truncations
        try:
            self._sync(due)
        except OSError as error:
            self._failure = (
                f"{self.directory} cannot be synced ({error.strerror}): bytes may be lost; the log "
                "takes nothing more until the broker is started again"
            )
            logger.warning(self._failure)
            raise StorageError(self._failure) from error
        self._epoch_file.save(self.epochs)
        with self._lock:
            if truncations == self._truncations:
                self._recovery_point = max(self._recovery_point, reached)
            return self._recovery_point

    def _sync(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            for path in (segment.log_path, segment.index_path, segment.time_index_path):
                try:
                    sync_file(path)
                except FileNotFoundError:
                    continue  # retention was quicker
        sync_directory(self.directory)

    def close(self) -> None:
        """T: flush everything and let go of the files. A closed log refuses all else."""
        if self._closed:
            return
        try:
            with self._lock:
                self._segments.active.finish()
            self.flush()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            self._closed = True
            self._segments.unload_all()

    # -- truncation and deletion -------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """T: cut the log so that it ends at ``offset``, or at the start of the batch that holds it."""
        with self._lock:
            self._check_usable()
            if offset >= self._next_offset:
                return False
            if offset < self._segments.items[0].base_offset:
                self.truncate_fully_and_start_at(
                    offset,
                    log_start_offset=min(offset, self._log_start_offset),
                    epochs=self.epochs.entries,
                )
                return True
            self._lower_bounds(offset)
            with self._unusable_on_failure():
                self._segments.cut_to(offset, self.config.index_interval_bytes)
            self._next_offset = self._segments.active.next_offset
            self._lower_bounds(self._next_offset)
            self.epochs = self.epochs.truncate_from_end(self._next_offset)
            self._epoch_file.save(self.epochs)
            return True

    def truncate_fully_and_start_at(
        self, offset: int, *, log_start_offset: int, epochs: Sequence[EpochEntry]
    ) -> None:
        """T: drop every local record; the log goes on at ``offset`` with the given log start (what
        lies between is in the tier) and epochs."""
        if log_start_offset > offset:
            raise ValueError(f"log start {log_start_offset} is above the log's end {offset}")
        with self._lock:
            self._check_usable()
            self._lower_bounds(min(offset, self._log_start_offset))
            self._replace_all_segments(offset)
            self._log_start_offset = log_start_offset
            self.durable_log_start_offset = min(self.durable_log_start_offset, log_start_offset)
            self._high_watermark = offset
            self._recovery_point = offset
            self.epochs = LeaderEpochs(tuple(epochs)).truncate_from_end(offset)
            self._epoch_file.save(self.epochs)
        self._persist_checkpoints()

    @contextmanager
    def _unusable_on_failure(self) -> Iterator[None]:
        """A truncation that fails half-way leaves files that only opening again can make out."""
        try:
            yield
        except LogError as error:
            self._failure = f"{error}; the log takes nothing more until the broker is started again"
            self._let_go()
            raise

    def _lower_bounds(self, offset: int) -> None:
        """No bound stays above ``offset``; a recovery point that goes back is on disk before any
        file changes, lest a crash trust bytes that were written after it."""
        self._truncations += 1
        self._high_watermark = min(self._high_watermark, offset)
        self._log_start_offset = min(self._log_start_offset, offset)
        self._local_log_start_offset = min(self._local_log_start_offset, offset)
        self.durable_log_start_offset = min(self.durable_log_start_offset, offset)
        if offset < self._recovery_point:
            self._recovery_point = offset
            self._persist_checkpoints()

    def _persist_checkpoints(self) -> None:
        if self.persist_checkpoints is not None:
            self.persist_checkpoints()

    def _replace_all_segments(self, offset: int) -> None:
        with self._unusable_on_failure():
            self._segments.replace_all(offset, wall_clock_ms())
        self._next_offset = self._local_log_start_offset = offset

    def apply_retention(self, now_ms: int, *, tiered: TieredRetention | None) -> list[SegmentInfo]:
        """T: let go of the segments that ``log/retention.py`` names; what went.

        Reads of them end at once (the offsets move first), their files go after that.
        """
        if tiered is not None and not self.has_log_start_checkpoint:
            self._persist_checkpoints()
        with self._lock:
            self._check_usable()
            plan = self._plan_retention(now_ms, tiered)
            if plan.roll_active:
                self._segments.roll(self._next_offset, now_ms)
            doomed = self._segments.take_oldest(plan.delete)
            if plan.log_start_offset is not None:
                self.raise_log_start(plan.log_start_offset)
            if plan.local_log_start_offset is not None:
                self.raise_local_log_start(plan.local_log_start_offset)
        for segment in doomed:
            self._segments.remove_files(segment)
        return [segment.info(is_active=False) for segment in doomed]

    def _plan_retention(self, now_ms: int, tiered: TieredRetention | None) -> RetentionPlan:
        return plan_retention(
            RetentionInput(
                segments=self.segments(),
                config=self.config,
                log_start_offset=self._log_start_offset,
                local_log_start_offset=self._local_log_start_offset,
                high_watermark=self._high_watermark,
                now_ms=now_ms,
                tiered=tiered,
            )
        )

    def delete(self) -> None:
        """T: rename the directory out of the way, then remove it."""
        self.remove_renamed(self.rename_for_deletion())

    def rename_for_deletion(self) -> Path:
        """T: after this the log is gone for good, also after a crash; the name it has until then."""
        self._let_go()
        target = self.directory.with_name(
            names.deleted_directory_name(self.topic, self.partition, uuid.uuid4())
        )
        with storage_errors(f"{self.directory} cannot be removed"):
            self.directory.rename(target)
            sync_directory(target.parent)
        return target

    @staticmethod
    def remove_renamed(directory: Path) -> None:
        """T: remove a directory that :meth:`rename_for_deletion` renamed."""
        with storage_errors(f"{directory} cannot be removed"):
            shutil.rmtree(directory)


def _check_identity(directory: Path, topic_id: uuid.UUID) -> None:
    path = directory / names.PARTITION_METADATA
    with storage_errors(f"{path} cannot be read"):
        text = path.read_text()
    try:
        stored = read_partition_metadata(text)
    except CheckpointFormatError as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    if stored != topic_id:
        raise StorageError(f"{directory} belongs to topic id {stored}, not to {topic_id}")
