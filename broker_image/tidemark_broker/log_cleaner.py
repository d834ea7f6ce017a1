"""Compaction loop: finds the dirtiest log and compacts it in a thread, repeatedly.

Each replica compacts its own log independently, so a follower may lag behind its leader. A log that
cannot be compacted is set aside with a log message and retried after a pause that grows to an hour,
so that it neither blocks others nor is forgotten.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

from tidemark.backoff import Backoff
from tidemark.metrics import broker_table
from tidemark.metrics.families import singles
from tidemark_broker.admission.rate import ByteRateQuota
from tidemark_broker.config import BrokerConfig
from tidemark_broker.log import LogError, StorageError
from tidemark_broker.log.compaction import (
    CleanerSettings,
    CleaningAborted,
    CleaningStats,
    Dirtiness,
    clean,
    dirtiness_of,
)
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.threads import ThreadPool
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_ASIDE = Backoff(first_s=60.0, most_s=3600.0)
#: Logs that are examined before the loop yields.
_LOOKS = 20
#: Minimum pause, however short ``log.cleaner.backoff.ms`` is.
_PAUSE_S = 0.05


@dataclass(slots=True)
class CleanerFigures:
    """Figures for the metrics. Ratios are 0 to 1, times seconds."""

    runs: int = 0
    failures: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    unreadable_batches: int = 0
    keyless_records: int = 0
    max_dirty_ratio: float = 0.0
    max_overdue_s: float = 0.0
    last_map_utilization: float = 0.0
    last_run_s: float | None = None


def settings_of(config: BrokerConfig, threads: int) -> CleanerSettings:
    """Return Kafka's ``log.cleaner.*``; buffers are divided among the threads."""
    return CleanerSettings(
        memory_bytes=config.integer("log.cleaner.dedupe.buffer.size") // threads,
        load_factor=max(config.number("log.cleaner.io.buffer.load.factor"), 0.01),
        buffer_bytes=max(config.integer("log.cleaner.io.buffer.size") // threads, 4096),
    )


class LogCleaner:
    """Log compaction of a broker (Kafka's ``LogCleaner``), owned by the loop thread.

    ``partitions`` returns the hosted replicas. ``monotonic`` returns seconds, ``wall_ms``
    milliseconds since the Unix epoch.
    """

    def __init__(
        self,
        config: BrokerConfig,
        partitions: Callable[[], Collection[Partition]],
        *,
        monotonic: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """Create the cleaner from Kafka's ``log.cleaner.*`` settings. :meth:`run` starts it."""
        enabled = config.boolean("log.cleaner.enable")
        #: Concurrent compactions, 0 if ``log.cleaner.enable`` is false.
        self._workers = config.integer("log.cleaner.threads") if enabled else 0
        # Without workers the thread pool still needs a valid size.
        threads = max(self._workers, 1)
        self._settings = settings_of(config, threads)
        #: Pause in seconds after no log was due.
        self._backoff_s = config.seconds("log.cleaner.backoff.ms")
        self._io_quota = ByteRateQuota(config.integer("log.cleaner.io.max.bytes.per.second"))
        self._in_thread = ThreadPool("cleaner", threads=threads)
        self._partitions = partitions
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        # Two workers must not compact the same log.
        self._in_progress: set[TopicPartition] = set()
        #: Logs whose last compaction failed, with the time of their next attempt.
        self._aside: dict[TopicPartition, Backoff] = {}
        self._stopping = False
        self.figures = CleanerFigures()

    @property
    def uncleanable(self) -> int:
        """Number of logs that were set aside."""
        return len(self._aside)

    @property
    def since_last_run_s(self) -> float:
        """Seconds since the last successful cleaning; 0 before the first one."""
        last = self.figures.last_run_s
        return 0.0 if last is None else self._monotonic() - last

    def stop(self) -> None:
        """Have cleanings end soon, and start no other."""
        self._stopping = True

    async def run(self) -> None:
        """Run until cancelled.

        Call :meth:`stop` first, otherwise the cancellation waits for running cleanings.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            try:
                if not self._stopping and await self.clean_one():
                    continue
            except Exception:
                logger.exception("looking for logs to compact failed")
            await asyncio.sleep(max(self._backoff_s, _PAUSE_S))

    async def clean_one(self) -> bool:
        """Compact the dirtiest log; return False if none is due."""
        found = await self._dirtiest()
        if found is None:
            return False
        partition, dirtiness = found
        self._in_progress.add(partition.tp)
        try:
            await self._clean(partition, dirtiness)
        finally:
            self._in_progress.discard(partition.tp)
        return True

    async def _dirtiest(self) -> tuple[Partition, Dirtiness] | None:
        """Return the due log with the largest dirty ratio, None if no log is due.

        Also updates the ratios in the metrics.
        """
        best: tuple[Partition, Dirtiness] | None = None
        figures, now_ms = self.figures, self._wall_ms()
        # The metrics cover all compacted logs, not only the due ones.
        max_ratio = max_overdue_s = 0.0
        self._forget_removed()
        compacted = [item for item in self._partitions() if item.log.config.compacts]
        for number, partition in enumerate(compacted):
            # Thousands of logs are examined: let requests through in between.
            if number % _LOOKS == _LOOKS - 1:
                await asyncio.sleep(0)
            if not self._may_clean(partition):
                continue
            dirtiness = dirtiness_of(partition.log, now_ms)
            max_ratio = max(max_ratio, dirtiness.ratio)
            max_overdue_s = max(max_overdue_s, dirtiness.overdue_ms / 1000)
            if dirtiness.is_due and (best is None or dirtiness.ratio > best[1].ratio):
                best = partition, dirtiness
        figures.max_dirty_ratio, figures.max_overdue_s = max_ratio, max_overdue_s
        # While a worker cleans the dirtiest log, the others wait instead of taking a lesser one.
        return best if best is None or best[0].tp not in self._in_progress else None

    def _may_clean(self, partition: Partition) -> bool:
        """Return whether the log may be compacted: not if it is in progress, was set aside, or has
        a part in the tier.
        """
        log, aside = partition.log, self._aside.get(partition.tp)
        return (
            partition.tp not in self._in_progress
            and not partition.removed
            and log.failure is None
            and log.log_start_offset == log.local_log_start_offset
            and (aside is None or aside.ready(self._monotonic()))
        )

    def _forget_removed(self) -> None:
        if self._aside:
            hosted = {partition.tp for partition in self._partitions()}
            self._aside = {tp: item for tp, item in self._aside.items() if tp in hosted}

    async def _clean(self, partition: Partition, dirtiness: Dirtiness) -> None:
        """Compact one log in a thread, and record the outcome.

        The cleaner aborts if the log was truncated or reset meanwhile, or the broker stops. That is
        not a failure: the log is compacted again later.
        """
        try:
            stats = await self._in_thread(
                clean,
                partition.log,
                dirtiness,
                self._settings,
                now_ms=self._wall_ms(),
                stopping=lambda: self._stopping,
                moved=self._io_quota.record,
            )
        except CleaningAborted:
            logger.info(
                "compaction of %s was aborted: its log changed or the broker stops", partition.tp
            )
        # A damaged log must not stop the compaction of others.
        except (LogError, ValueError) as error:
            self._failed(partition, error)
        else:
            self._succeeded(partition, dirtiness, stats)

    def _failed(self, partition: Partition, error: Exception) -> None:
        # The pause grows with each failure, up to an hour.
        aside = self._aside.get(partition.tp, _ASIDE).failed(self._monotonic())
        self._aside[partition.tp] = aside
        self.figures.failures += 1
        logger.error(
            "%s cannot be compacted (%s); the next attempt is in %.0f s",
            partition.tp, error, aside.until_s - self._monotonic(),
        )  # fmt: skip
        # A failed log is the partition's problem too: it must leave its role.
        if isinstance(error, StorageError) and partition.log.failure is not None:
            partition.storage_failed(error)

    def _succeeded(self, partition: Partition, before: Dirtiness, stats: CleaningStats) -> None:
        """Update the metrics and log the result of a successful compaction."""
        # The log is not retried with a pause any more.
        self._aside.pop(partition.tp, None)
        figures = self.figures
        figures.runs += 1
        figures.read_bytes += stats.read_bytes
        figures.written_bytes += stats.written_bytes
        figures.unreadable_batches += stats.unreadable_batches
        figures.keyless_records += stats.keyless_records
        figures.last_map_utilization = stats.map_utilization
        figures.last_run_s = self._monotonic()
        logger.info(
            "compacted %s from offset %d to %d: %d bytes written of %d",
            partition.tp, before.first_dirty, stats.next_dirty, stats.written_bytes,
            before.clean_bytes + before.cleanable_bytes,
        )  # fmt: skip

    def metrics(self) -> Iterator[Metric]:
        """Return metrics after those of Kafka's ``LogCleaner`` and ``LogCleanerManager``.

        It only reads, so another thread may call it.
        """
        figures = self.figures
        # Kafka reports the ratios in percent.
        return singles(
            {
                broker_table.MAX_DIRTY: figures.max_dirty_ratio * 100,
                broker_table.MAX_COMPACTION_DELAY: figures.max_overdue_s,
                broker_table.MAX_BUFFER: figures.last_map_utilization * 100,
                broker_table.SINCE_LAST_RUN: self.since_last_run_s,
                broker_table.UNCLEANABLE: self.uncleanable,
                broker_table.CLEANER_RUNS: figures.runs,
                broker_table.CLEANER_FAILURES: figures.failures,
                broker_table.CLEANER_READ: figures.read_bytes,
                broker_table.CLEANER_WRITTEN: figures.written_bytes,
                broker_table.UNREADABLE_BATCHES: figures.unreadable_batches,
                broker_table.KEYLESS_RECORDS: figures.keyless_records,
            }
        )
