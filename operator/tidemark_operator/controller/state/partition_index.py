"""Sets and counts of partitions, so that no periodic question scans all rows."""

import uuid
from collections import Counter

from tidemark_operator.controller.state.eligible_leaders import awaits_logs
from tidemark_operator.controller.state.model import NO_LEADER, PartitionRow, RowKey


class PartitionIndex:
    """Partitions by what their rows say.

    Invariant: each set has the keys of exactly those rows of the state that meet its condition, and
    each counter counts exactly the rows of the state.
    """

    def __init__(self) -> None:
        #: Partitions with a placeholder, which is a replica without a broker (negative id).
        self.with_placeholders: set[RowKey] = set()
        #: Partitions without a leader.
        self.offline: set[RowKey] = set()
        #: Partitions with a reassignment in progress.
        self.moving: set[RowKey] = set()
        #: Partitions with a replica on a broker that is not in the ISR.
        self.behind: set[RowKey] = set()
        #: Partitions whose leader is not the preferred one.
        self.unbalanced: set[RowKey] = set()
        #: Offline partitions whose replicas must report the ends of their logs.
        self.awaiting_logs: set[RowKey] = set()
        self._by_broker: dict[int, set[RowKey]] = {}
        #: By node id: preferred leaderships, and actual ones.
        self._preferred: Counter[int] = Counter()
        self._led: Counter[int] = Counter()
        #: Topic ids by the name that the row of partition 0 stores.
        self._ids_by_name: dict[str, set[uuid.UUID]] = {}

    def add(self, row: PartitionRow) -> None:
        """Add a row that is not in the index."""
        for node_id in row.hosts:
            self._by_broker.setdefault(node_id, set()).add(row.key)
        if row.hosts:
            self._preferred[row.hosts[0]] += 1
        self._led[row.leader] += 1
        if row.leader == NO_LEADER:
            self.offline.add(row.key)
        if row.placeholders:
            self.with_placeholders.add(row.key)
        if row.adding or row.removing:
            self.moving.add(row.key)
        if len(row.isr) < len(row.hosts):
            self.behind.add(row.key)
        # "Unbalanced": another replica than the preferred leader leads.
        if row.leader not in (NO_LEADER, *row.hosts[:1]):
            self.unbalanced.add(row.key)
        if awaits_logs(row):
            self.awaiting_logs.add(row.key)
        if row.name:
            self._ids_by_name.setdefault(row.name, set()).add(row.topic_id)

    def remove(self, row: PartitionRow) -> None:
        """Remove a row as it was added, not as the one that replaces it."""
        for node_id in row.hosts:
            self._by_broker[node_id].discard(row.key)
        if row.hosts:
            self._preferred[row.hosts[0]] -= 1
        self._led[row.leader] -= 1
        # Removing a key that a set lacks has no effect, so the row need not be examined again.
        for keys in (
            self.offline,
            self.with_placeholders,
            self.moving,
            self.behind,
            self.unbalanced,
            self.awaiting_logs,
        ):
            keys.discard(row.key)
        if row.name:
            ids = self._ids_by_name[row.name]
            ids.discard(row.topic_id)
            if not ids:
                del self._ids_by_name[row.name]

    def ids_named(self, name: str) -> frozenset[uuid.UUID]:
        """Return the topic ids of rows with a name, with or without a Topic object."""
        return frozenset(self._ids_by_name.get(name, ()))

    def hosts(self) -> set[int]:
        """Return the node ids that rows name."""
        return {node_id for node_id, keys in self._by_broker.items() if keys}

    def keys_on(self, node_id: int) -> frozenset[RowKey]:
        """Return the keys of the rows that have a replica on a broker."""
        return frozenset(self._by_broker.get(node_id, ()))

    def replica_count(self, node_id: int) -> int:
        return len(self._by_broker.get(node_id, ()))

    def leader_count(self, node_id: int) -> int:
        """Return how many partitions a broker leads; for :data:`NO_LEADER`, how many are
        offline.
        """
        return self._led[node_id]

    def preferred_count(self, node_id: int) -> int:
        """Return how many partitions have this broker as their preferred leader."""
        return self._preferred[node_id]

    @property
    def count(self) -> int:
        return self._led.total()
