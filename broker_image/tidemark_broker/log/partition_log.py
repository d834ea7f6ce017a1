"""One replica's log: the segments of one directory and the offsets that bound them.

The loop thread appends, and reads what is in memory; calls marked T block on the disk and are run
in a thread by their callers. A lock guards what is in memory; T calls hold it no longer than that
takes, except truncations, which stop everything else on the log anyway. A log whose disk failed in
a way that leaves its files in doubt refuses everything until :meth:`PartitionLog.reopen`.

This is what others see of a log; what they ask for is done by the modules that are imported here,
which share the log's :class:`LogState`.
"""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemark.logfiles.checkpoints import TopicPartition
from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs
from tidemark.logfiles.transaction_index import AbortedTransaction
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
from tidemark_broker.log.bounds import Bounds
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
    """Append, read, roll, truncate, delete; see the module for who may call what from where.

    ``config`` may be replaced at any time. ``highest_remote_offset`` (inclusive, -1 = nothing) is
    kept here for others and not used by the log itself.
    """

    def __init__(self, state: LogState) -> None:
        """``state`` is what :mod:`tidemark_broker.log.opening` has opened or made; it is not for
        others than this package."""
        self.state = state
        self.topic: str = state.topic
        self.topic_id: uuid.UUID = state.topic_id
        self.partition: int = state.partition
        self.highest_remote_offset = -1

    # -- what it is ----------------------------------------------------------------------------

    @property
    def key(self) -> TopicPartition:
        """By which it goes in its directory."""
        return self.topic, self.partition

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self.state.directory

    @property
    def config(self) -> LogConfig:
        """What holds for it now."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.state.config = config

    @property
    def bounds(self) -> Bounds:
        """All offsets that bound it, of one moment."""
        return self.state.bounds

    @property
    def log_start_offset(self) -> int:
        """First offset a client may see, in either tier."""
        return self.state.bounds.log_start

    @property
    def local_log_start_offset(self) -> int:
        """First offset that is read from here."""
        return self.state.bounds.local_start

    @property
    def next_offset(self) -> int:
        """The log end offset."""
        return self.state.bounds.end

    @property
    def high_watermark(self) -> int:
        """Exclusive end of what is committed, as this replica knows it."""
        return self.state.bounds.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of what read_committed may see: the first offset of a transaction that is
        open, or whose marker is not committed yet, if below the high watermark, else that."""
        return self.state.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is on disk for good."""
        return self.state.bounds.recovery_point

    @property
    def announced_log_start_offset(self) -> int:
        """The log start that a checkpoint is to hold soon."""
        return self.state.start_record.target(self.state.bounds)

    @property
    def durable_log_start_offset(self) -> int:
        """Log start that a crash cannot take back: it is on record."""
        return self.state.start_record.durable

    @property
    def epochs(self) -> LeaderEpochs:
        """Which leader epoch began where."""
        return self.state.epochs

    @property
    def active_base_offset(self) -> int:
        """Where the active segment begins: another one after each roll."""
        return self.state.segments.active.base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all local log files."""
        return self.state.segments.size_bytes

    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments of this moment, oldest first; the last one is active."""
        with self.state.lock:
            return self.state.segments.infos()

    def segments_from(self, offset: int, count: int | None = None) -> tuple[SegmentInfo, ...]:
        """:meth:`segments` from the one that holds ``offset`` on (the first one if it lies below
        all), at most ``count`` of them."""
        with self.state.lock:
            segments = self.state.segments
            return segments.infos(segments.number_of(offset), count)

    @property
    def failure(self) -> str | None:
        """Why the log takes nothing until it is opened again; None while all is well."""
        return self.state.failure

    @property
    def truncated_at_open(self) -> bool:
        """Whether opening had to cut bytes that a clean shutdown would have kept."""
        return self.state.truncated_at_open

    @property
    def lost_at_open(self) -> tuple[int, int] | None:
        """(end, former high watermark) where the log was opened below what it knew to be
        committed."""
        return self.state.lost_at_open

    # -- bounds --------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to ``offset``, at most to the log's end; never back."""
        return self.state.commit(offset)

    def raise_log_start(self, offset: int) -> bool:
        """Raise the log start (DeleteRecords, the leader's log start); never back, never above the
        HW (:class:`OffsetOutOfRange`). Segments below go at the next retention run."""
        return start_offsets.raise_log_start(self.state, offset)

    def announce_log_start(self, offset: int) -> bool:
        """Have the log start raised once a checkpoint holds it, so that what clients were shown no
        crash takes back (invariant 2); bounded as :meth:`raise_log_start` is. Whether it is new."""
        return start_offsets.announce_log_start(self.state, offset)

    def adopt_checkpointed_log_start(self) -> bool:
        """What was announced and is in the checkpoint comes into force; whether the log start
        moved."""
        return start_offsets.adopt_checkpointed_log_start(self.state)

    def raise_local_log_start(self, offset: int) -> bool:
        """Raise the first offset that is read from here; never back, never above the HW."""
        return start_offsets.raise_local_log_start(self.state, offset)

    def drop_remote_part(self) -> bool:
        """The topic has no remote part (any more): the log start becomes the local log start."""
        return start_offsets.drop_remote_part(self.state)

    def assign_leader_epoch(self, epoch: int) -> bool:
        """T: a new leader's epoch begins at the log's end, even if nothing is ever appended in it.
        It is on disk before it is in use: a :class:`StorageError` leaves all as it was."""
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
        """Append the one batch that a client sent: checked, given offsets and the leader epoch. A
        batch of a producer that is here already is not appended again: what is told is of the first
        time.

        :class:`RecordsInDoubt` asks for what its records are (:func:`batch_contents`), as it does
        with ``reads`` for each batch that is good as far as its header tells.
        ``guard``: the coordinator has said since :meth:`begin_verification` that the log is part of
        the producer's transaction; without it only a transaction that is under way here goes on.
        """
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
        """As leader: end the transaction of a producer here, if it has one.
        :class:`InvalidProducerEpoch` and :class:`TransactionCoordinatorFenced` for what comes too
        late; ``transaction_version`` is that of the transaction (KIP-890)."""
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
        """Before the coordinator is asked whether the log is part of the transaction of a batch
        that a client sent; None: nobody has to be asked. See ``guard`` of
        :meth:`append_as_leader`."""
        return appending.begin_verification(
            self.state, data, now_ms, supports_epoch_bump=supports_epoch_bump
        )

    def begin_verification_of(
        self, producer_id: int, producer_epoch: int, now_ms: int
    ) -> VerificationGuard | None:
        """The same for what a coordinator is to write in a producer's transaction."""
        return appending.begin_verification_of(self.state, producer_id, producer_epoch, now_ms)

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Has that producer a transaction open here, in that epoch?"""
        return self.state.producers.has_ongoing_transaction(producer_id, producer_epoch)

    # -- producers -----------------------------------------------------------------------------

    @property
    def producer_count(self) -> int:
        """How many producers it knows."""
        return len(self.state.producers)

    def knows_producer(self, producer_id: int) -> bool:
        """Has it something of that producer, in any epoch?"""
        return producer_id in self.state.producers

    def active_producers(self, most: int | None = None) -> list[ActiveProducer]:
        """Return the rows of DescribeProducers: every producer, or the ``most`` that wrote last."""
        with self.state.lock:
            return list(self.state.producers.active(most))

    def expire_producers(self, now_ms: int, idle_ms: int) -> None:
        """Forget producers that have been idle for so long."""
        with self.state.lock:
            self.state.producers.expire(now_ms, idle_ms)

    def append_as_follower(self, data: Buffer, *, now_ms: int | None = None) -> AppendInfo:
        """Append batches as the leader has them: offsets kept, epochs taken from their headers."""
        return appending.append_as_follower(self.state, data, now_ms)

    def roll(self, now_ms: int) -> bool:
        """Begin a new segment at the log's end; False when the active one is still empty."""
        return appending.roll(self.state, now_ms)

    def read_cached(
        self, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool
    ) -> ReadResult:
        """:meth:`read` for the loop: :class:`NotCached` where it would likely wait for the disk."""
        return reading.read_cached(self.state, offset, max_bytes, up_to_offset, min_one=min_one)

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool) -> ReadResult:
        """T: whole batches from the one that holds ``offset`` on, all of one segment.

        Only batches that end below ``up_to_offset`` (exclusive), at most ``max_bytes`` of them;
        with ``min_one`` the first one even if it is larger.
        """
        return reading.read(self.state, offset, max_bytes, up_to_offset, min_one=min_one)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """T: all that have records in [start, end) and were aborted, in the order of their
        markers; complete where ``end`` is not above the last stable offset."""
        return reading.aborted_transactions(self.state, start, end)

    def aborted_count(self, start: int) -> int:
        """How many aborted transactions :meth:`aborted_transactions` may have to look at."""
        return reading.aborted_count(self.state, start)

    def offset_by_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """T: the first local record at or behind the local log start that is not older."""
        return reading.offset_by_timestamp(self.state, timestamp_ms)

    # -- files ---------------------------------------------------------------------------------

    @property
    def is_unflushed(self) -> bool:
        """Whether anything of it is not on disk for good yet. Cheap: all logs are asked often."""
        log = self.state
        return log.bounds.recovery_point != log.bounds.end or bool(log.segments.unfinished)

    @property
    def needs_flush(self) -> bool:
        """Whether a closed segment, or ``flush.messages`` records, are not on disk for good yet."""
        return flushing.needs_flush(self.state)

    def flush(self, up_to_offset: int | None = None) -> int:
        """T: fsync all below ``up_to_offset`` (default: everything); the new recovery point.

        A failed fsync may have lost pages for good, so nothing is appended any more until the log
        is opened again (which checks every byte).
        """
        return flushing.flush(self.state, up_to_offset)

    def segment_files(self, base_offset: int) -> SegmentFiles:
        """T: the files of a closed segment, for copying (flush up to its end first)."""
        return flushing.segment_files(self.state, base_offset)

    def truncate_to(self, offset: int) -> bool:
        """T: cut the log so that it ends at ``offset``, or at the start of the batch that holds it.

        At or behind the log's end no record goes, but an epoch that begins at the end does: it is
        one in which this replica led and appended nothing. Whether anything went.
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
        """T: drop every local record; the log goes on at ``offset`` with the given log start (what
        lies between is in the tier), epochs and producers. ``recent_batches``: batches
        before ``offset``; the snapshot has only each producer's last one."""
        truncation.truncate_fully_and_start_at(
            self.state, offset, log_start_offset, epochs, producer_snapshot, recent_batches
        )

    def apply_retention(self, now_ms: int, *, tiered: TieredRetention | None) -> list[SegmentInfo]:
        """T: let go of the segments that ``log/retention.py`` names; what went."""
        return segment_expiry.apply_retention(self.state, now_ms, tiered)

    def reopen(self) -> bool:
        """T: after a failure, open the same files again and check every byte that may be in doubt,
        read from the disk and not from memory. False: bytes that the log held were lost.

        Until it is done the log refuses everything; bounds that clients saw do not go back.
        """
        return opening.reopen(self.state)

    def close(self) -> None:
        """T: flush everything and let go of the files. A closed log refuses all else.

        A log whose disk failed cannot be closed well (:class:`StorageError`): what it holds is in
        doubt, and no shutdown is clean that leaves it so.
        """
        flushing.close(self.state)

    def rename_for_deletion(self, sync_parent: Callable[[], None] | None = None) -> Path:
        """T: after this the log is gone for good, also after a crash; the name it has until then.

        Where it fails it may be called again.
        """
        return rename_log(self.state, sync_parent)
