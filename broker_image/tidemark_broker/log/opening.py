"""Opening a log: one that is new, one that a run left, and one whose disk failed under it.

What opens may end below where it is known to begin, or to have been committed. Then it begins anew
where it is known to begin, and what it lost is noted, for whoever must not trust it.
"""

import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.bounds import Bounds
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.creation import make_directory
from tidemark_broker.log.deletion import sync_parent_of
from tidemark_broker.log.epoch_file import EpochFile
from tidemark_broker.log.errors import RESTORE_OR_COPY, LogError, RecordsMissing
from tidemark_broker.log.log_state import LogState
from tidemark_broker.log.open_segments import OpenSegments
from tidemark_broker.log.page_cache import forget_cached_pages
from tidemark_broker.log.producer_states import ProducerLimit
from tidemark_broker.log.recovery import LoadedSegments, load_segments
from tidemark_broker.log.segment import wall_clock_ms
from tidemark_broker.log.segment_list import SegmentList
from tidemark_broker.log.start_offsets import starts_of
from tidemark_broker.log.topic_id_file import check_topic_id
from tidemark_broker.log.truncation import truncate_fully_and_start_at

logger = logging.getLogger(__name__)


def create_log(
    directory: Path,
    *,
    topic: str,
    topic_id: uuid.UUID,
    partition: int,
    config: LogConfig,
    state: bytes | None = None,
    sync_parent: Callable[[], None] | None = None,
    open_segments: OpenSegments | None = None,
    producer_limit: ProducerLimit | None = None,
) -> LogState:
    """T: a new, empty log at offset 0. The directory must not exist, or be empty.

    ``state`` is the content of its ``partition.state``. All of it is durable on return;
    ``sync_parent`` is how the new name becomes so (several logs may share one fsync).
    """
    segments = SegmentList(directory, [make_directory(directory, topic_id, state)])
    log = LogState(
        directory,
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        config=config,
        open_segments=open_segments,
        producer_limit=producer_limit,
    )
    log.adopt(segments, LeaderEpochs(), EpochFile(directory), Bounds.empty(0, log_start=0))
    try:
        sync_parent_of(directory, sync_parent)
    except BaseException:  # or the next attempt would find a log that nobody owns
        log.let_go()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return log


def open_log(
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
    first_dirty: int | None = None,
    open_segments: OpenSegments | None = None,
    producer_limit: ProducerLimit | None = None,
) -> LogState:
    """T: open what is there and repair what a crash left.

    ``log_start_offset`` None (no checkpoint): the first local offset. A log start beyond the log's
    end begins the log anew there; the high watermark is clamped between the two. A first segment
    behind ``local_log_start_offset`` (None: not known) is a :class:`StorageError`: segments are
    missing that nobody deleted.
    """
    log = LogState(
        directory,
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        config=config,
        open_segments=open_segments,
        producer_limit=producer_limit,
    )
    log.first_dirty = first_dirty
    loaded = _load(
        log, recovery_point, log_start_offset, local_log_start_offset, clean_shutdown=clean_shutdown
    )
    start = loaded.segments[0].base_offset if log_start_offset is None else log_start_offset
    epoch_file, epochs = _load_epochs(log, loaded, start)
    bounds = Bounds.opened(
        *loaded.extent,
        log_start=start,
        recovery_point=recovery_point,
        high_watermark=high_watermark or 0,
    )
    log.adopt(SegmentList(directory, loaded.segments), epochs, epoch_file, bounds)
    _load_producers(log, loaded)
    end = bounds.end
    log.truncated_at_open = loaded.truncated or end < max(recovery_point, start)
    if max(start, end) < (high_watermark or 0):
        log.lost_at_open = (max(start, end), high_watermark or 0)
    if start > end:
        logger.warning("%s ends at %d, below its log start %d: begun anew", directory, end, start)
        _begin_anew(log, start, epochs)
    bases = [segment.base_offset for segment in log.segments.items]
    log.segments.snapshots.keep_only([*bases, log.bounds.end])
    return log


def reopen(log: LogState) -> bool:
    """T: see :meth:`PartitionLog.reopen`."""
    with log.shaping:
        return _reopen(log)


def _reopen(log: LogState) -> bool:
    with log.lock:
        log.let_go()
        former, record, truncations = log.bounds, log.start_record, log.truncations
        failure = log.failure
        held = former.end if log.kept_to is None else min(former.end, log.kept_to)
    forget_cached_pages(log.directory)
    # A truncation that failed half-way leaves either the old or the new first segment. The records
    # on disk allow for both, the bounds in memory may not.
    start, local_start = former.log_start, starts_of(log).local_log_start_offset
    loaded = _load(log, former.recovery_point, start, local_start, clean_shutdown=False)
    epoch_file, epochs = _load_epochs(log, loaded, start)
    bounds = Bounds.opened(
        *loaded.extent,
        log_start=start,
        recovery_point=former.recovery_point,
        high_watermark=former.high_watermark,
    )
    end = bounds.end
    with log.lock:
        if end < former.high_watermark:
            log.lost_at_open = (end, former.high_watermark)
        log.adopt(SegmentList(log.directory, loaded.segments), epochs, epoch_file, bounds)
        log.starts_ahead = log.cut_ahead = None
        try:
            _load_producers(log, loaded)
        except LogError:
            log.failure = failure  # otherwise it would not be retried
            raise
        log.start_record = log.start_record.not_durable_above(record.durable)
        log.truncations = truncations + 1
    if start > end:
        _begin_anew(log, start, epochs)
    logger.info("%s is open again, its end is %d (was %d)", log.directory, end, held)
    return end >= held


def _load(
    log: LogState,
    recovery_point: int,
    log_start: int | None,
    local_start: int | None,
    *,
    clean_shutdown: bool,
) -> LoadedSegments:
    check_topic_id(log.directory, log.topic_id)
    loaded = load_segments(
        log.directory,
        recovery_point=recovery_point,
        clean_shutdown=clean_shutdown,
        index_interval_bytes=log.config.index_interval_bytes,
        base_if_empty=log_start or 0,
        now_ms=wall_clock_ms(),
    )
    if local_start is not None:
        _check_first_segment(loaded, local_start)
    return loaded


def _load_epochs(
    log: LogState, loaded: LoadedSegments, start: int
) -> tuple[EpochFile, LeaderEpochs]:
    """The epochs from ``start`` on as file and batches tell them, which the file is to have."""
    epoch_file = EpochFile(log.directory)
    epochs = epoch_file.load(loaded, start)
    epoch_file.try_to_save(epochs)
    return epoch_file, epochs


def _load_producers(log: LogState, loaded: LoadedSegments) -> None:
    try:
        log.reload_producers(loaded.unindexed_from)
    except BaseException:
        log.let_go()
        raise


def _begin_anew(log: LogState, start: int, epochs: LeaderEpochs) -> None:
    """Of a log that ends below its start; ``epochs`` are those that begin there."""
    truncate_fully_and_start_at(log, start, start, ())
    log.epochs = epochs
    log.save_epochs()


def _check_first_segment(loaded: LoadedSegments, local_start: int) -> None:
    """What begins a log was committed long ago: a replica that lacks it must not serve as if it had
    been deleted."""
    first = loaded.segments[0]
    if first.base_offset <= local_start:
        return
    for segment in loaded.segments:
        segment.unload()
    raise RecordsMissing(
        f"{first.directory}: offsets {local_start} to {first.base_offset - 1} are missing at the "
        f"start of the log, and no deletion of them is on record; {RESTORE_OR_COPY}"
    )
