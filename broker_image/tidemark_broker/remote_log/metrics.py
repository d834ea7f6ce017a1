"""Metrics of the tier, counted by copies, reads and deletions."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tidemark.metrics import tier_table
from tidemark.metrics.families import single
from tidemark.metrics.metric import Metric as Row
from tidemark.metrics.metric import MetricType
from tidemark_broker.lock_order import LockRank, ordered_lock


class RemoteMetrics:
    """Counters, safe between threads."""

    def __init__(self) -> None:
        counters = [row for row in tier_table.ALL if row.kind is MetricType.COUNTER]
        self._values = dict.fromkeys(counters, 0.0)
        self._lock = ordered_lock(LockRank.LEAF)

    def add(self, row: Row, amount: float = 1) -> None:
        """Increase one of the table's counters."""
        with self._lock:
            self._values[row] += amount

    def values(self) -> dict[Row, float]:
        """Return a copy of all counters."""
        with self._lock:
            return dict(self._values)


class RemoteCollector(Collector):
    """Collector of the table.

    ``gauges`` returns the values of the table's gauges and only reads.
    """

    def __init__(self, metrics: RemoteMetrics, gauges: Callable[[], Mapping[Row, float]]) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the table."""
        for row, value in {**self._metrics.values(), **self._gauges()}.items():
            yield single(row, value)
