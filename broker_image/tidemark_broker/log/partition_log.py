"""State of one replica's log: the segments of one directory and the offsets that bound them.

The operations are in modules that import this one: appends in :mod:`appending`, reads in
:mod:`reading`, fsyncs in :mod:`flushing`, the log start in :mod:`start_offsets`, deletions by
retention in :mod:`retention`, truncations in :mod:`truncation`, and opening in :mod:`opening`.

The loop thread appends, and reads data that is in memory. Functions that say "Blocks." use the
disk; callers run them in a thread. A log whose disk failed in a way that leaves its files in doubt
refuses everything until :func:`opening.reopen`.

``lock`` guards the state in memory. It is held briefly, because appends on the loop wait for it.
Only truncations, which stop everything else on the log anyway, hold it during disk I/O.
``shaping`` is held by threads that change files, one at a time, and is taken before ``lock``.
Checkpoints rank between the two: a thread that requests one may hold ``shaping`` but not ``lock``,
because the checkpoint takes the ``lock`` of every log. A value is replaced as a whole, so a reader
of one value takes no lock.
"""

import uuid
from collections.abc import Callable
from pathlib import Path

from tidemark.logfiles.checkpoints import TopicPartition
from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.lock_order import LockRank, ordered_rlock
from tidemark_broker.log.bounds import LogBounds, StartRecord, Starts
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.epoch_file import EpochFile
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.producer_snapshots import rebuild
from tidemark_broker.log.producer_states import ActiveProducer, ProducerLimit, ProducerStates
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.segment_list import OpenSegments, SegmentList
from tidemark_broker.log.types import SegmentInfo


