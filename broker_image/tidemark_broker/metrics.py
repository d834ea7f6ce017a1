"""The broker's figures. Those of partitions are sums: a label per partition would grow without
limit."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemark_broker.replication.hosting.replica_manager import ReplicaManager

#: name -> help text
TABLE = {
    "tidemark_broker_replicas": "Replicas that this broker hosts.",
    "tidemark_broker_leaders": "Partitions that this broker leads.",
    "tidemark_broker_offline_replicas": "Replicas whose storage does not open.",
    "tidemark_broker_failing_replicas": "Replicas whose storage failed when it was last tried.",
    "tidemark_broker_under_replicated_partitions": "Led partitions with fewer in sync than wanted.",
    "tidemark_broker_under_min_isr_partitions": "Led partitions that refuse acks=all.",
    "tidemark_broker_log_bytes": "Bytes of all local logs.",
    "tidemark_broker_producer_ids": "Producers that the logs remember, for each log anew.",
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
            "tidemark_broker_producer_ids": sum(each.log.producer_count for each in partitions),
            "tidemark_broker_purgatory_operations": context.purgatory.size,
            "tidemark_broker_fenced": float(self._fenced()),
            "tidemark_broker_controller_connected": float(self._connected()),
            "tidemark_broker_loop_age_seconds": self._loop_age_ms() / 1000,
        }
        for name, value in values.items():
            yield GaugeMetricFamily(name, TABLE[name], value=value)
        name = "tidemark_broker_storage_failures"
        yield CounterMetricFamily(name, TABLE[name], value=context.failures.total)
