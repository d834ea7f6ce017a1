"""What replicas need of the log folder: making logs, opening failed ones, looking for room on the
disk, removing (all but one block)."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemark_broker.log import LogConfig, PartitionLog
from tidemark_broker.replication.partition.state_file import StoredState
from tidemark_broker.replication.types import TopicPartition


@dataclass(frozen=True, slots=True)
class FoundLog:
    """An open log and what its folder says of it, None where that cannot be read. ``whole``: it was
    closed cleanly and has every byte that it was closed with."""

    log: PartitionLog
    state: StoredState | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class UnopenedLog:
    """A log that was found at the start and does not open; ``topic_id`` None where not even that
    can be read."""

    tp: TopicPartition
    topic_id: uuid.UUID | None


class LogStore(Protocol):
    """Implemented by the storage room; all raise :class:`StorageError`."""

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

    def unopened(self) -> Sequence[UnopenedLog]:
        """The logs that do not open; does not block."""

    def state_of(self, unopened: UnopenedLog) -> StoredState | None:
        """What the folder of one of them says of it."""

    def open_again(self, tp: TopicPartition) -> FoundLog | None:
        """Try one of them once more; None if it is none of them any more."""

    def probe(self) -> None:
        """Is there room to write again? Writes some, durably, and removes it."""

    def discard(self, tp: TopicPartition) -> None:
        """Remove the folder of one of them."""