class PartitionLog:
    """State of one open log, created by :mod:`opening`.

    ``config`` may be replaced at any time. Outside this package only the properties, and the
    methods that take ``lock`` themselves, are used.
    """

    def __init__(
        self,
        directory: Path,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        segments: list[Segment],
        epochs: LeaderEpochs,
        epoch_file: EpochFile,
        bounds: LogBounds,
        first_dirty: int | None = None,
        open_segments: OpenSegments | None = None,
        producer_limit: ProducerLimit | None = None,
    ) -> None:
        """Create the state of a log whose segments, epochs and bounds were found or created.

        ``first_dirty``: end of the compacted part, None for none. ``open_segments`` and
        ``producer_limit`` are shared by all logs of a broker. The producers are loaded by
        :meth:`reload_producers`.
        """
        self.directory = directory
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.config = config
        #: Guards the state in memory.
        self.lock = ordered_rlock(LockRank.LOG)
        #: Held by the one thread that changes files.
        self.shaping = ordered_rlock(LockRank.SHAPING)
        #: Number of truncations: a reader without the lock detects one by comparing.
        self.truncations = 0
        #: Called (in a thread) to persist the log's starts durably.
        self.record_starts: Callable[[Starts], None] | None = None
        #: Called (in a thread) before a step that relies on checkpoints being as the log is now.
        self.persist_checkpoints: Callable[[], None] | None = None
        #: Starts after a removal in progress, and log end after a truncation in progress; None for
        #: none. From before the first file changes until the last one has, the checkpoints are
        #: written so that both the old and the new files match them. If the operation fails
        #: halfway, this continues until the log is open again.
        self.pending_starts: Starts | None = None
        self.pending_end: int | None = None
        #: Everything below was compacted at least once; None: nothing was.
        self.first_dirty = first_dirty
        #: Whether opening had to cut bytes that a clean shutdown would have kept.
        self.truncated_at_open = False
        #: (end, former high watermark) where the log was opened below what it knew to be committed.
        self.lost_at_open: tuple[int, int] | None = None
        #: Last offset in the tier (inclusive), -1 for none. Stored for callers only.
        self.highest_remote_offset = -1
        #: Whether a transaction was ever aborted here. Few logs need a search for aborted ones.
        self.has_aborted = False
        #: State of producers and their transactions.
        self.producers = ProducerStates(producer_limit)
        self._open_segments = open_segments or OpenSegments()
        self.use_files(segments, epochs, epoch_file, bounds)

    def use_files(
        self,
        segments: list[Segment],
        epochs: LeaderEpochs,
        epoch_file: EpochFile,
        bounds: LogBounds,
    ) -> None:
        """Start from the files that were opened or created: at first, and after a failure.

        The records are contiguous from the local log start to the end (invariant 4).
        """
        assert segments[0].base_offset <= bounds.local_start, (segments[0], bounds)
        assert segments[-1].next_offset == bounds.end, (segments[-1].next_offset, bounds)
        self.segments = SegmentList(self.directory, segments, self._open_segments, self.lock)
        self.epochs = epochs
        self.epoch_file = epoch_file
        #: All bounding offsets, as one consistent value.
        self.bounds = bounds
        self.start_record = StartRecord.of(bounds.log_start)
        self._lower_first_dirty(bounds.end)
        #: Reason why the log refuses everything until it is opened again, or None.
        self.failure: str | None = None
        #: End that a failed log must reach once it is open again; None: its former end.
        self.required_end: int | None = None
        self.closed = False

    # -- figures -------------------------------------------------------------------------------

    @property
    def key(self) -> TopicPartition:
        """Topic and partition, the log's key in its directory."""
        return self.topic, self.partition

    @property
    def log_start_offset(self) -> int:
        """First offset a client may see, in either tier."""
        return self.bounds.log_start

    @property
    def local_log_start_offset(self) -> int:
        """First offset that is read from the local tier."""
        return self.bounds.local_start

    @property
    def next_offset(self) -> int:
        """The log end offset."""
        return self.bounds.end

    @property
    def high_watermark(self) -> int:
        """Exclusive end of the committed records, as this replica knows it."""
        return self.bounds.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of the records that read_committed consumers may see (KIP-98).

        This is the first offset of a transaction that is open, or whose marker is not committed
        yet, if that is below the high watermark. Otherwise it is the high watermark.
        """
        bounds, unstable = self.bounds, self.producers.first_unstable_offset
        if unstable is None or unstable >= bounds.high_watermark:
            return bounds.high_watermark
        return max(unstable, bounds.log_start)

    @property
    def recovery_point(self) -> int:
        """Offset below which everything is durable on disk."""
        return self.bounds.recovery_point

    @property
    def announced_log_start_offset(self) -> int:
        """Log start that a checkpoint is to persist soon."""
        return self.start_record.target(self.bounds)

    @property
    def durable_log_start_offset(self) -> int:
        """Log start that a crash cannot undo, because a checkpoint persists it."""
        return self.start_record.durable

    @property
    def active_base_offset(self) -> int:
        """Base offset of the active segment; each roll changes it."""
        return self.segments.active.base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all local log files."""
        return self.segments.size_bytes

    @property
    def segment_count(self) -> int:
        """Number of local segments, the active one included."""
        return len(self.segments.items)

    @property
    def is_unflushed(self) -> bool:
        """Whether some data of the log is not durable yet.

        Cheap, because the flusher polls every log.
        """
        return self.bounds.recovery_point != self.bounds.end or bool(self.segments.unfinished)

    def segment_infos(self, offset: int = 0, count: int | None = None) -> tuple[SegmentInfo, ...]:
        """Return the segments from the one that contains ``offset``, at most ``count`` of them.

        They are oldest first; the last one of the log is active. An offset below all segments
        selects the first one.
        """
        with self.lock:
            return self.segments.infos(self.segments.number_of(offset), count)

    # -- whether it can be used ----------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise :class:`StorageError` for a log that failed, or is closed."""
        if self.failure is not None:
            raise StorageError(self.failure)
        if self.closed:
            raise StorageError(f"{self.directory} is closed")

    def close_files(self) -> None:
        """Close the files and refuse everything from now on."""
        with self.lock:
            self.closed = True
            self.segments.unload_all()
            self.producers.forget()

    # -- segments and producers ----------------------------------------------------------------

    def start_segment(self, base_offset: int, now_ms: int) -> None:
        """Start a new segment at ``base_offset``. The caller holds ``lock``."""
        self.segments.roll(base_offset, now_ms, self.producers.snapshot())

    def reload_producers(self, indexed_below: int | None = None) -> None:
        """Rebuild the producers' state from the batches, after these have changed; see
        :func:`rebuild`. Blocks.
        """
        rebuild(
            self.producers,
            self.segments.snapshots,
            self.segments.items,
            indexed_below=self.bounds.end + 1 if indexed_below is None else indexed_below,
            high_watermark=self.bounds.high_watermark,
        )
        self.has_aborted = any(len(item.aborted) for item in self.segments.items)

    def active_producers(self, most: int | None = None) -> list[ActiveProducer]:
        """Return the rows of DescribeProducers: every producer, or the ``most`` that wrote last."""
        with self.lock:
            return list(self.producers.active(most))

    def expire_producers(self, now_ms: int, idle_ms: int) -> None:
        """Drop the state of producers that have been idle for ``idle_ms``."""
        with self.lock:
            self.producers.expire(now_ms, idle_ms)

    # -- bounds --------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to ``offset``, at most to the log end. It never falls.

        Return whether it moved.
        """
        with self.lock:
            before, self.bounds = self.bounds, self.bounds.committed(offset)
            if self.bounds is before:
                return False
            self.producers.on_high_watermark(self.bounds.high_watermark)
            return True

    def move_log_start(self, bounds: LogBounds) -> None:
        """Set ``bounds`` and drop the epochs below the log start. The caller holds ``lock``."""
        self.bounds = bounds
        self.epochs = self.epochs.truncate_from_start(bounds.log_start)

    def lower_bounds(self, offset: int) -> None:
        """Lower all bounds but the end to ``offset``, as ``pending_end`` recorded.

        The caller holds both locks.
        """
        self.truncations += 1
        self.bounds = self.bounds.lowered(offset)
        self.start_record = self.start_record.lowered(offset)
        self._lower_first_dirty(offset)

    def _lower_first_dirty(self, offset: int) -> None:
        """Mark everything from ``offset`` as not compacted."""
        if self.first_dirty is not None:
            self.first_dirty = min(self.first_dirty, offset)

    # -- checkpoints ---------------------------------------------------------------------------

    @property
    def checkpoint_bounds(self) -> LogBounds:
        """Bounds for the checkpoints: a truncation in progress counts as done."""
        bounds, pending_end = self.bounds, self.pending_end
        return bounds if pending_end is None else bounds.lowered(pending_end)

    @property
    def checkpoint_first_dirty(self) -> int | None:
        """``first_dirty`` for its checkpoint: a truncation in progress counts as done."""
        dirty, pending_end = self.first_dirty, self.pending_end
        return dirty if dirty is None or pending_end is None else min(dirty, pending_end)

    def checkpoint(self) -> None:
        """Make the checkpoints match the log. Blocks."""
        if self.persist_checkpoints is not None:
            self.persist_checkpoints()

    # -- leader epochs -------------------------------------------------------------------------

    def save_epochs(self) -> None:
        """Save the epochs. Blocks. ``shaping`` prevents that an older history replaces a newer
        one."""
        with self.shaping:
            self.epoch_file.save(self.epochs)

    def assign_leader_epoch(self, epoch: int) -> bool:
        """Start a leader epoch at the log end, even if no record is ever appended in it. Blocks.

        Return False if it is not newer. The epoch is on disk before it takes effect, unless it is
        the log's first one. A :class:`StorageError` leaves everything unchanged.
        """
        with self.shaping:
            with self.lock:
                self.check_usable()
                before = self.epochs
                if epoch <= before.latest_epoch:
                    return False
            # A crash that undoes a log's first epoch undoes nothing else: it needs no fsync.
            if before.entries:
                self.epoch_file.save(before.assign(epoch, self.bounds.end))
            with self.lock:
                self.epochs = self.epochs.assign(epoch, self.bounds.end)
            return True
