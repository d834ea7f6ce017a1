"""Registry of the logs of a directory: open ones, failed ones, and those being created."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemark.logfiles.checkpoints import TopicPartition
from tidemark_broker.lock_order import LockRank, ordered_condition, turn_of
from tidemark_broker.log.partition_log import PartitionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFailure:
    """A partition's directory that could not be opened; it is left unchanged.

    ``topic_id`` is None if not even that can be read.
    """

    topic: str
    partition: int
    topic_id: uuid.UUID | None
    directory: Path
    reason: str
    #: Records are missing or damaged in it, so a retry does not help.
    misses_records: bool = False


class OpenLogs:
    """Logs by topic and partition.

    Any thread may read. Changes hold ``changed``, but never during disk I/O.
    """

    def __init__(self) -> None:
        self.changed = ordered_condition(LockRank.OPEN_LOGS)
        self.by_key: dict[TopicPartition, PartitionLog] = {}
        self.failures: dict[TopicPartition, OpenFailure] = {}
        #: Logs that a thread is creating; the condition signals the end.
        self._creating: set[TopicPartition] = set()
        self._creating_turn = turn_of(LockRank.CREATING_LOG)

    def all(self) -> tuple[PartitionLog, ...]:
        """Return every open log."""
        return tuple(self.by_key.values())

    def is_registered(self, log: PartitionLog) -> bool:
        """Return whether ``log`` is still the log of its name."""
        return self.by_key.get(log.key) is log

    def add(self, log: PartitionLog) -> None:
        """Register an open log and clear a former failure."""
        with self.changed:
            self.by_key[log.key] = log
            self.failures.pop(log.key, None)

    def remove(self, key: TopicPartition) -> None:
        """Unregister a name whose files were renamed or removed, open or not."""
        with self.changed:
            self.by_key.pop(key, None)
            self.failures.pop(key, None)

    @contextmanager
    def creating(self, key: TopicPartition) -> Iterator[None]:
        """Hold the right to create the log of a name; other threads that want it wait."""
        with self._creating_turn:
            with self.changed:
                self.changed.wait_for(lambda: key not in self._creating)
                self._creating.add(key)
            try:
                yield
            finally:
                with self.changed:
                    self._creating.discard(key)
                    self.changed.notify_all()
