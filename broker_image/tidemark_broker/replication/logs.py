"""What replicas need of the log folder: making a log and removing one (both block)."""

import uuid
from typing import Protocol

from tidemark_broker.log import LogConfig, PartitionLog


class LogStore(Protocol):
    """Implemented by the storage room; both raise :class:`StorageError`."""

    def create(
        self, *, topic: str, topic_id: uuid.UUID, partition: int, config: LogConfig
    ) -> PartitionLog:
        """A new, empty log with its ``partition.metadata``."""

    def delete(self, log: PartitionLog) -> None:
        """Close a log and remove its folder."""
