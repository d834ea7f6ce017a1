"""One replica's log: the segments of one directory and the offsets that bound them.

The loop thread appends, and reads data that is in memory. Calls that say "Blocks." use the disk;
callers run them in a thread. A lock guards the state in memory. Blocking calls hold it only for
memory operations, except truncations, which stop everything else on the log anyway. A log whose
disk failed in a way that leaves its files in doubt refuses everything until
:meth:`PartitionLog.reopen`.

This class is the public side of a log. The modules imported here implement its operations and share
the log's :class:`LogState`.
"""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemark.logfiles.checkpoints import TopicPartition
from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import Buffer
from tidemark.records.control import EndMarker
from tidemark_broker.log import (
    appending,
    flushing,
    opening,
    reading,
    segment_expiry,
    start_offsets,
    truncation,
)
from tidemark_broker.log.batch_inspection import BatchContents
from tidemark_broker.log.bounds import LogBounds
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.deletion import rename_log
from tidemark_broker.log.log_state import LogState
from tidemark_broker.log.producer_entry import AppendOrigin, ProducerBatch
from tidemark_broker.log.producer_states import ActiveProducer, VerificationGuard
from tidemark_broker.log.types import (
    AppendInfo,
    ReadResult,
    SegmentFiles,
    SegmentInfo,
    TieredRetention,
    TimestampOffset,
)


