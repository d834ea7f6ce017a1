"""Counters of the network layer, in the registry of the broker's metrics page."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from tidemark.metrics import broker_table
from tidemark.metrics.families import counter, gauge, histogram

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


class NetMetrics:
    """Counters of one broker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = counter(broker_table.REQUESTS, registry)
        self._seconds = histogram(broker_table.REQUEST_SECONDS, registry, _BUCKETS)
        network = counter(broker_table.NETWORK_BYTES, registry)
        self.bytes_in = network.labels("in")
        self.bytes_out = network.labels("out")
        self.connections = gauge(broker_table.CONNECTIONS, registry)
        self.opened = counter(broker_table.CONNECTIONS_OPENED, registry)
        self._closed = counter(broker_table.CONNECTIONS_CLOSED, registry)
        self.queued_bytes = gauge(broker_table.QUEUED_BYTES, registry)
        self.answer_bytes = gauge(broker_table.ANSWER_BYTES, registry)
        self._by_api: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, api: str, version: int, seconds: float) -> None:
        """Count an answered request (with acks 0: a completed one)."""
        key = (api, version)
        # labels() takes a lock and hashes strings, so children are cached.
        children = self._by_api.get(key)
        if children is None:
            children = (self._requests.labels(api, str(version)), self._seconds.labels(api))
            self._by_api[key] = children
        children[0].inc()
        children[1].observe(seconds)

    def closed(self, reason: str) -> None:
        """Count a connection that the broker closed."""
        self._closed.labels(reason).inc()
