"""Interface through which groups record their decisions, and the memory that they use."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tidemark_broker.admission.fair_share import MemoryShares
from tidemark_broker.coordinators.log import CoordinatorRecord, TransactionalProducer
from tidemark_broker.groups.core.settings import Now


class Journal(Protocol):
    """Log of the partition that contains the group."""

    def append(
        self, records: Sequence[CoordinatorRecord], producer: TransactionalProducer | None = None
    ) -> int:
        """Append records, all or none.

        Return the end offset. Raises CoordinatorError if nothing was appended.
        """

    def when_committed(self, end_offset: int, then: Callable[[Now], None]) -> None:
        """Call ``then`` once the log is committed up to ``end_offset``; never if this broker
        loses the coordinator role first.
        """


class Weighed(Protocol):
    """A group of either protocol."""

    group_id: str
    weight_bytes: int
    #: Part of ``weight_bytes`` that is included in the broker's total.
    weighed_bytes: int


class GroupMemory(MemoryShares):
    """Memory in bytes of the groups of a broker, and its limit."""

    def weigh(self, group: Weighed) -> None:
        """Update the total after a change of the group. Idempotent."""
        self.add(group.group_id, group.weight_bytes - group.weighed_bytes)
        group.weighed_bytes = group.weight_bytes

    def forget(self, group: Weighed) -> None:
        """Remove the group from the total."""
        self.add(group.group_id, -group.weighed_bytes)
        group.weighed_bytes = 0

    @property
    def is_full(self) -> bool:
        """True if nothing new may be created. Existing state continues."""
        return self.is_full_for(0)
