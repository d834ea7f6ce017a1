"""A compacted segment takes the place of those it was made from; see :mod:`..swap_files` for the
names. Readers that have the old files open read on; whoever opens them by name at that moment looks
again (``log/reading.py``).
"""

from collections.abc import Sequence

from tidemark_broker.log.errors import LogError, StorageError, storage_errors
from tidemark_broker.log.files import remove_files, sync_directory
from tidemark_broker.log.log_state import LogState
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.swap_files import begin_swap, has_begun


def swap_in(log: LogState, sources: Sequence[Segment], cleaned: Segment) -> bool:
    """T: ``cleaned`` in place of ``sources``, which are segments of the log as they were when the
    cleaning began. False, and nothing done, where the log has not all of them any more. A swap that
    fails half-way leaves a log that has to be opened again, which finishes it."""
    with log.shaping:
        with log.lock:
            log.check_usable()
            if not _has_all(log, sources):
                return False
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


def _has_all(log: LogState, sources: Sequence[Segment]) -> bool:
    first = log.segments.number_of(sources[0].base_offset)
    return log.segments.items[first : first + len(sources)] == list(sources)


def _begin(log: LogState, cleaned: Segment) -> None:
    try:
        begin_swap(log.directory, cleaned.base_offset)
    except OSError as error:
        with log.lock:
            if not log.closed and has_begun(log.directory, cleaned.base_offset):
                raise _in_doubt(log, error) from error
        raise StorageError(f"{cleaned.log_path} cannot be replaced: {error.strerror}") from error


def _in_doubt(log: LogState, error: Exception) -> StorageError:
    """The log takes nothing until it was opened again: a swap that is finished much later would
    bring back what was cut off meanwhile."""
    log.failure = (
        f"{log.directory}: a compacted segment did not get into its place ({error}); the log takes "
        "nothing more until it was opened again"
    )
    log.let_go()
    return StorageError(log.failure)
