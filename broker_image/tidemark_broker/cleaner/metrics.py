"""Metrics of the cleaner, after those of Kafka's ``LogCleaner`` and ``LogCleanerManager``."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tidemark.metrics import broker_table
from tidemark.metrics.families import single
from tidemark.metrics.metric import Metric as Row
from tidemark_broker.cleaner.log_cleaner import LogCleaner


class CleanerCollector(Collector):
    """Collector of the figures at scrape time. It only reads, so another thread may call it."""

    def __init__(self, cleaner: LogCleaner) -> None:
        self._cleaner = cleaner

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of log compaction."""
        figures = self._cleaner.figures
        # Kafka reports the ratios in percent.
        values: dict[Row, float] = {
            broker_table.MAX_DIRTY: figures.max_dirty_ratio * 100,
            broker_table.MAX_COMPACTION_DELAY: figures.max_overdue_s,
            broker_table.MAX_BUFFER: figures.last_map_utilization * 100,
            broker_table.SINCE_LAST_RUN: self._cleaner.since_last_run_s,
            broker_table.UNCLEANABLE: self._cleaner.uncleanable,
            broker_table.CLEANER_RUNS: figures.runs,
            broker_table.CLEANER_FAILURES: figures.failures,
            broker_table.CLEANER_READ: figures.read_bytes,
            broker_table.CLEANER_WRITTEN: figures.written_bytes,
            broker_table.UNREADABLE_BATCHES: figures.unreadable_batches,
            broker_table.KEYLESS_RECORDS: figures.keyless_records,
        }
        for row, value in values.items():
            yield single(row, value)
