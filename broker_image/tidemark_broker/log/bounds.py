"""The offsets that bound one replica's log, and the rules by which they move.

Order that always holds: log start <= local log start <= high watermark <= log end. Bounds that
clients see never go back, except where a truncation takes back what was never committed.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.epoch_file import EpochFile
from tidemark_broker.log.errors import OffsetOutOfRange, StorageError
from tidemark_broker.log.log_starts import Starts
from tidemark_broker.log.open_segments import OpenSegments
from tidemark_broker.log.segment_list import SegmentList


class LogBounds:
    """State of a log and how its bounds move; :class:`PartitionLog` is the whole.

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
        open_segments: OpenSegments | None = None,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.config = config
        self.highest_remote_offset = -1
        #: Called (in a thread) to put on record where the log begins, durably.
        self.record_starts: Callable[[Starts], None] | None = None
        self._starts_ahead: Starts | None = None
        #: Called (in a thread) before a step that relies on checkpoints being as the log is now.
        self.persist_checkpoints: Callable[[], None] | None = None
        #: Whether opening had to cut bytes that a clean shutdown would have kept.
        self.truncated_at_open = False
        #: (end, former high watermark) where the log was opened below what it knew to be committed.
        self.lost_at_open: tuple[int, int] | None = None
        #: Guards what is in memory; held for no longer than that takes, as appends wait for it.
        self._lock = threading.RLock()
        #: Held by what changes files from a thread, one at a time; taken before ``_lock``.
        self._shaping = threading.RLock()
        self._truncations = 0
        self._open_segments = open_segments or OpenSegments()
        self._set(segments, epochs, epoch_file, log_start_offset, recovery_point, high_watermark)

    def _set(
        self,
        segments: SegmentList,
        epochs: LeaderEpochs,
        epoch_file: EpochFile,
        log_start_offset: int,
        recovery_point: int,
        high_watermark: int,
    ) -> None:
        """Segments as they were opened. What lies below the first of them was committed before it
        went, so the high watermark is never below the local log start."""
        self._segments = segments
        segments.share(self._open_segments, self._lock)
        self.epochs = epochs
        self._epoch_file = epoch_file
        self._next_offset = segments.active.next_offset
        self._recovery_point = min(recovery_point, self._next_offset)
        self._log_start_offset = log_start_offset
        #: Log start that a crash cannot take back (its checkpoint is on disk); set by the manager.
        self.durable_log_start_offset = log_start_offset
        #: The log start that is on record, announced ones included; set by the manager.
        self.checkpointed_log_start_offset = log_start_offset
        self._announced_log_start_offset = log_start_offset
        #: Records below are on disk for good, though checkpoints may not say so yet.
        self._synced_to = 0
        self._local_log_start_offset = max(log_start_offset, segments.items[0].base_offset)
        self._high_watermark = min(
            max(high_watermark, self._local_log_start_offset), self._next_offset
        )
        self._failure: str | None = None
        self._closed = False

    @property
    def log_start_offset(self) -> int:
        """First offset a client may see, in either tier."""
        return self._log_start_offset

    @property
    def announced_log_start_offset(self) -> int:
        """The log start that a checkpoint is to hold soon."""
        return max(self._log_start_offset, self._announced_log_start_offset)

    @property
    def has_start_to_sync(self) -> bool:
        """Whether records below an announced log start may not be on disk for good."""
        return self.announced_log_start_offset > self._recordable_log_start_offset

    @property
    def _recordable_log_start_offset(self) -> int:
        """A log start on record never lies behind the end that a crash leaves: such a log would
        have forgotten its epochs, and other replicas would give out again what was deleted here."""
        durable = max(self._recovery_point, self._synced_to)
        return max(self._log_start_offset, min(self._announced_log_start_offset, durable))

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
        """Exclusive end of what read_committed may see; the high watermark, without
        transactions."""
        return self._high_watermark

    @property
    def recovery_point(self) -> int:
        """Everything below is on disk for good."""
        return self._recovery_point

    @property
    def active_base_offset(self) -> int:
        """Where the active segment begins: another one after each roll."""
        return self._segments.active.base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all local log files."""
        return self._segments.size_bytes

    @property
    def failure(self) -> str | None:
        """Why the log takes nothing until it is opened again; None while all is well."""
        return self._failure

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

    def announce_log_start(self, offset: int) -> bool:
        """Have the log start raised once a checkpoint holds it, so that what clients were shown no
        crash takes back (invariant 2); bounded as :meth:`raise_log_start` is. Whether it is new."""
        with self._lock:
            if offset > self._high_watermark:
                raise OffsetOutOfRange(
                    f"log start {offset} is above the high watermark {self._high_watermark}"
                )
            if offset <= self.announced_log_start_offset:
                return False
            self._announced_log_start_offset = offset
            return True

    def adopt_checkpointed_log_start(self) -> bool:
        """What was announced and is in the checkpoint comes into force; whether the log start
        moved."""
        with self._lock:
            held = min(self.checkpointed_log_start_offset, self.announced_log_start_offset)
            moved = self.raise_log_start(held)
            self.durable_log_start_offset = max(self.durable_log_start_offset, held)
            return moved

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
        """T: a new leader's epoch begins at the log's end, even if nothing is ever appended in it.
        It is on disk before it is in use: a :class:`StorageError` leaves all as it was."""
        with self._shaping:
            with self._lock:
                self._check_usable()
                before = self.epochs
                if epoch <= before.latest_epoch:
                    return False
            if before.entries:  # the first one ever: a crash that takes it back takes nothing else
                self._epoch_file.save(before.assign(epoch, self._next_offset))
            with self._lock:
                self.epochs = self.epochs.assign(epoch, self._next_offset)
            return True

    def _lower_bounds(self, offset: int) -> None:
        """No bound stays above ``offset``; a recovery point that goes back is on disk before any
        file changes, lest a crash trust bytes that were written after it."""
        self._truncations += 1
        self._high_watermark = min(self._high_watermark, offset)
        self._log_start_offset = min(self._log_start_offset, offset)
        self._local_log_start_offset = min(self._local_log_start_offset, offset)
        self.durable_log_start_offset = min(self.durable_log_start_offset, offset)
        self.checkpointed_log_start_offset = min(self.checkpointed_log_start_offset, offset)
        self._announced_log_start_offset = min(self._announced_log_start_offset, offset)
        self._synced_to = min(self._synced_to, offset)
        if offset < self._recovery_point:
            self._recovery_point = offset
            self._persist_checkpoints()

    @property
    def starts(self) -> Starts:
        """Where it begins, as it goes on record: not below what is being recorded ahead of a
        removal. Takes no lock; a bound that moves meanwhile goes on record the next time."""
        log_start = self._recordable_log_start_offset
        local_start = max(self._local_log_start_offset, log_start)
        ahead = self._starts_ahead
        if ahead is None:
            return Starts(log_start, local_start)
        return Starts(
            max(log_start, ahead.log_start_offset),
            max(local_start, ahead.local_log_start_offset or 0),
        )

    def starts_recorded(self, starts: Starts) -> None:
        """That is on disk for good, or was and a later one is: records are written in their order,
        but the threads that wrote them may come in another one."""
        with self._lock:
            held = max(self.checkpointed_log_start_offset, starts.log_start_offset)
            self.checkpointed_log_start_offset = held
            self.durable_log_start_offset = min(held, self._log_start_offset)

    @contextmanager
    def _recorded_ahead(self, starts: Starts) -> Iterator[None]:
        """T: ``starts`` are on record, and nothing lower is recorded while files below them go. The
        caller holds ``_shaping``."""
        self._starts_ahead = starts
        try:
            if self.record_starts is not None:
                self.record_starts(starts)
            yield
        finally:
            self._starts_ahead = None

    def _persist_checkpoints(self) -> None:
        if self.persist_checkpoints is not None:
            self.persist_checkpoints()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)
        if self._closed:
            raise StorageError(f"{self.directory} is closed")
