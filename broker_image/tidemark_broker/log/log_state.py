"""Shared state of one open log: its bounds, epochs, segments and locks.

``lock`` guards the state in memory. It is held briefly, because appends on the loop wait for it.
``shaping`` is held by threads that change files, one at a time, and is taken before ``lock``.
Checkpoints rank between the two: a thread that requests one may hold ``shaping`` but not ``lock``,
because the checkpoint takes the ``lock`` of every log. A value is replaced as a whole, so a reader
of one value takes no lock.
"""

import uuid
from collections.abc import Callable
from pathlib import Path

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.lock_order import LockRank, ordered_rlock
from tidemark_broker.log.bounds import LogBounds
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.epoch_file import EpochFile
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.log_starts import Starts
from tidemark_broker.log.open_segments import OpenSegments
from tidemark_broker.log.producer_replay import rebuild
from tidemark_broker.log.producer_states import ProducerLimit, ProducerStates
from tidemark_broker.log.segment_list import SegmentList
from tidemark_broker.log.start_record import StartRecord


class LogState:
    """State of one open log, shared by the modules that implement its operations."""

    def __init__(
        self,
        directory: Path,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        open_segments: OpenSegments | None = None,
        producer_limit: ProducerLimit | None = None,
    ) -> None:
        """Create the state without records; :meth:`adopt` adds what was found on disk.

        ``open_segments`` and ``producer_limit`` are shared by all logs of a broker.
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
        self.starts_ahead: Starts | None = None
        self.cut_ahead: int | None = None
        #: Everything below was compacted at least once; None: nothing was.
        self.first_dirty: int | None = None
        #: Whether opening had to cut bytes that a clean shutdown would have kept.
        self.truncated_at_open = False
        #: (end, former high watermark) where the log was opened below what it knew to be committed.
        self.lost_at_open: tuple[int, int] | None = None
        self._open_segments = open_segments or OpenSegments()
        #: Whether a transaction was ever aborted here. Few logs need a search for aborted ones.
        self.has_aborted = False
        #: State of producers and their transactions.
        self.producers = ProducerStates(producer_limit)

    def adopt(
        self, segments: SegmentList, epochs: LeaderEpochs, epoch_file: EpochFile, bounds: LogBounds
    ) -> None:
        """Set the segments, epochs and bounds that were found on disk or created.

        The records are contiguous from the local log start to the end (invariant 4).
        """
        assert segments.items[0].base_offset <= bounds.local_start, (segments.items[0], bounds)
        assert segments.active.next_offset == bounds.end, (segments.active.next_offset, bounds)
        self.segments = segments
        segments.share(self._open_segments, self.lock)
        self.epochs = epochs
        self.epoch_file = epoch_file
        self.bounds = bounds
        self.start_record = StartRecord.of(bounds.log_start)
        self._lower_first_dirty(bounds.end)
        #: Reason why the log refuses everything until it is opened again, or None.
        self.failure: str | None = None
        #: End that a failed log must reach once it is open again; None: its former end.
        self.kept_to: int | None = None
        self.closed = False

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

    # -- segments, and what they tell of producers ---------------------------------------------

    def roll(self, base_offset: int, now_ms: int) -> None:
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

    # -- bounds --------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of the records that read_committed consumers may see (KIP-98)."""
        bounds, unstable = self.bounds, self.producers.first_unstable_offset
        if unstable is None or unstable >= bounds.high_watermark:
            return bounds.high_watermark
        return max(unstable, bounds.log_start)

    def commit(self, offset: int) -> bool:
        """Raise the high watermark to ``offset``. Return whether it moved."""
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

    @property
    def bounds_on_record(self) -> LogBounds:
        """Bounds for the checkpoints: a truncation in progress counts as done."""
        bounds, cut_ahead = self.bounds, self.cut_ahead
        return bounds if cut_ahead is None else bounds.lowered(cut_ahead)

    @property
    def first_dirty_on_record(self) -> int | None:
        """``first_dirty`` for its checkpoint: a truncation in progress counts as done."""
        dirty, cut_ahead = self.first_dirty, self.cut_ahead
        return dirty if dirty is None or cut_ahead is None else min(dirty, cut_ahead)

    def lower_bounds(self, offset: int) -> None:
        """Lower all bounds but the end to ``offset``, as ``cut_ahead`` recorded. The caller holds
        both locks."""
        self.truncations += 1
        self.bounds = self.bounds.lowered(offset)
        self.start_record = self.start_record.lowered(offset)
        self._lower_first_dirty(offset)

    def _lower_first_dirty(self, offset: int) -> None:
        """Mark everything from ``offset`` as not compacted."""
        if self.first_dirty is not None:
            self.first_dirty = min(self.first_dirty, offset)

    def checkpoint(self) -> None:
        """Make the checkpoints match the log. Blocks."""
        if self.persist_checkpoints is not None:
            self.persist_checkpoints()

    def save_epochs(self) -> None:
        """Save the epochs. Blocks. ``shaping`` prevents that an older history replaces a newer
        one."""
        with self.shaping:
            self.epoch_file.save(self.epochs)

    def assign_leader_epoch(self, epoch: int) -> bool:
        """Start a leader epoch at the log end; return False if it is not newer. Blocks.

        It implements :meth:`PartitionLog.assign_leader_epoch`. The epoch is durable on return,
        unless it is the first one.
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
