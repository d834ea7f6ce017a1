"""Replacement of segments by the compacted one that was made from them; :mod:`..swap_files` has the
file names.

Readers that have the old files open continue. A reader that opens them by name at that moment
retries (``log/reading.py``).
"""

from collections.abc import Sequence

from tidemark_broker.log.errors import LogError, StorageError, storage_errors
from tidemark_broker.log.files import remove_files, sync_directory
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.swap_files import begin_swap, has_begun


def swap_in(log: PartitionLog, sources: Sequence[Segment], cleaned: Segment) -> bool:
    """Replace ``sources`` in the log by ``cleaned``, the compacted segment made from them. Blocks.

    Return False, with nothing changed, if the log does not have all sources any more. A swap that
    fails halfway leaves a log that must be reopened, which completes the swap.
    """
    with log.shaping:
        with log.lock:
            log.check_usable()
            # Retention or a truncation may have removed a source since the cleaning began.
            if not _has_all(log, sources):
                return False
        # From here the swap is on disk: a crash completes it at the next start.
        _begin(log, cleaned)
        with log.lock:
            log.check_usable()
            try:
                renamed = log.segments.swap(sources, cleaned)
            except LogError as error:
                raise _in_doubt(log, error) from error
        with storage_errors(f"{log.directory} cannot be synced"):
            sync_directory(log.directory)
    remove_files(renamed)
    return True


def _has_all(log: PartitionLog, sources: Sequence[Segment]) -> bool:
    first = log.segments.number_of(sources[0].base_offset)
    return log.segments.items[first : first + len(sources)] == list(sources)


def _begin(log: PartitionLog, cleaned: Segment) -> None:
    try:
        begin_swap(log.directory, cleaned.base_offset)
    except OSError as error:
        with log.lock:
            # Once the .swap log exists, the next opening completes the swap.
            if not log.closed and has_begun(log.directory, cleaned.base_offset):
                raise _in_doubt(log, error) from error
        raise StorageError(f"{cleaned.log_path} cannot be replaced: {error.strerror}") from error


def _in_doubt(log: PartitionLog, error: Exception) -> StorageError:
    """Mark the log as failed until it is reopened.

    A swap that completes much later would restore records that were cut off meanwhile.
    """
    log.failure = (
        f"{log.directory}: a compacted segment could not replace its sources ({error}); the log "
        "takes nothing more until it was opened again"
    )
    log.close_files()
    return StorageError(log.failure)
