"""Which logs of a directory are open, which would not open, and which are being made."""

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
    """A partition's directory that could not be opened; it is kept as it is. ``topic_id`` is None
    where not even that can be read."""

    topic: str
    partition: int
    topic_id: uuid.UUID | None
    directory: Path
    reason: str
    #: Records are missing or damaged in it, so a retry does not help.
    lacks_records: bool = False


class OpenLogs:
    """Any thread may look; what changes it holds ``changed``, never while the disk is waited
    for."""

    def __init__(self) -> None:
        self.changed = ordered_condition(LockRank.OPEN_LOGS)
        self.by_key: dict[TopicPartition, PartitionLog] = {}
        self.failures: dict[TopicPartition, OpenFailure] = {}
        #: Being made by some thread; the condition tells of the end.
        self._making: set[TopicPartition] = set()
        self._making_turn = turn_of(LockRank.MAKING_LOG)

    def all(self) -> tuple[PartitionLog, ...]:
        """Every open log."""
        return tuple(self.by_key.values())

    def is_here(self, log: PartitionLog) -> bool:
        """Whether it is still the log of its name."""
        return self.by_key.get(log.key) is log

    def add(self, log: PartitionLog) -> None:
        """It is open; a former failure to open it is over."""
        with self.changed:
            self.by_key[log.key] = log
            self.failures.pop(log.key, None)

    def remove(self, key: TopicPartition) -> None:
        """Its files are no longer under that name, whether they could be opened or not."""
        with self.changed:
            self.by_key.pop(key, None)
            self.failures.pop(key, None)

    @contextmanager
    def making(self, key: TopicPartition) -> Iterator[None]:
        """One thread at a time makes the log of that name."""
        with self._making_turn:
            with self.changed:
                self.changed.wait_for(lambda: key not in self._making)
                self._making.add(key)
            try:
                yield
            finally:
                with self.changed:
                    self._making.discard(key)
                    self.changed.notify_all()
