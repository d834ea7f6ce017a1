"""Looks for the dirtiest log and has it compacted in a thread, again and again.

Each replica compacts its own log: nothing is agreed on, and a follower need not be as far as its
leader. A log that cannot be compacted is set aside, said so, and tried again after a pause that
grows to an hour, so that it neither keeps others waiting nor is forgotten.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tidemark.backoff import Backoff
from tidemark_broker.cleaner.throttle import IoThrottle
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
from tidemark_broker.replication.threads import Threads
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_ASIDE = Backoff(first_s=60.0, most_s=3600.0)
#: How many logs are looked at before the loop has its turn.
_LOOKS = 20
#: However short ``log.cleaner.backoff.ms`` is.
_PAUSE_S = 0.05


@dataclass(slots=True)
class CleanerFigures:
    """What the metrics show. Ratios are 0 to 1, times seconds."""

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
    """Kafka's ``log.cleaner.*``; buffers are for all threads together."""
    return CleanerSettings(
        memory_bytes=config.integer("log.cleaner.dedupe.buffer.size") // threads,
        load_factor=max(config.number("log.cleaner.io.buffer.load.factor"), 0.01),
        buffer_bytes=max(config.integer("log.cleaner.io.buffer.size") // threads, 4096),
    )


class LogCleaner:
    """The loop thread owns it. ``monotonic`` in seconds, ``wall_ms`` since the epoch."""

    def __init__(
        self,
        config: BrokerConfig,
        partitions: Callable[[], Collection[Partition]],
        *,
        monotonic: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        enabled = config.boolean("log.cleaner.enable")
        self._workers = config.integer("log.cleaner.threads") if enabled else 0
        threads = max(self._workers, 1)
        self._settings = settings_of(config, threads)
        self._backoff_s = config.seconds("log.cleaner.backoff.ms")
        self._throttle = IoThrottle(config.integer("log.cleaner.io.max.bytes.per.second"))
        self._in_thread = Threads("cleaner", threads=threads)
        self._partitions = partitions
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._in_progress: set[TopicPartition] = set()
        self._aside: dict[TopicPartition, Backoff] = {}
        self._stopping = False
        self.figures = CleanerFigures()

    @property
    def uncleanable(self) -> int:
        """Logs that were set aside."""
        return len(self._aside)

    @property
    def since_last_run_s(self) -> float:
        """How long ago a cleaning ended well; 0 where none has yet."""
        last = self.figures.last_run_s
        return 0.0 if last is None else self._monotonic() - last

    def stop(self) -> None:
        """Have cleanings end soon, and begin no other."""
        self._stopping = True

    async def run(self) -> None:
        """Until cancelled; call :meth:`stop` before, or that waits for what is under way."""
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
        """Compact the log that needs it most; False where none does."""
        found = await self._filthiest()
        if found is None:
            return False
        partition, dirtiness = found
        self._in_progress.add(partition.tp)
        try:
            await self._clean(partition, dirtiness)
        finally:
            self._in_progress.discard(partition.tp)
        return True

    async def _filthiest(self) -> tuple[Partition, Dirtiness] | None:
        """Of all logs that are due the one with the largest dirty part."""
        best: tuple[Partition, Dirtiness] | None = None
        figures, now_ms = self.figures, self._wall_ms()
        max_ratio = max_overdue_s = 0.0
        self._forget_removed()
        compacted = [each for each in self._partitions() if each.log.config.compacts]
        for number, partition in enumerate(compacted):
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
        return best if best is None or best[0].tp not in self._in_progress else None

    def _may_clean(self, partition: Partition) -> bool:
        """Not where it is under way, was set aside, or where a part is in the tier still."""
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
            hosted = {each.tp for each in self._partitions()}
            self._aside = {tp: each for tp, each in self._aside.items() if tp in hosted}

    async def _clean(self, partition: Partition, dirtiness: Dirtiness) -> None:
        try:
            stats = await self._in_thread(
                clean,
                partition.log,
                dirtiness,
                self._settings,
                now_ms=self._wall_ms(),
                stopping=lambda: self._stopping,
                moved=self._throttle.moved,
            )
        except CleaningAborted:
            logger.info("compacting %s was given up: its log was changed", partition.tp)
        except (LogError, ValueError) as error:
            self._failed(partition, error)
        else:
            self._succeeded(partition, dirtiness, stats)

    def _failed(self, partition: Partition, error: Exception) -> None:
        aside = self._aside.get(partition.tp, _ASIDE).failed(self._monotonic())
        self._aside[partition.tp] = aside
        self.figures.failures += 1
        logger.error(
            "%s cannot be compacted (%s); trying again in %.0f s",
            partition.tp, error, aside.until_s - self._monotonic(),
        )  # fmt: skip
        if isinstance(error, StorageError) and partition.log.failure is not None:
            partition.storage_failed(error)

    def _succeeded(self, partition: Partition, before: Dirtiness, stats: CleaningStats) -> None:
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
