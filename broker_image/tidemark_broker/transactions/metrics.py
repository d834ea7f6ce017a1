"""The transaction coordinator's figures."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemark_broker.transactions.coordinator import TransactionCoordinator


class TransactionsCollector(Collector):
    """Reads the figures when they are asked for; only reads, so another thread may."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """Sums over the partitions of ``__transaction_state`` that this broker leads."""
        shards = list(self._coordinator.shards())
        yield GaugeMetricFamily(
            "tidemark_broker_transactional_ids",
            "Transactional ids that this broker coordinates.",
            value=self._coordinator.count,
        )
        yield GaugeMetricFamily(
            "tidemark_broker_transactions_bytes",
            "Memory that they take, of tidemark.transactions.bytes.max.",
            value=sum(each.weight_bytes for each in shards),
        )
        yield GaugeMetricFamily(
            "tidemark_broker_transactions_without_markers",
            "Transactions that are decided, and not every partition of which has its marker.",
            value=self._coordinator.markers.unfinished,
        )
