"""Limits of catch-up: how many replicas may catch up at once, and with how many bytes.

A new replica, or one that returns after an absence, reads all that it lacks from its leader, in
addition to the reads of clients and other replicas. Every feature that gives replicas to brokers
(filled placeholders, moves of :mod:`draining` and :mod:`replication_factor_changes`) therefore
requests room first. The limits are by number and bytes on the receiving broker, and by number in
the whole cluster. All replicas that catch up count, whatever the cause. Only the rows and the
leaders' reports are read, so a new controller continues with the same room. A replica that is
larger than the limit goes alone.
"""

from collections import Counter
from functools import cached_property

from tidemark.configuration.broker_keys import (
    CATCH_UP_BYTES_PER_BROKER,
    CATCH_UP_REPLICAS,
    CATCH_UP_REPLICAS_PER_BROKER,
)
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    BrokerHealth,
    BrokerInfo,
    PartitionRow,
    RowKey,
)


class CatchUpRoom:
    """Room that the limits leave in one draft."""

    def __init__(self, draft: Draft) -> None:
        """Count the replicas that catch up now, and read the Cluster's limits."""
        cluster = draft.state.cluster
        self._draft = draft
        self._most = cluster.int_config(CATCH_UP_REPLICAS)
        self._most_on_broker = cluster.int_config(CATCH_UP_REPLICAS_PER_BROKER)
        self._most_bytes_on_broker = cluster.int_config(CATCH_UP_BYTES_PER_BROKER)
        #: Replicas that catch up: in all, by broker, and their bytes by broker.
        self._all = 0
        self._replicas: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        # Only partitions behind, or changed in this draft, can have a replica that catches up.
        for key in {*draft.state.partitions.behind, *draft.rows}:
            row = draft.row(key)
            for node_id in () if row is None else catching_up(draft, row):
                self.take(node_id, key)

    @property
    def is_full(self) -> bool:
        """Return whether no replica is admitted on any broker."""
        return self._all >= self._most

    @cached_property
    def takers(self) -> list[BrokerInfo]:
        """Return the brokers that may take a replica that catches up, if there is room."""
        return takers(self._draft)

    def admits(self, node_id: int, key: RowKey) -> bool:
        """Return whether a broker may start to catch up a replica of a partition now."""
        if self.is_full or self._replicas[node_id] >= self._most_on_broker:
            return False
        # A replica above the byte limit is admitted only when nothing else catches up there.
        fits = self._bytes[node_id] + self._size(key) <= self._most_bytes_on_broker
        return fits or not self._replicas[node_id]

    def take(self, node_id: int, key: RowKey) -> None:
        """Count a replica that starts to catch up."""
        self._all += 1
        self._replicas[node_id] += 1
        self._bytes[node_id] += self._size(key)

    def _size(self, key: RowKey) -> int:
        """Return the size of the leader's local log in bytes; 0 before it has reported."""
        # An unknown size counts as nothing: the number of replicas still limits them.
        report = self._draft.state.reports.get(key)
        return 0 if report is None else report.local_bytes


def takers(draft: Draft) -> list[BrokerInfo]:
    """Return the live brokers that may take replicas: staying, with a working log directory."""
    health, unknown = draft.state.health, BrokerHealth()
    return [
        broker
        for broker in draft.live_brokers()
        if not broker.leaving and not health.get(broker.node_id, unknown).directory_error
    ]


def catching_up(draft: Draft, row: PartitionRow) -> tuple[int, ...]:
    """Return the replicas that catch up: on a live broker with working storage, with a leader."""
    if row.leader == NO_LEADER:
        return ()
    return tuple(
        node_id
        for node_id in row.hosts
        if node_id not in row.isr and draft.can_serve(node_id, row.key)
    )
