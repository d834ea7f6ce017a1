"""Records of a consumer group's changes, written and applied in one step of the loop."""

from collections.abc import Sequence
from functools import partial

from tidemark_broker.coordinators.log import CoordinatorRecord
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_effects import Entry, records_of, target_entry
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.journal import Journal
from tidemark_broker.groups.core.steps import Steps, elsewhere


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
        records = yield from elsewhere(size, partial(records_of, entries))
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
        records = yield from elsewhere(size, partial(records_of, entries))
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
