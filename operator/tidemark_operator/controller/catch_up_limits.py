"""Replicas that catch up: how many may at once, and with how many bytes.

A replica that is new on a broker, or back after an absence, reads all that it lacks from its
leader, beside what clients and the other replicas read. So whoever gives replicas to brokers
(placeholders that are filled, moves of :mod:`draining` and :mod:`replication_factor_changes`) asks
for room first: on the broker that takes one, by number and by bytes, and in the whole cluster, by
number. What catches up counts whoever began it, and nothing but the rows and the leaders' reports
is asked, so a new controller goes on with the same room. A replica that is larger than the limit by
itself goes alone.
"""

from collections import Counter
from functools import cached_property

from tidemark.configuration.broker_keys import (
    CATCH_UP_BYTES_PER_BROKER,
    CATCH_UP_REPLICAS,
    CATCH_UP_REPLICAS_PER_BROKER,
)
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.model import (
    NO_LEADER,
    BrokerHealth,
    BrokerInfo,
    PartitionRow,
    RowKey,
)


class Room:
    """What is left of the limits, in one draft."""

    def __init__(self, draft: Draft) -> None:
        cluster = draft.state.cluster
        self._draft = draft
        self._most = cluster.whole_number(CATCH_UP_REPLICAS)
        self._most_on_broker = cluster.whole_number(CATCH_UP_REPLICAS_PER_BROKER)
        self._most_bytes_on_broker = cluster.whole_number(CATCH_UP_BYTES_PER_BROKER)
        self._all = 0
        self._replicas: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        for key in {*draft.state.behind, *draft.rows}:
            row = draft.row(key)
            for node_id in () if row is None else catching_up(draft, row):
                self.take(node_id, key)

    @property
    def is_full(self) -> bool:
        """Nobody is admitted, wherever."""
        return self._all >= self._most

    @cached_property
    def takers(self) -> list[BrokerInfo]:
        """Brokers that may be given a replica that catches up, if there is room."""
        return takers(self._draft)

    def admits(self, node_id: int, key: RowKey) -> bool:
        """Whether a broker may begin with a replica of a partition now."""
        if self.is_full or self._replicas[node_id] >= self._most_on_broker:
            return False
        fits = self._bytes[node_id] + self._size(key) <= self._most_bytes_on_broker
        return fits or not self._replicas[node_id]

    def take(self, node_id: int, key: RowKey) -> None:
        """It begins."""
        self._all += 1
        self._replicas[node_id] += 1
        self._bytes[node_id] += self._size(key)

    def _size(self, key: RowKey) -> int:
        """Of the leader's local log; 0 until it has reported."""
        report = self._draft.state.reports.get(key)
        return 0 if report is None else report.local_bytes


def takers(draft: Draft) -> list[BrokerInfo]:
    """Live brokers that may take a replica of others: none that is to give up those it has, none
    whose log directory takes nothing."""
    health, unknown = draft.state.health, BrokerHealth()
    return [
        broker
        for broker in draft.live_brokers()
        if not broker.leaving and not health.get(broker.node_id, unknown).directory_error
    ]


def catching_up(draft: Draft, row: PartitionRow) -> tuple[int, ...]:
    """The replicas of a partition that are about to: their brokers live and their storage works,
    and there is a leader to read from."""
    if row.leader == NO_LEADER:
        return ()
    return tuple(
        node_id
        for node_id in row.hosts
        if node_id not in row.isr and draft.can_serve(node_id, row.key)
    )
