"""Metrics of the transaction coordinator."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tidemark.metrics import broker_table
from tidemark.metrics.families import single
from tidemark_broker.transactions.coordinator import TransactionCoordinator


class TransactionsCollector(Collector):
    """Metrics of a coordinator. Only reads, so another thread may collect them."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """Yield sums over the partitions of ``__transaction_state`` that this broker leads."""
        weight = sum(shard.weight_bytes for shard in list(self._coordinator.shards()))
        yield single(broker_table.TRANSACTIONAL_IDS, self._coordinator.count)
        yield single(broker_table.TRANSACTIONS_BYTES, weight)
        yield single(broker_table.WITHOUT_MARKERS, self._coordinator.markers.unfinished)
