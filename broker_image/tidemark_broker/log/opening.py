"""Opening of a log: a new one, one of a former run, or one whose disk failed.

A new directory is made under a temporary name, synced, then renamed. A crash leaves either no log
or a complete one; the next start removes temporary names. Only ``partition.metadata`` and
``partition.state`` cannot be derived again, so only they are synced. Files whose absence means the
same as their empty content (indexes, epochs) are not written.

An existing log may open with an end below its known start or below its former high watermark. Then
it restarts empty at its known start, and the loss is recorded for replication.
"""

import errno
import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import write_partition_metadata
from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.bounds import LogBounds
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.directory_files import PARTITION_STATE, check_topic_id
from tidemark_broker.log.epoch_file import EpochFile
from tidemark_broker.log.errors import (
    RESTORE_OR_COPY,
    LogError,
    RecordsMissing,
    StorageError,
    storage_errors,
)
from tidemark_broker.log.files import TEMPORARY_SUFFIX, forget_cached_pages, put, sync_directory
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.producer_states import ProducerLimit
from tidemark_broker.log.recovery import LoadedSegments, load_segments
from tidemark_broker.log.segment import Segment, wall_clock_ms
from tidemark_broker.log.segment_list import OpenSegments
from tidemark_broker.log.start_offsets import starts_of
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
) -> PartitionLog:
    """Create an empty log at offset 0. Blocks. The directory must not exist, or be empty.

    ``state``: content of its ``partition.state``, None for no such file. Everything is durable on
    return. ``sync_parent`` makes the new directory name durable (None: an fsync of its own), so
    that several logs may share one fsync.
    """
    log = PartitionLog(
        directory,
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        config=config,
        segments=[create_directory(directory, topic_id, state)],
        epochs=LeaderEpochs(),
        epoch_file=EpochFile(directory),
        bounds=LogBounds.empty(0, log_start=0),
        open_segments=open_segments,
        producer_limit=producer_limit,
    )
    try:
        sync_parent_of(directory, sync_parent)
    except BaseException:  # otherwise the next attempt would find a log without an owner
        log.close_files()
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
) -> PartitionLog:
    """Open an existing log directory and repair the effects of a crash. Blocks.

    The offsets are from the checkpoints. ``log_start_offset`` None (no checkpoint): the first local
    offset. If the log start is above the log end, the log restarts empty at its start. The high
    watermark is limited to the range between the two. ``first_dirty``: end of the compacted part,
    None for none.

    Raises :class:`RecordsMissing` if the first segment is above ``local_log_start_offset`` (None:
    unknown), since nothing deleted the segments before it.
    """
    loaded = _load(
        directory,
        topic_id,
        config,
        recovery_point,
        log_start_offset,
        local_log_start_offset,
        clean_shutdown=clean_shutdown,
    )
    # Without a checkpoint nothing older is known than the first record on disk.
    start = loaded.segments[0].base_offset if log_start_offset is None else log_start_offset
    epoch_file, epochs = _load_epochs(directory, loaded, start)
    # Checkpoints may lag behind or be ahead of the files; the files decide.
    bounds = LogBounds.opened(
        *loaded.extent,
        log_start=start,
        recovery_point=recovery_point,
        high_watermark=high_watermark or 0,
    )
    log = PartitionLog(
        directory,
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        config=config,
        segments=loaded.segments,
        epochs=epochs,
        epoch_file=epoch_file,
        bounds=bounds,
        first_dirty=first_dirty,
        open_segments=open_segments,
        producer_limit=producer_limit,
    )
    # Producers are rebuilt from the segments, within the bounds.
    _load_producers(log, loaded)
    end = bounds.end
    # Truncated bytes and a lost high watermark are reported: replication must not trust this log.
    log.truncated_at_open = loaded.truncated or end < max(recovery_point, start)
    if max(start, end) < (high_watermark or 0):
        log.lost_at_open = (max(start, end), high_watermark or 0)
    if start > end:
        logger.warning(
            "%s ends at %d, below its log start %d: it restarts empty there", directory, end, start
        )
        _restart_empty(log, start, epochs)
    # Producer snapshots between segments would be wrong after a truncation.
    bases = [segment.base_offset for segment in log.segments.items]
    log.segments.snapshots.keep_only([*bases, log.bounds.end])
    return log


