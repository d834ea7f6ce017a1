"""What the network layer counts; all names stand in one table.

Labels are few and bounded: an Api's name, a direction, the reason why a connection was closed.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REQUESTS = "tidemark_broker_requests"
REQUEST_SECONDS = "tidemark_broker_request_duration_seconds"
NETWORK_BYTES = "tidemark_broker_network_bytes"
CONNECTIONS = "tidemark_broker_connections"
CONNECTIONS_OPENED = "tidemark_broker_connections_opened"
CONNECTIONS_CLOSED = "tidemark_broker_connections_closed_by_broker"
QUEUED_BYTES = "tidemark_broker_queued_request_bytes"
ANSWER_BYTES = "tidemark_broker_answer_bytes"

#: name -> help text
TABLE = {
    REQUESTS: "Requests answered, by Api and version.",
    REQUEST_SECONDS: "Seconds from a request's arrival to its answer, waiting included, by Api.",
    NETWORK_BYTES: "Bytes received from (in) and sent to (out) clients.",
    CONNECTIONS: "Client connections that are open.",
    CONNECTIONS_OPENED: "Client connections accepted so far.",
    CONNECTIONS_CLOSED: "Client connections that the broker ended, by reason.",
    QUEUED_BYTES: "Bytes of requests that are held and not answered yet.",
    ANSWER_BYTES: "Bytes of answers that are being made, or that clients have not taken yet.",
}

#: Reasons of CONNECTIONS_CLOSED.
MALFORMED, IDLE, FAILED, LIMIT, ASKED = "malformed", "idle", "failed", "limit", "asked"
SLOW, AUTHENTICATION = "slow", "authentication"

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


class NetMetrics:
    """Counters of one broker, in the registry that its metrics listener serves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(REQUESTS, TABLE[REQUESTS], ["api", "version"], registry=registry)
        self._seconds = Histogram(
            REQUEST_SECONDS, TABLE[REQUEST_SECONDS], ["api"], buckets=_BUCKETS, registry=registry
        )
        network = Counter(NETWORK_BYTES, TABLE[NETWORK_BYTES], ["direction"], registry=registry)
        self.bytes_in = network.labels("in")
        self.bytes_out = network.labels("out")
        self.connections = Gauge(CONNECTIONS, TABLE[CONNECTIONS], registry=registry)
        self.opened = Counter(CONNECTIONS_OPENED, TABLE[CONNECTIONS_OPENED], registry=registry)
        self._closed = Counter(
            CONNECTIONS_CLOSED, TABLE[CONNECTIONS_CLOSED], ["reason"], registry=registry
        )
        self.queued_bytes = Gauge(QUEUED_BYTES, TABLE[QUEUED_BYTES], registry=registry)
        self.answer_bytes = Gauge(ANSWER_BYTES, TABLE[ANSWER_BYTES], registry=registry)
        self._by_api: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, api: str, version: int, seconds: float) -> None:
        """One request was answered (or, with acks 0, done)."""
        key = (api, version)
        children = self._by_api.get(key)
        if children is None:
            children = (self._requests.labels(api, str(version)), self._seconds.labels(api))
            self._by_api[key] = children
        children[0].inc()
        children[1].observe(seconds)

    def closed(self, reason: str) -> None:
        """The broker ended a connection."""
        self._closed.labels(reason).inc()
