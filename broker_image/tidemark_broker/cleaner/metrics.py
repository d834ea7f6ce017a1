"""The cleaner's figures, after those of Kafka's ``LogCleaner`` and ``LogCleanerManager``."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemark_broker.cleaner.log_cleaner import LogCleaner

_GAUGES = {
    "max_dirty_percent": "Dirty share of the dirtiest compacted log, when it was last looked.",
    "max_compaction_delay_seconds": "How long a record has waited beyond max.compaction.lag.ms.",
    "max_buffer_utilization_percent": "How full the last cleaning's memory for keys became.",
    "seconds_since_last_run": "Seconds since a cleaning ended well; 0 where none has yet.",
    "uncleanable_partitions": "Compacted logs that were set aside because cleaning them failed.",
}
_COUNTERS = {
    "runs": "Cleanings that ended well.",
    "failures": "Cleanings that failed.",
    "read_bytes": "Bytes that cleanings read.",
    "written_bytes": "Bytes that cleanings wrote.",
    "unreadable_batches": "Batches that cleanings could not read and left as they are.",
    "keyless_records": "Records without a key that cleanings took away.",
}


class CleanerCollector(Collector):
    """Reads the figures when they are asked for; only reads, so another thread may."""

    def __init__(self, cleaner: LogCleaner) -> None:
        self._cleaner = cleaner

    def collect(self) -> Iterator[Metric]:
        """``tidemark_broker_cleaner_*``."""
        figures = self._cleaner.figures
        gauges = {
            "max_dirty_percent": figures.max_dirty_ratio * 100,
            "max_compaction_delay_seconds": figures.max_overdue_s,
            "max_buffer_utilization_percent": figures.last_map_utilization * 100,
            "seconds_since_last_run": self._cleaner.since_last_run_s,
            "uncleanable_partitions": float(self._cleaner.uncleanable),
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"tidemark_broker_cleaner_{name}", _GAUGES[name], value=value)
        for name, meaning in _COUNTERS.items():
            value = float(getattr(figures, name))
            yield CounterMetricFamily(f"tidemark_broker_cleaner_{name}", meaning, value=value)