def reopen(log: PartitionLog) -> bool:
    """Open a failed log again and check every byte that may be in doubt. Blocks.

    The bytes are read from the disk, not from the page cache. Return whether all records of the log
    are still there. Until then the log refuses everything. Bounds that clients saw do not fall.
    """
    with log.shaping:
        with log.lock:
            # Close first: the files must be opened again and nothing may append meanwhile.
            log.close_files()
            former, record, truncations = log.bounds, log.start_record, log.truncations
            failure = log.failure
            # Records that a failed truncation was to remove are not missed.
            expected_end = (
                former.end if log.required_end is None else min(former.end, log.required_end)
            )
        # After a failed fsync the page cache may show bytes that never reached the disk.
        forget_cached_pages(log.directory)
        # A truncation that failed halfway leaves either the old or the new first segment. The
        # persisted starts match both, the bounds in memory may not.
        start, local_start = former.log_start, starts_of(log).local_log_start_offset
        loaded = _load(
            log.directory,
            log.topic_id,
            log.config,
            former.recovery_point,
            start,
            local_start,
            clean_shutdown=False,
        )
        epoch_file, epochs = _load_epochs(log.directory, loaded, start)
        bounds = LogBounds.opened(
            *loaded.extent,
            log_start=start,
            recovery_point=former.recovery_point,
            high_watermark=former.high_watermark,
        )
        end = bounds.end
        with log.lock:
            # Committed records are lost: replication must know, because this replica may be in the
            # ISR.
            if end < former.high_watermark:
                log.lost_at_open = (end, former.high_watermark)
            log.use_files(loaded.segments, epochs, epoch_file, bounds)
            log.pending_starts = log.pending_end = None
            try:
                _load_producers(log, loaded)
            except LogError:
                log.failure = failure  # keep it marked as failed, so that the reopening is retried
                raise
            log.start_record = log.start_record.not_durable_above(record.durable)
            # Readers that began before the failure must retry.
            log.truncations = truncations + 1
        # As in open_log: an end below the log start leaves no usable record.
        if start > end:
            _restart_empty(log, start, epochs)
        logger.info("%s is open again, its end is %d (was %d)", log.directory, end, expected_end)
        return end >= expected_end


def _load(
    directory: Path,
    topic_id: uuid.UUID,
    config: LogConfig,
    recovery_point: int,
    log_start: int | None,
    local_start: int | None,
    *,
    clean_shutdown: bool,
) -> LoadedSegments:
    """Load a log's segments from its directory, and check their start. Blocks.

    ``log_start`` and ``local_start`` are from the checkpoints, None for unknown. Raises
    RecordsMissing if segments at the start are missing that nothing deleted.
    """
    # The name may belong to a recreated topic, whose records these are not.
    check_topic_id(directory, topic_id)
    loaded = load_segments(
        directory,
        recovery_point=recovery_point,
        clean_shutdown=clean_shutdown,
        index_interval_bytes=config.index_interval_bytes,
        base_if_empty=log_start or 0,
        now_ms=wall_clock_ms(),
    )
    if local_start is not None:
        _check_first_segment(loaded, local_start)
    return loaded


def _load_epochs(
    directory: Path, loaded: LoadedSegments, start: int
) -> tuple[EpochFile, LeaderEpochs]:
    """Return the epochs from ``start``, merged from file and batches, and save them to the file."""
    epoch_file = EpochFile(directory)
    epochs = epoch_file.load(loaded.epochs, loaded.extent[1], start)
    epoch_file.try_to_save(epochs)
    return epoch_file, epochs


def _load_producers(log: PartitionLog, loaded: LoadedSegments) -> None:
    try:
        log.reload_producers(loaded.unindexed_from)
    except BaseException:
        log.close_files()
        raise


def _restart_empty(log: PartitionLog, start: int, epochs: LeaderEpochs) -> None:
    """Restart a log that ends below its start; ``epochs`` are those from there."""
    truncate_fully_and_start_at(log, start, log_start_offset=start, epochs=())
    log.epochs = epochs
    log.save_epochs()


def _check_first_segment(loaded: LoadedSegments, local_start: int) -> None:
    """Raise if the first segment is above ``local_start``.

    Its records were committed, so a replica that lacks them must not serve as if they were deleted.
    """
    first = loaded.segments[0]
    if first.base_offset <= local_start:
        return
    for segment in loaded.segments:
        segment.unload()
    raise RecordsMissing(
        f"{first.directory}: offsets {local_start} to {first.base_offset - 1} are missing at the "
        f"start of the log, and no deletion of them is recorded; {RESTORE_OR_COPY}"
    )


def create_directory(directory: Path, topic_id: uuid.UUID, state: bytes | None) -> Segment:
    """Create ``directory`` with an empty log and return its open segment. Blocks.

    ``state``: content of ``partition.state``, None for no such file. Everything but the name
    ``directory`` itself is durable: the caller syncs its parent.
    """
    # The random name keeps concurrent attempts and remains of a crash apart.
    temporary = directory.with_name(uuid.uuid4().hex + TEMPORARY_SUFFIX)
    segment: Segment | None = None
    try:
        with storage_errors(f"{directory} cannot be created"):
            temporary.mkdir(parents=True)
            put(temporary / names.PARTITION_METADATA, write_partition_metadata(topic_id).encode())
            if state is not None:
                put(temporary / PARTITION_STATE, state)
        segment = Segment.create(temporary, 0, created_ms=wall_clock_ms())
        # Sync the entries before the rename, so that the final name never shows a partial log.
        with storage_errors(f"{directory} cannot be created"):
            sync_directory(temporary)
        _rename(temporary, directory)
    except BaseException:
        if segment is not None:
            segment.unload()
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    segment.moved_to(directory)
    return segment


def _rename(temporary: Path, directory: Path) -> None:
    """Rename to the final name. An empty directory of that name is replaced."""
    try:
        temporary.rename(directory)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise StorageError(f"{directory} is not empty: open it, or remove it first") from error
        raise StorageError(f"{directory} cannot be created: {error.strerror}") from error


def sync_parent_of(directory: Path, sync_parent: Callable[[], None] | None) -> None:
    """Make a new name durable; ``sync_parent`` does it for several at once. Blocks."""
    if sync_parent is not None:
        sync_parent()
        return
    with storage_errors(f"{directory.parent} cannot be synced"):
        sync_directory(directory.parent)
