"""Metrics and health over HTTP, on a listener of its own (127.0.0.1 unless told otherwise).

``/metrics`` in Prometheus' text format, ``/healthz`` 200 while the main loop turns, else 503.
Figures of partitions are sums: a label per partition would grow without limit.
"""

import http.server
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tidemark_broker.replication.hosting.manager import ReplicaManager

logger = logging.getLogger(__name__)

#: name -> help text
TABLE = {
    "tidemark_broker_replicas": "Replicas that this broker hosts.",
    "tidemark_broker_leaders": "Partitions that this broker leads.",
    "tidemark_broker_offline_replicas": "Replicas whose storage does not open.",
    "tidemark_broker_failing_replicas": "Replicas whose storage failed when it was last tried.",
    "tidemark_broker_under_replicated_partitions": "Led partitions with fewer in sync than wanted.",
    "tidemark_broker_under_min_isr_partitions": "Led partitions that refuse acks=all.",
    "tidemark_broker_log_bytes": "Bytes of all local logs.",
    "tidemark_broker_fenced": "1 while the controller fences this broker.",
    "tidemark_broker_controller_connected": "1 while there is a session with a controller.",
    "tidemark_broker_loop_age_seconds": "Seconds since the main loop last turned.",
    "tidemark_broker_purgatory_operations": "Delayed operations that are waiting.",
    "tidemark_broker_storage_failures": "Times that a partition's storage failed.",
}


class BrokerCollector(Collector):
    """Reads the figures when they are asked for; only reads, so another thread may."""

    def __init__(
        self,
        manager: ReplicaManager,
        *,
        fenced: Callable[[], bool],
        connected: Callable[[], bool],
        loop_age_ms: Callable[[], int],
    ) -> None:
        self._manager = manager
        self._fenced = fenced
        self._connected = connected
        self._loop_age_ms = loop_age_ms

    def collect(self) -> Iterator[Metric]:
        """All families of :data:`TABLE`."""
        partitions = self._manager.partitions
        led = [each for each in partitions if each.is_leader]
        short = [each for each in led if each.row and len(each.isr) < len(each.row.replicas)]
        context = self._manager.context
        values: dict[str, float] = {
            "tidemark_broker_replicas": len(partitions),
            "tidemark_broker_leaders": len(led),
            "tidemark_broker_offline_replicas": self._manager.offline_count,
            "tidemark_broker_failing_replicas": context.failures.count,
            "tidemark_broker_under_replicated_partitions": len(short),
            "tidemark_broker_under_min_isr_partitions": sum(each.under_min_isr for each in led),
            "tidemark_broker_log_bytes": sum(each.log.size_bytes for each in partitions),
            "tidemark_broker_purgatory_operations": context.purgatory.size,
            "tidemark_broker_fenced": float(self._fenced()),
            "tidemark_broker_controller_connected": float(self._connected()),
            "tidemark_broker_loop_age_seconds": self._loop_age_ms() / 1000,
        }
        for name, value in values.items():
            yield GaugeMetricFamily(name, TABLE[name], value=value)
        name = "tidemark_broker_storage_failures"
        yield CounterMetricFamily(name, TABLE[name], value=context.failures.total)


class MetricsServer:
    """A small HTTP server in a thread of its own: it answers also when the loop stands still."""

    def __init__(self, registry: CollectorRegistry, healthy: Callable[[], bool]) -> None:
        self._registry = registry
        self._healthy = healthy
        self._server: http.server.ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    def start(self, host: str, port: int) -> Self:
        """Bind and serve; port 0 picks a free one. Raises ``OSError``."""
        registry, healthy = self._registry, self._healthy

        class Handler(_Handler):
            def do_GET(self) -> None:
                if self.path.split("?")[0] == "/metrics":
                    self.reply(200, generate_latest(registry))
                elif self.path.split("?")[0] == "/healthz":
                    ok = healthy()
                    self.reply(200 if ok else 503, b"ok\n" if ok else b"the loop stands still\n")
                else:
                    self.reply(404, b"try /metrics or /healthz\n")

        self._server = http.server.ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="metrics"
        )
        self._thread.daemon = True
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving (blocking, a fraction of a second)."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._thread is not None:
            self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 5

    def reply(self, status: int, body: bytes) -> None:
        """One answer, text."""
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests for metrics are not worth a line each."""
        logger.debug(format, *args)
