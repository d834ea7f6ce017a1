"""What replicas need of the log folder: making a log and removing one (both block)."""

import uuid
from typing import Protocol

from tidemark_broker.log import LogConfig, PartitionLog
from tidemark_broker.replication.state_file import StoredState


class LogStore(Protocol):
    """Implemented by the storage room; both raise :class:`StorageError`."""

    def create(
        self,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        state: StoredState,
    ) -> PartitionLog:
        """A new, empty log with its ``partition.metadata`` and ``partition.state``, durable."""

    def delete(self, log: PartitionLog) -> None:
        """Close a log and remove its folder."""