class PartitionLog:
    """Log of one partition replica: append, read, roll, truncate, delete.

    The module's docstring says which thread may call what. ``config`` may be replaced at any time.
    ``highest_remote_offset`` (inclusive, -1 = nothing) is stored for callers; the log itself does
    not use it.
    """

    def __init__(self, state: LogState) -> None:
        """Wrap ``state``, which :mod:`tidemark_broker.log.opening` opened or created.

        Only this package accesses it.
        """
        self.state = state
        self.topic: str = state.topic
        self.topic_id: uuid.UUID = state.topic_id
        self.partition: int = state.partition
        self.highest_remote_offset = -1

    # -- what it is ----------------------------------------------------------------------------

    @property
    def key(self) -> TopicPartition:
        """Topic and partition, the log's key in its directory."""
        return self.topic, self.partition

    @property
    def directory(self) -> Path:
        return self.state.directory

    @property
    def config(self) -> LogConfig:
        """Topic configuration that applies now."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.state.config = config

    @property
    def bounds(self) -> LogBounds:
        """All bounding offsets, as one consistent value."""
        return self.state.bounds

    @property
    def log_start_offset(self) -> int:
        """First offset a client may see, in either tier."""
        return self.state.bounds.log_start

    @property
    def local_log_start_offset(self) -> int:
        """First offset that is read from the local tier."""
        return self.state.bounds.local_start

    @property
    def next_offset(self) -> int:
        """The log end offset."""
        return self.state.bounds.end

    @property
    def high_watermark(self) -> int:
        """Exclusive end of the committed records, as this replica knows it."""
        return self.state.bounds.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of the records that read_committed may see.

        This is the first offset of a transaction that is open, or whose marker is not committed
        yet, if that is below the high watermark. Otherwise it is the high watermark.
        """
        return self.state.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """Offset below which everything is durable on disk."""
        return self.state.bounds.recovery_point

    @property
    def announced_log_start_offset(self) -> int:
        """Log start that a checkpoint is to persist soon."""
        return self.state.start_record.target(self.state.bounds)

    @property
    def durable_log_start_offset(self) -> int:
        """Log start that a crash cannot undo, because a checkpoint persists it."""
        return self.state.start_record.durable

    @property
    def epochs(self) -> LeaderEpochs:
        """Leader epochs with their start offsets."""
        return self.state.epochs

    @property
    def active_base_offset(self) -> int:
        """Base offset of the active segment; each roll changes it."""
        return self.state.segments.active.base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all local log files."""
        return self.state.segments.size_bytes

    def segments(self) -> tuple[SegmentInfo, ...]:
        """Return the segments, oldest first; the last one is active."""
        with self.state.lock:
            return self.state.segments.infos()

    def segments_from(self, offset: int, count: int | None = None) -> tuple[SegmentInfo, ...]:
        """Return :meth:`segments` from the one that contains ``offset``, at most ``count`` of them.

        An offset below all segments selects the first one.
        """
        with self.state.lock:
            segments = self.state.segments
            return segments.infos(segments.number_of(offset), count)

    @property
    def failure(self) -> str | None:
        """Reason why the log refuses everything until :meth:`reopen`, or None."""
        return self.state.failure

    @property
    def truncated_at_open(self) -> bool:
        """Whether opening cut bytes that a clean shutdown would have preserved."""
        return self.state.truncated_at_open

    @property
    def lost_at_open(self) -> tuple[int, int] | None:
        """(end, former high watermark) if the log was opened below an offset that it knew to be
        committed.
        """
        return self.state.lost_at_open

    # -- bounds --------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to ``offset``, at most to the log end. It never falls."""
        return self.state.commit(offset)

    def raise_log_start(self, offset: int) -> bool:
        """Raise the log start (DeleteRecords, or the leader's log start). It never falls.

        Segments below it are deleted at the next retention run. Raises :class:`OffsetOutOfRange`
        for an offset above the high watermark.
        """
        return start_offsets.raise_log_start(self.state, offset)

    def announce_log_start(self, offset: int) -> bool:
        """Schedule a log start, which takes effect once a checkpoint contains it. Return whether it
        is new.

        The delay ensures that no crash undoes a log start that clients have seen (invariant 2). The
        bounds of :meth:`raise_log_start` apply.
        """
        return start_offsets.announce_log_start(self.state, offset)

    def adopt_checkpointed_log_start(self) -> bool:
        """Put an announced and checkpointed log start into effect.

        Return whether the log start moved.
        """
        return start_offsets.adopt_checkpointed_log_start(self.state)

    def raise_local_log_start(self, offset: int) -> bool:
        """Raise the first offset that is read locally.

        It never falls, nor exceeds the high watermark.
        """
        return start_offsets.raise_local_log_start(self.state, offset)

    def drop_remote_part(self) -> bool:
        """Move the log start to the local log start: the topic has no remote part any more."""
        return start_offsets.drop_remote_part(self.state)

    def assign_leader_epoch(self, epoch: int) -> bool:
        """Start a new leader's epoch at the log end, even if no record is ever appended in it.
        Blocks.

        The epoch is on disk before it takes effect. A :class:`StorageError` leaves everything
        unchanged.
        """
        return self.state.assign_leader_epoch(epoch)

    # -- records -------------------------------------------------------------------------------

    def append_as_leader(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        contents: BatchContents | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard | None = None,
        reads: bool = False,
    ) -> AppendInfo:
        """Check one batch of a client and append it, with offsets and the leader epoch set.

        A retry of a batch that is in the log is not appended again; the result describes the first
        append. ``contents``: the batch's records, if they were read (:func:`batch_contents`).
        :class:`RecordsInDoubt` is raised if they must be read first. With ``reads`` that is the
        case for every batch with a valid header.

        ``guard``: proof that the transaction coordinator has confirmed, since
        :meth:`begin_verification`, that the partition is part of the producer's transaction
        (KIP-890). Without it only a transaction that is already open here continues.
        """
        # The implementation is in a module of its own, which works on the shared state.
        return appending.append_as_leader(
            self.state, data, leader_epoch, now_ms, contents, origin, guard, reads=reads
        )

    def append_marker(
        self,
        marker: EndMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Append the marker that commits or aborts a producer's transaction, as leader (KIP-98).

        ``transaction_version``: version of the transaction protocol (KIP-890). Raises
        :class:`InvalidProducerEpoch` or :class:`TransactionCoordinatorFenced` for a marker that was
        superseded.
        """
        # Markers skip the checks of client batches: only coordinators write them.
        return appending.append_marker(
            self.state,
            marker,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_version=transaction_version,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
        )

    def begin_verification(
        self, data: Buffer, now_ms: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        """Start the verification of a client's transactional batch with the coordinator (KIP-890).

        None means that no verification is needed. :meth:`append_as_leader` takes the result as
        ``guard``.
        """
        return appending.begin_verification(
            self.state, data, now_ms, supports_epoch_bump=supports_epoch_bump
        )

    def begin_verification_of(
        self, producer_id: int, producer_epoch: int, now_ms: int
    ) -> VerificationGuard | None:
        """Start the verification of a group's offsets that a coordinator writes in a producer's
        transaction.
        """
        return appending.begin_verification_of(self.state, producer_id, producer_epoch, now_ms)

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has a transaction open here in that epoch."""
        return self.state.producers.has_ongoing_transaction(producer_id, producer_epoch)

    # -- producers -----------------------------------------------------------------------------

    @property
    def producer_count(self) -> int:
        """Number of producers with state in this log."""
        return len(self.state.producers)

    def knows_producer(self, producer_id: int) -> bool:
        """Return whether the log has state of the producer, in any epoch."""
        return producer_id in self.state.producers

    def active_producers(self, most: int | None = None) -> list[ActiveProducer]:
        """Return the rows of DescribeProducers: every producer, or the ``most`` that wrote last."""
        with self.state.lock:
            return list(self.state.producers.active(most))

    def expire_producers(self, now_ms: int, idle_ms: int) -> None:
        """Drop the state of producers that have been idle for ``idle_ms``."""
        with self.state.lock:
            self.state.producers.expire(now_ms, idle_ms)

    def append_as_follower(self, data: Buffer, *, now_ms: int | None = None) -> AppendInfo:
        """Append batches as the leader sent them, with their offsets and epochs."""
        return appending.append_as_follower(self.state, data, now_ms)

    def roll(self, now_ms: int) -> bool:
        """Start a new segment at the log end. Return False if the active segment is empty."""
        return appending.roll(self.state, now_ms)

    def read_cached(
        self, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool
    ) -> ReadResult:
        """Read on the loop thread; :class:`NotCached` where :meth:`read` would likely wait for the
        disk.
        """
        return reading.read_cached(self.state, offset, max_bytes, up_to_offset, min_one=min_one)

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool) -> ReadResult:
        """Read whole batches of one segment, from the one that contains ``offset``. Blocks.

        Only batches that end below ``up_to_offset`` (exclusive) are returned, at most ``max_bytes``
        of them. With ``min_one`` the first one is returned even if it is larger.
        """
        return reading.read(self.state, offset, max_bytes, up_to_offset, min_one=min_one)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions with records in [start, end), in the order of their
        markers. Blocks.

        The list is complete if ``end`` is not above the last stable offset.
        """
        return reading.aborted_transactions(self.state, start, end)

    def aborted_count(self, start: int) -> int:
        """Return an upper bound of the entries that :meth:`aborted_transactions` examines."""
        return reading.aborted_count(self.state, start)

    def offset_by_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Return the first local record from the local log start that is not older, or None.
        Blocks."""
        return reading.offset_by_timestamp(self.state, timestamp_ms)

    # -- files ---------------------------------------------------------------------------------

    @property
    def is_unflushed(self) -> bool:
        """Whether some data of the log is not durable yet.

        Cheap, because the flusher polls every log.
        """
        log = self.state
        return log.bounds.recovery_point != log.bounds.end or bool(log.segments.unfinished)

    @property
    def needs_flush(self) -> bool:
        """Whether a closed segment, or ``flush.messages`` records, are not durable yet."""
        return flushing.needs_flush(self.state)

    def flush(self, up_to_offset: int | None = None) -> int:
        """Fsync everything below ``up_to_offset`` (default: the log end). Blocks. Return the
        recovery point.

        A failed fsync may have lost pages permanently. The log then refuses appends until
        :meth:`reopen`, which checks every byte.
        """
        return flushing.flush(self.state, up_to_offset)

    def segment_files(self, base_offset: int) -> SegmentFiles:
        """Return the files of a closed segment for upload. Blocks.

        The caller flushes up to its end first.
        """
        return flushing.segment_files(self.state, base_offset)

    def truncate_to(self, offset: int) -> bool:
        """Cut the log at ``offset``, or at the start of the batch that contains it. Blocks.

        Return whether anything was removed. At or above the log end no record is removed, but an
        epoch that starts at the end is: this replica led in it and appended nothing.
        """
        return truncation.truncate_to(self.state, offset)

    def truncate_fully_and_start_at(
        self,
        offset: int,
        *,
        log_start_offset: int,
        epochs: Sequence[EpochEntry],
        producer_snapshot: bytes | None = None,
        recent_batches: Sequence[ProducerBatch] = (),
    ) -> None:
        """Drop every local record and restart the log empty at ``offset``. Blocks.

        Records between ``log_start_offset`` and ``offset`` are in the tier; ``epochs`` are theirs.
        ``producer_snapshot``: content of a ``.snapshot`` file with the producers' state at
        ``offset``. ``recent_batches``: producers' batches before ``offset``, since the snapshot has
        only each producer's last one.
        """
        truncation.truncate_fully_and_start_at(
            self.state, offset, log_start_offset, epochs, producer_snapshot, recent_batches
        )

    def apply_retention(self, now_ms: int, *, tiered: TieredRetention | None) -> list[SegmentInfo]:
        """Drop the segments that ``log/retention.py`` selects, and return them. Blocks."""
        return segment_expiry.apply_retention(self.state, now_ms, tiered)

    def reopen(self) -> bool:
        """After a failure, open the same files again and check every byte that may be in doubt.
        Blocks.

        The bytes are read from the disk, not from the page cache. Return False if bytes of the log
        were lost. Until then the log refuses everything. Bounds that clients saw do not fall.
        """
        return opening.reopen(self.state)

    def close(self) -> None:
        """Flush everything and close the files. Blocks. A closed log refuses everything else.

        Raises :class:`StorageError` for a log whose disk failed: its data is in doubt, so the
        shutdown is not clean.
        """
        flushing.close(self.state)

    def rename_for_deletion(self, sync_parent: Callable[[], None] | None = None) -> Path:
        """Rename the directory, which deletes the log durably; return the new name. Blocks.

        After a failure the call may be repeated.
        """
        return rename_log(self.state, sync_parent)
