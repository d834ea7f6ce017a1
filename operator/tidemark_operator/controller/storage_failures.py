"""Replicas whose storage fails, by their brokers' last reports."""

from collections.abc import Iterator

from tidemark_operator.controller.model import RowKey


class StorageFailures:
    """Failed replicas by broker.

    Invariant: a broker has an entry only while its present process reports at least one failed
    replica, and an entry names only partitions that have a row.
    """

    def __init__(self) -> None:
        self._failed: dict[int, frozenset[RowKey]] = {}

    def put(self, node_id: int, keys: frozenset[RowKey]) -> frozenset[RowKey]:
        """Take a broker's report; return the replicas that changed."""
        former = self.on(node_id)
        if keys:
            self._failed[node_id] = keys
        else:
            self._failed.pop(node_id, None)
        return former ^ keys

    def forget_row(self, key: RowKey) -> None:
        for node_id in [node_id for node_id, failed in self._failed.items() if key in failed]:
            self.put(node_id, self._failed[node_id] - {key})

    def on(self, node_id: int) -> frozenset[RowKey]:
        """Return the failed replicas of a broker."""
        return self._failed.get(node_id, frozenset())

    def all(self) -> Iterator[tuple[int, RowKey]]:
        """Yield every failed replica: its broker and its partition."""
        return ((node_id, key) for node_id, keys in self._failed.items() for key in keys)

    def has_replica(self, key: RowKey) -> bool:
        """Return whether any replica of a partition has failed."""
        return any(key in keys for keys in self._failed.values())
