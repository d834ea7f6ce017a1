"""File ``partition.metadata``: the topic id of a partition's directory."""

import uuid
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import CheckpointFormatError, read_partition_metadata
from tidemark_broker.log.errors import StorageError, storage_errors


def read_topic_id(directory: Path) -> uuid.UUID:
    """Return the topic id. Blocks. Raises :class:`StorageError` if it cannot be read."""
    path = directory / names.PARTITION_METADATA
    with storage_errors(f"{path} cannot be read"):
        text = path.read_text()
    try:
        return read_partition_metadata(text)
    except CheckpointFormatError as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def check_topic_id(directory: Path, topic_id: uuid.UUID) -> None:
    """Raise :class:`StorageError` if the directory is another topic's. Blocks."""
    stored = read_topic_id(directory)
    if stored != topic_id:
        raise StorageError(f"{directory} belongs to topic id {stored}, not to {topic_id}")
