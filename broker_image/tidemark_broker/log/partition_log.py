"""One replica's log: the segments of one directory and the offsets that bound them.

The loop thread appends, and reads what is in memory; calls marked T block on the disk and are run
in a thread by their callers. A lock guards what is in memory; T calls hold it no longer than that
takes, except truncations, which stop everything else on the log anyway. A log whose disk failed in
a way that leaves its files in doubt refuses everything until :meth:`PartitionLog.reopen`.
"""

import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.creation import make_directory
from tidemark_broker.log.deletion import (
    remove_renamed,
    rename_out_of_the_way,
    sync_parent_of,
)
from tidemark_broker.log.epoch_file import EpochFile
from tidemark_broker.log.errors import RESTORE_OR_COPY, StorageError
from tidemark_broker.log.open_segments import OpenSegments
from tidemark_broker.log.reading import ReadingLog
from tidemark_broker.log.recovery import LoadedSegments, forget_cached_pages, load_segments
from tidemark_broker.log.segment import wall_clock_ms
from tidemark_broker.log.segment_list import SegmentList
from tidemark_broker.log.topic_id_file import check_topic_id

logger = logging.getLogger(__name__)


class PartitionLog(ReadingLog):
    """Append, read, roll, truncate, delete; see the module for who may call what from where."""

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
        state: bytes | None = None,
        sync_parent: Callable[[], None] | None = None,
        open_segments: OpenSegments | None = None,
    ) -> "PartitionLog":
        """T: a new, empty log at offset 0. The directory must not exist, or be empty.

        ``state`` is the content of its ``partition.state``. All of it is durable on return;
        ``sync_parent`` is how the new name becomes so (several logs may share one fsync).
        """
        segment = make_directory(directory, topic_id, state)
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
            open_segments=open_segments,
        )
        try:
            sync_parent_of(directory, sync_parent)
        except BaseException:  # or the next attempt would find a log that nobody owns
            log._let_go()
            shutil.rmtree(directory, ignore_errors=True)
            raise
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
        local_log_start_offset: int | None = None,
        high_watermark: int | None = None,
        open_segments: OpenSegments | None = None,
    ) -> "PartitionLog":
        """T: open what is there and repair what a crash left.

        ``log_start_offset`` None (no checkpoint): the first local offset. A log start beyond the
        log's end begins the log anew there; the high watermark is clamped between the two. A first
        segment behind ``local_log_start_offset`` (None: not known) is a :class:`StorageError`:
        segments are missing that nobody deleted.
        """
        check_topic_id(directory, topic_id)
        loaded = load_segments(
            directory,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
            index_interval_bytes=config.index_interval_bytes,
            base_if_empty=log_start_offset or 0,
            now_ms=wall_clock_ms(),
        )
        if local_log_start_offset is not None:
            _check_first_segment(loaded, local_log_start_offset)
        end = loaded.segments[-1].next_offset
        epoch_file = EpochFile(directory)
        start = loaded.segments[0].base_offset if log_start_offset is None else log_start_offset
        epochs = epoch_file.load(loaded, start)
        log = cls(
            directory,
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            config=config,
            segments=SegmentList(directory, loaded.segments),
            epochs=epochs,
            epoch_file=epoch_file,
            log_start_offset=min(start, end),
            recovery_point=recovery_point,
            high_watermark=high_watermark or 0,
            open_segments=open_segments,
        )
        log.truncated_at_open = loaded.truncated or end < recovery_point
        if max(start, end) < (high_watermark or 0):
            log.lost_at_open = (max(start, end), high_watermark or 0)
        epoch_file.try_to_save(log.epochs)
        if start > end:
            logger.warning(
                "%s ends at %d, below its log start %d: begun anew", directory, end, start
            )
            log.truncated_at_open = True
            log._begin_anew(start, epochs)
        log._segments.remove_snapshots_above(log.next_offset)
        return log

    def reopen(self) -> bool:
        """T: after a failure, open the same files again and check every byte that may be in doubt,
        read from the disk and not from memory. False: bytes that the log held were lost.

        Until it is done the log refuses everything; bounds that clients saw do not go back.
        """
        with self._lock:
            self._let_go()
            held, truncations = self._next_offset, self._truncations
        forget_cached_pages(self.directory)
        check_topic_id(self.directory, self.topic_id)
        loaded = load_segments(
            self.directory,
            recovery_point=self._recovery_point,
            clean_shutdown=False,
            index_interval_bytes=self.config.index_interval_bytes,
            base_if_empty=self._log_start_offset,
            now_ms=wall_clock_ms(),
        )
        _check_first_segment(loaded, self._local_log_start_offset)
        epoch_file = EpochFile(self.directory)
        epochs = epoch_file.load(loaded, self._log_start_offset)
        epoch_file.try_to_save(epochs)
        end = loaded.segments[-1].next_offset
        with self._lock:
            if end < self._high_watermark:
                self.lost_at_open = (end, self._high_watermark)
            start, durable = self._log_start_offset, self.durable_log_start_offset
            self._set(
                SegmentList(self.directory, loaded.segments),
                epochs,
                epoch_file,
                min(start, end),
                self._recovery_point,
                self._high_watermark,
            )
            self.durable_log_start_offset = min(durable, self._log_start_offset)
            self._truncations = truncations + 1
        if start > end:
            self._begin_anew(start, epochs)
        logger.info("%s is open again, its end is %d (was %d)", self.directory, end, held)
        return end >= held

    def _begin_anew(self, start: int, epochs: LeaderEpochs) -> None:
        """Of a log that ends below its start; ``epochs`` are those that begin there."""
        self.truncate_fully_and_start_at(start, log_start_offset=start, epochs=())
        self.epochs = epochs
        self._save_epochs()

    # -- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """T: flush everything and let go of the files. A closed log refuses all else.

        A log whose disk failed cannot be closed well (:class:`StorageError`): what it holds is in
        doubt, and no shutdown is clean that leaves it so.
        """
        if self._failure is not None:
            self._let_go()
            raise StorageError(self._failure)
        if self._closed:
            return
        try:
            with self._shaping:
                self._save_indexes(closing=True)
                self.flush()
                self._save_epochs()
        finally:
            self._let_go()

    def delete(self) -> None:
        """T: rename the directory out of the way, then remove it."""
        remove_renamed(self.rename_for_deletion())

    def rename_for_deletion(self, sync_parent: Callable[[], None] | None = None) -> Path:
        """T: after this the log is gone for good, also after a crash; the name it has until then.

        Where it fails it may be called again.
        """
        self._let_go()
        self.directory = rename_out_of_the_way(self.directory, self.topic, self.partition)
        sync_parent_of(self.directory, sync_parent)
        return self.directory


def _check_first_segment(loaded: LoadedSegments, local_start: int) -> None:
    """What begins a log was committed long ago: a replica that lacks it must not serve as if it had
    been deleted."""
    first = loaded.segments[0]
    if first.base_offset <= local_start:
        return
    for segment in loaded.segments:
        segment.unload()
    raise StorageError(
        f"{first.directory}: offsets {local_start} to {first.base_offset - 1} are missing at the "
        f"start of the log, and no deletion of them is on record; {RESTORE_OR_COPY}"
    )
