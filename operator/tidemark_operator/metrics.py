"""Metrics of the operator, in a registry of its own for each process."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tidemark.metrics import operator_table
from tidemark.metrics.families import Values, counter, family, gauge, histogram
from tidemark.metrics.metric import Metric as Row

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Measured(Collector):
    """Values of the state as last measured, all from one moment; empty without a term."""

    def __init__(self) -> None:
        self._values: Mapping[Row, Values] = {}

    def take(self, values: Mapping[Row, Values]) -> None:
        """Take all measured values; a missing row has no sample."""
        self._values = values

    def forget(self) -> None:
        """Drop the values at the end of a term: the next leader's state is not known here."""
        self._values = {}

    def collect(self) -> Iterator[Metric]:
        """Yield every measured row of the table."""
        values = self._values
        for row in operator_table.MEASURED:
            yield family(row, values.get(row, {}))


class Metrics:
    """Metrics of one operator process."""

    def __init__(self) -> None:
        """Register all metrics of the operator.

        Their names and help texts are in ``operator_table``. Counters are incremented where things
        happen. ``measured`` is set from the state once in a while.
        """
        made = self.registry = CollectorRegistry()
        self.reconciles = counter(operator_table.RECONCILES, made)
        self.reconcile_seconds = histogram(operator_table.RECONCILE_SECONDS, made, _BUCKETS)
        self.last_pass = gauge(operator_table.LAST_PASS, made)
        self.commits = counter(operator_table.COMMITS, made)
        self.commit_seconds = histogram(operator_table.COMMIT_SECONDS, made, _BUCKETS)
        self.decisions = counter(operator_table.DECISIONS, made)
        self.slice_writes = counter(operator_table.SLICE_WRITES, made)
        self.status_writes = counter(operator_table.STATUS_WRITES, made)
        self.conflicts = counter(operator_table.CONFLICTS, made)
        self.events = counter(operator_table.EVENTS, made)
        self.failed_exports = counter(operator_table.FAILED_EXPORTS, made)
        self.leader = gauge(operator_table.LEADER, made)
        self.term = gauge(operator_table.TERM, made)
        self.controller_epoch = gauge(operator_table.CONTROLLER_EPOCH, made)
        self.certificate_expiry = gauge(operator_table.CERTIFICATE_EXPIRY, made)
        self.measured = Measured()
        made.register(self.measured)
        ProcessCollector(registry=made)

    def render(self) -> bytes:
        """Return the page that Prometheus reads."""
        return bytes(generate_latest(self.registry))
