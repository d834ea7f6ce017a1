"""How what a group decides is put on record."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tidemark_broker.coordinators.log import CoordinatorRecord, TransactionalProducer
from tidemark_broker.groups.core.settings import Now
from tidemark_broker.memory_shares import Shares


class Journal(Protocol):
    """The log of the partition that the group is in."""

    def append(
        self, records: Sequence[CoordinatorRecord], producer: TransactionalProducer | None = None
    ) -> int:
        """Put them on record, all or none; the offset behind them. Raises CoordinatorError where
        nothing was."""

    def when_committed(self, end_offset: int, then: Callable[[Now], None]) -> None:
        """Call it once all below is committed; never, if this broker coordinates no more by
        then."""


class Weighed(Protocol):
    """A group of either protocol."""

    group_id: str
    weight_bytes: int
    #: As much of that is counted among what the broker's groups weigh.
    weighed_bytes: int


class Room(Shares):
    """How many bytes the groups of a broker take of memory, and may."""

    def weigh(self, group: Weighed) -> None:
        """The group has changed; may be said again."""
        self.add(group.group_id, group.weight_bytes - group.weighed_bytes)
        group.weighed_bytes = group.weight_bytes

    def forget(self, group: Weighed) -> None:
        """The group is gone."""
        self.add(group.group_id, -group.weighed_bytes)
        group.weighed_bytes = 0

    @property
    def is_full(self) -> bool:
        """Then nothing new is begun; what there is goes on."""
        return self.lacks(0)
