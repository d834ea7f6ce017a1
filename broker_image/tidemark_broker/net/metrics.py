"""Counters of the network layer, in the registry of the broker's metrics page.

Counters that change with each request are plain numbers, read when the page is requested. The
client library's counters take a lock and cost ten times as much.
"""

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family

from tidemark.metrics import broker_table
from tidemark.metrics.families import (
    ReadOnlyCollector,
    counter,
    durations,
    family,
    gauge,
)

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


class _Durations:
    """Sum of the durations of an Api's requests, and how many are in each bucket.

    ``count`` has the number of requests of each version.
    """

    __slots__ = ("count", "in_bucket", "sum_s")

    def __init__(self) -> None:
        self.count: dict[int, int] = {}
        self.sum_s = 0.0
        self.in_bucket = [0] * (len(_BUCKETS_S) + 1)


class NetMetrics:
    """Counters of one broker. Only the loop's thread changes the numbers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.bytes_in = self.bytes_out = 0
        self._seconds: dict[str, _Durations] = {}
        registry.register(ReadOnlyCollector(self._collect))
        self.connections = gauge(broker_table.CONNECTIONS, registry)
        self.opened = counter(broker_table.CONNECTIONS_OPENED, registry)
        self._closed = counter(broker_table.CONNECTIONS_CLOSED, registry)
        self.queued_bytes = gauge(broker_table.QUEUED_BYTES, registry)
        self.answer_bytes = gauge(broker_table.ANSWER_BYTES, registry)

    def answered(self, api: str, version: int, seconds: float) -> None:
        """Count an answered request (with acks 0: a completed one)."""
        known = self._seconds.get(api)
        if known is None:
            known = self._seconds[api] = _Durations()
        known.count[version] = known.count.get(version, 0) + 1
        known.sum_s += seconds
        known.in_bucket[bisect_left(_BUCKETS_S, seconds)] += 1

    def closed(self, reason: str) -> None:
        """Count a connection that the broker closed."""
        self._closed.labels(reason).inc()

    def _collect(self) -> Iterator[Family]:
        """Yield the metrics of requests and bytes, in the page's thread while the loop's counts."""
        known_seconds = list(self._seconds.items())
        yield family(
            broker_table.REQUESTS,
            {
                (api, str(version)): count
                for api, known in known_seconds
                for version, count in list(known.count.items())
            },
        )
        yield durations(
            broker_table.REQUEST_SECONDS,
            _BUCKETS_S,
            {(api,): (known.in_bucket, known.sum_s) for api, known in known_seconds},
        )
        yield family(broker_table.NETWORK_BYTES, {("in",): self.bytes_in, ("out",): self.bytes_out})
