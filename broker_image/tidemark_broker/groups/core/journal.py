"""Records of groups: the log that they are appended to, the memory that groups use, and the journal
of consumer groups, which appends records and applies them in one step of the loop."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tidemark_broker.admission.fair_share import MemoryShares
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.log import CoordinatorRecord, TransactionalProducer
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.classic_group import ClassicGroup
from tidemark_broker.groups.core.consumer_effects import Entry, records_of, target_entry
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.offsets import CommittedOffsets
from tidemark_broker.groups.core.settings import GroupConfigs, GroupSettings, Now
from tidemark_broker.groups.core.steps import Steps, off_loop
from tidemark_broker.groups.core.values import SubscribedTopic


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """Groups of one shard, of both protocols, and what they share.

    ``topic`` and ``name`` return a topic by name and a name by topic id, None if unknown.
    """

    journal: Journal
    deadlines: Deadlines[Any]
    settings: GroupSettings
    room: GroupMemory
    configs: GroupConfigs
    topic: Callable[[str], SubscribedTopic | None]
    name: Callable[[uuid.UUID], str | None]
    #: Groups by id. A group id is in at most one of the two, and offsets may exist without a group.
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)


class ConsumerJournal:
    """Journal of all consumer-protocol groups of one partition.

    A group exists from its first record. Raises CoordinatorError if nothing was recorded.
    """

    def __init__(self, groups: dict[str, ConsumerGroup], journal: Journal) -> None:
        self._groups = groups
        self._journal = journal

    def record(self, group: ConsumerGroup, entries: Sequence[Entry]) -> Steps[None]:
        """Encode and write entries, all or none."""
        size = sum(entry.size for entry in entries)
        records = yield from off_loop(size, partial(records_of, entries))
        self._append(group, entries, records)

    def record_now(self, group: ConsumerGroup, entries: Sequence[Entry]) -> None:
        """Write entries that only name the group and a member, which are quick to encode."""
        self._append(group, entries, records_of(entries))

    def record_targets(
        self, group: ConsumerGroup, targets: Sequence[tuple[str, Assignment]]
    ) -> Steps[None]:
        """Encode target assignments, and record those of members that still exist.

        ``targets``: member ids with their assignments.
        """
        entries = [target_entry(group.group_id, *target) for target in targets]
        size = sum(entry.size for entry in entries)
        records = yield from off_loop(size, partial(records_of, entries))
        # Encoding yields, so the group or some members may have been removed meanwhile.
        if self._groups.get(group.group_id) is not group:
            return
        there = [
            number for number, (member_id, _) in enumerate(targets) if member_id in group.members
        ]
        if there:
            self._append(
                group, [entries[number] for number in there], [records[number] for number in there]
            )

    def _append(
        self,
        group: ConsumerGroup,
        entries: Sequence[Entry],
        records: Sequence[CoordinatorRecord],
    ) -> None:
        # If the append raises, nothing was applied. Memory never precedes the log.
        group.recorded_below = self._journal.append(records)
        self._groups.setdefault(group.group_id, group)
        for key, effect in entries:
            group.apply(key, effect)
