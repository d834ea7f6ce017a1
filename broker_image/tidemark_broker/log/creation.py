"""Creation of a log's directory: made under a temporary name, synced, then renamed.

A crash leaves either no log or a complete one; the next start removes temporary names. Only
``partition.metadata`` and ``partition.state`` cannot be derived again, so only they are synced.
Files whose absence means the same as their empty content (indexes, epochs) are not written.
"""

import errno
import shutil
import uuid
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import write_partition_metadata
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import TEMPORARY_SUFFIX, put, sync_directory
from tidemark_broker.log.partition_state import PARTITION_STATE
from tidemark_broker.log.segment import Segment, wall_clock_ms


def make_directory(directory: Path, topic_id: uuid.UUID, state: bytes | None) -> Segment:
    """Create ``directory`` with an empty log and return its open segment. Blocks.

    ``state``: content of ``partition.state``, None for no such file. Everything but the name
    ``directory`` itself is durable: the caller syncs its parent.
    """
    # The random name keeps concurrent attempts and remains of a crash apart.
    making = directory.with_name(uuid.uuid4().hex + TEMPORARY_SUFFIX)
    segment: Segment | None = None
    try:
        with storage_errors(f"{directory} cannot be created"):
            making.mkdir(parents=True)
            put(making / names.PARTITION_METADATA, write_partition_metadata(topic_id).encode())
            if state is not None:
                put(making / PARTITION_STATE, state)
        segment = Segment.create(making, 0, created_ms=wall_clock_ms())
        # Sync the entries before the rename, so that the final name never shows a partial log.
        with storage_errors(f"{directory} cannot be created"):
            sync_directory(making)
        _rename(making, directory)
    except BaseException:
        if segment is not None:
            segment.unload()
        shutil.rmtree(making, ignore_errors=True)
        raise
    segment.moved_to(directory)
    return segment


def _rename(making: Path, directory: Path) -> None:
    """Rename to the final name. An empty directory of that name is replaced."""
    try:
        making.rename(directory)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise StorageError(f"{directory} is not empty: open it, or remove it first") from error
        raise StorageError(f"{directory} cannot be created: {error.strerror}") from error
