"""Remote log manager: decides which replica runs which tasks, and answers the rest of the broker.

It implements :class:`tidemark_broker.replication.remote.RemoteLog`. Policy is in ``eligibility``
and ``expiry``, operations in ``copier``, ``merger``, ``expirer``, ``disablement`` and ``fetcher``,
scheduling in ``leader_tasks``, state in ``head_writer``. Followers run no tasks: they receive the
tier's state in their leader's fetch responses. They read the store only for consumers that the
leader has redirected to them, and to start their logs.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Self, TypeVar

from prometheus_client.core import Metric as Family

from tidemark.metrics import tier_table
from tidemark.metrics.families import singles
from tidemark.metrics.metric import Metric
from tidemark.tier.metadata.head import ManifestError
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.open import Tier
from tidemark.tier.reader import Snapshot
from tidemark.tier.segments.integrity import ObjectDamaged
from tidemark.tier.stores import aws_kms
from tidemark.tier.stores.objects import StoreError
from tidemark.tiering import Tiering
from tidemark_broker.config import BrokerConfig
from tidemark_broker.remote_log import bootstrap, eligibility, topic_deletion
from tidemark_broker.remote_log.chunk_files import ChunkFiles
from tidemark_broker.remote_log.copier import CANDIDATES, waiting_records
from tidemark_broker.remote_log.disablement import follow_disablement
from tidemark_broker.remote_log.fetcher import RemoteFetcher
from tidemark_broker.remote_log.head_writer import claiming, leader_term
from tidemark_broker.remote_log.leader_tasks import LeaderTasks
from tidemark_broker.remote_log.manager_state import (
    ManagerState,
    Pools,
    RemoteMetrics,
    RemoteQuotas,
)
from tidemark_broker.remote_log.settings import DynamicSettings, RemoteSettings
from tidemark_broker.remote_log.store import StoreGuard
from tidemark_broker.remote_log.sweeps import Sweeps
from tidemark_broker.remote_log.tier_failure import TierFailure
from tidemark_broker.remote_log.uploads import Uploads
from tidemark_broker.replication.partition import Partition, ReplicaContext, Role
from tidemark_broker.replication.remote import (
    BootstrapPoint,
    RemoteDataCorrupt,
    RemoteOffset,
    RemoteRead,
    RemoteStatus,
    RemoteSummary,
    RemoteUnavailable,
    TieredPartition,
    TierEnd,
    WaitingRecords,
)
from tidemark_broker.replication.threads import ThreadsBusy
from tidemark_broker.replication.types import TopicIdPartition
from tidemark_broker.tasks import cancel

logger = logging.getLogger(__name__)

R = TypeVar("R")


class RemoteLogManager:
    """Remote log manager, owned by the loop thread."""

    def __init__(self, context: ReplicaContext, settings: RemoteSettings) -> None:
        """Create the manager without partitions. It contacts no store before :meth:`configure`."""
        self._context = context
        pools, counters = Pools.of(settings), RemoteMetrics()
        self._shared = ManagerState(
            context=context,
            settings=settings,
            dynamic=DynamicSettings(settings, lambda: context.metadata.cluster_config),
            guard=StoreGuard(settings, context.monotonic, self._store_is_back, context.wall_ms),
            pools=pools,
            quotas=RemoteQuotas.of(settings, counters, context.monotonic),
            metrics=counters,
            uploads=Uploads(pools.copier, pools.expiration),
            # A quarter of the copiers' threads.
            merges=asyncio.Semaphore(max(1, settings.copier_threads // 4)),
            chunk_files=_chunk_files(context, settings, counters),
        )
        #: Upkeep of the cache on disk, None before there is a store and without such a cache.
        self._chunk_upkeep: asyncio.Task[None] | None = None
        self._sweeps = Sweeps(self._shared)
        self._fetcher = RemoteFetcher(self._shared, self._snapshot_of)
        #: Tasks of the partitions that this broker leads.
        self._tasks: dict[TopicIdPartition, LeaderTasks] = {}
        #: Cancelled tasks of former terms that still wait for a call to the store.
        self._ending: dict[asyncio.Task[None], TopicIdPartition] = {}
        # Topics with a deletion request in progress.
        self._deleting: set[uuid.UUID] = set()
        #: Shutdown in progress, None before :meth:`close`.
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, context: ReplicaContext, config: BrokerConfig) -> Self:
        """Create the manager for a broker. Raises :class:`ConfigError`."""
        return cls(context, RemoteSettings.of(config))

    def metrics(self) -> Iterator[Family]:
        """Yield the tier's metrics. It only reads, so another thread may call it."""
        return singles({**self._shared.metrics.values(), **self._gauges()})

    # ------------------------------------------------------------ roles

    def on_leader(self, partition: Partition) -> None:
        """Start the tasks of the current term; those of another one end."""
        key, term = partition.key, leader_term(partition)
        present = self._tasks.get(key)
        if present is not None and present.term == term and not present.ended:
            return
        self._stop(key)
        if not term.tiering.ever_tiered:
            return
        tasks = self._tasks[key] = LeaderTasks(self._shared, partition, term)
        tasks.start()

    def on_follower(self, partition: Partition) -> None:
        """End all tasks, because a follower runs none."""
        self._stop(partition.key)

    def on_stop(self, partition: Partition) -> None:
        """End all tasks without waiting for the store.

        A commit in progress ends by itself and notifies nothing, as after any change of term; the
        next claim fences it.
        """
        self._stop(partition.key)
        self._fetcher.forget(partition.key)

    def on_tiering_change(self, partition: Partition) -> None:
        """Start a new term, if this replica leads."""
        if partition.is_leader:
            self.on_leader(partition)
        else:
            self.on_follower(partition)

    def _stop(self, key: TopicIdPartition) -> None:
        tasks = self._tasks.pop(key, None)
        task = None if tasks is None else tasks.cancel()
        if task is not None:
            self._ending[task] = key
            task.add_done_callback(self._ending.pop)

    # ------------------------------------------------------------ reads

    async def read(
        self, partition: TieredPartition, offset: int, max_bytes: int, deadline_s: float
    ) -> RemoteRead:
        """Read from the tier; see :class:`RemoteLog`.

        ``TimeoutError`` when the deadline passes first.
        """
        return await self._fetcher.read(partition, offset, max_bytes, deadline_s)

    async def offset_by_timestamp(
        self, partition: Partition, timestamp_ms: int
    ) -> RemoteOffset | None:
        """Look up a time in the tier; see :class:`RemoteLog`."""
        return await self._fetcher.offset_by_timestamp(partition, timestamp_ms)

    async def newest_offset(self, partition: Partition) -> RemoteOffset | None:
        """Return the tier's first record with the largest timestamp (:class:`RemoteLog`)."""
        return await self._fetcher.newest_offset(partition)

    async def bytes_below(self, partition: Partition, offset: int) -> int:
        """Return the bytes below an offset; see :class:`RemoteLog`."""
        return await self._fetcher.bytes_below(partition, offset)

    def _snapshot_of(self, partition: TieredPartition) -> Snapshot | None:
        tasks = self._tasks.get(partition.key)
        return None if tasks is None else tasks.writer.snapshot()

    # ------------------------------------------------------------ disablement, deletion

    async def disable(self, partition: Partition, disabling: Tiering) -> None:
        """Do this replica's part of disabling remote storage for a topic (KIP-950).

        Return when the controller may count this replica as done. The controller repeats the
        request until then. ``disabling``: tiering state and policy in the request. Raises
        RemoteUnavailable if this replica's stored state does not match, or if the tier fails.
        """
        stored = partition.tiering
        # The controller may be ahead of, or behind, this replica's state.
        if stored.epoch != disabling.epoch:
            raise RemoteUnavailable(
                f"{partition.tp}: the request is for tiered epoch {disabling.epoch}, stored is "
                f"{stored.epoch}"
            )
        if not stored.policy_applies or disabling.changes_policy_of(stored):
            raise RemoteUnavailable(
                f"{partition.tp}: the stored tiering state does not match this disablement"
            )
        if partition.role is Role.FOLLOWER:
            # With policy Retain a follower has nothing to do but to store the epoch.
            if disabling.deletes:
                await follow_disablement(self._shared, partition, disabling.epoch)
            return
        if not partition.is_leader:
            raise RemoteUnavailable(f"{partition.tp}: this replica has no role yet")
        # A request may arrive before the role change has started the tasks.
        self.on_leader(partition)
        tasks = self._tasks.get(partition.key)
        if tasks is None:
            raise RemoteUnavailable(f"{partition.tp}: it has nothing in the tier")
        # Acknowledged only once the manifest's head is claimed in this term, and with policy Delete
        # the log start has moved.
        failure = await tasks.wait_settled()
        if failure is not None:
            raise RemoteUnavailable(failure.message)

    async def delete_topic(
        self,
        topic_id: uuid.UUID,
        name: str,
        partitions: int,
        tiered_epoch: int,
    ) -> int:
        """Delete a part of a deleted topic's objects; return the number that remains.

        The controller repeats the request until the result is 0. Only one request for a topic runs
        at a time. Raises RemoteUnavailable for a second one, or if the store fails; see
        :class:`RemoteLog`.
        """
        # The controller repeats a request that took too long.
        if topic_id in self._deleting:
            raise RemoteUnavailable(f"{name}: an earlier deletion request is still running")
        self._deleting.add(topic_id)
        try:
            call = self._shared.pools.expiration(
                topic_deletion.delete_topic,
                self._shared,
                self._tier(),
                topic_id,
                name,
                partitions,
            )
            return await self._translated(call)
        finally:
            self._deleting.discard(topic_id)

    # ------------------------------------------------------------ from the tier

    async def claimed_end(self, partition: Partition) -> TierEnd:
        """Claim the head and return the tier's end; see :class:`RemoteLog`."""
        term, now_ms = leader_term(partition), self._context.wall_ms()
        claim = claiming(self._shared, term)
        call = self._shared.pools.commits.run(
            lambda tier: bootstrap.claimed_end(tier, partition, term.by, claim, now_ms=now_ms),
            self._tier(),
        )
        return await self._translated(call)

    async def bootstrap(self, partition: Partition, up_to_offset: int) -> BootstrapPoint:
        """Return the start for a log from the tier; see :class:`RemoteLog`."""
        self._shared.metrics.add(tier_table.AUX_REQUESTS)
        try:
            call = self._shared.pools.expiration.run(
                bootstrap.bootstrap_point, self._tier(), partition, up_to_offset
            )
            return await self._translated(call)
        except Exception:
            self._shared.metrics.add(tier_table.AUX_ERRORS)
            raise

    # ------------------------------------------------------------ status

    def summary(self, partition: Partition) -> RemoteSummary:
        """Return a partition's tier figures for the status report; no I/O.

        Only the leader knows them. A follower's summary has zeros.
        """
        tasks = self._tasks.get(partition.key)
        if tasks is None:
            return RemoteSummary()
        # Only the leader knows the tier's totals; followers report zeros.
        failure, totals = self._failure_of(tasks), tasks.writer.totals
        loaded = tasks.writer.loaded
        return RemoteSummary(
            segments=totals.live_segments,
            size_bytes=totals.live_bytes,
            remaining_segments=totals.pending_segments,
            remaining_bytes=totals.pending_bytes,
            highest_remote_offset=-1 if loaded is None else loaded.head.highest_remote_offset,
            error_reason="" if failure is None else failure.reason,
            error_message="" if failure is None else failure.message,
            lagging_since_ms=self._lagging_since_ms(tasks),
        )

    def waiting(self, partition: Partition) -> WaitingRecords | None:
        """Return the committed records that wait for a copy; see :class:`RemoteLog`."""
        tasks = self._tasks.get(partition.key)
        return None if tasks is None else _waiting(tasks)

    def _lagging_since_ms(self, tasks: LeaderTasks) -> int:
        """Return the append time of the oldest waiting record if that waits for too long, else -1.

        While copying is paused every waiting record does.
        """
        config = tasks.partition.log.config
        if not (config.limits_lag or config.tidemark_remote_copy_paused):
            return -1
        # Only a limit of bytes needs the figures of all segments.
        records = _waiting(tasks, None if config.limits_lag_bytes else CANDIDATES)
        if records is None:
            return -1
        age_ms = self._context.wall_ms() - records.since_ms
        is_late = (
            config.tidemark_remote_copy_paused
            or age_ms > config.tidemark_remote_copy_max_lag_ms
            or records.size_bytes > config.tidemark_remote_copy_max_lag_bytes
        )
        return records.since_ms if is_late else -1

    def _failure_of(self, tasks: LeaderTasks) -> TierFailure | None:
        """Return the status failure: damage first, since it does not heal by itself."""
        loaded = tasks.writer.loaded

        def is_live(entry: SegmentEntry) -> bool:
            return loaded is None or not loaded.head.is_below_floor(
                entry.end_offset_inclusive, entry.tiered_epoch
            )

        return self._fetcher.damages.failure(tasks.partition.key, is_live) or tasks.failure

    def configure(self, remote_storage: str, store_id: str, cluster_id: str) -> None:
        """Apply the accepted storage configuration; see :class:`RemoteLog`."""
        self._shared.guard.configure(remote_storage, store_id, cluster_id)
        if not remote_storage:
            return
        self._sweeps.start()
        files = self._shared.chunk_files
        if files is not None and self._chunk_upkeep is None:
            loop = asyncio.get_running_loop()
            self._chunk_upkeep = loop.create_task(files.run(), name="chunk cache")

    def status(self) -> RemoteStatus:
        """Return the health of the store."""
        return self._shared.guard.status()

    async def close(self, timeout_s: float) -> bool:
        """End every task and the work in threads. Return False if calls to the store did not return
        in time.

        Their later effects are fenced or refused like those of an earlier term.
        """
        for key in tuple(self._tasks):
            self._stop(key)
        # A second call waits for the first one's shutdown.
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        _, late = await asyncio.wait([self._closing], timeout=timeout_s)
        return not late

    async def _close(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._sweeps.close()
        if self._chunk_upkeep is not None:
            await cancel([self._chunk_upkeep])
        await self._shared.guard.close()
        await self._shared.pools.close()

    def _store_is_back(self) -> None:
        self._context.purgatory.notify(self._shared.store_key)

    def _gauges(self) -> Mapping[Metric, float]:
        """Return the current values of the tier's gauges, for the thread that serves metrics.

        It copies everything that the loop thread may change meanwhile.
        """
        # The tuple copies the dictionary in one step, which is safe between threads.
        led = [tasks for tasks in tuple(self._tasks.values()) if tasks.writer.loaded is not None]
        totals = [tasks.writer.totals for tasks in led]
        # Closed local segments that are not in the tier yet, for each partition that is copied.
        lags = [
            eligibility.lag(tasks.partition.log.segment_infos(behind), behind)
            for tasks, behind in ((item, item.writer.head.next_copy_offset) for item in led)
            if tasks.term.tiering.copies
        ]
        waiting = [records for tasks in led if (records := _waiting(tasks)) is not None]
        now_ms = self._context.wall_ms()
        pools, status = self._shared.pools, self.status()
        files = self._shared.chunk_files
        return {
            tier_table.COPY_LAG_SECONDS: max(
                (max(0, now_ms - records.since_ms) / 1000 for records in waiting), default=0.0
            ),
            tier_table.WAITING_BYTES: sum(records.size_bytes for records in waiting),
            tier_table.COPY_LAG_BYTES: sum(lag.size_bytes for lag in lags),
            tier_table.COPY_LAG_SEGMENTS: sum(lag.segments for lag in lags),
            tier_table.DELETE_LAG_BYTES: sum(total.pending_bytes for total in totals),
            tier_table.DELETE_LAG_SEGMENTS: sum(total.pending_segments for total in totals),
            tier_table.SIZE_BYTES: sum(total.live_bytes for total in totals),
            tier_table.METADATA_COUNT: sum(total.live_segments for total in totals),
            tier_table.MANAGER_IDLE: pools.expiration.idle_share,
            tier_table.COPIER_IDLE: pools.copier.idle_share,
            tier_table.READER_QUEUE: pools.fetcher.queue_size,
            tier_table.READER_IDLE: pools.fetcher.idle_share,
            tier_table.CACHE_BYTES: self._fetcher.size_bytes + self._shared.guard.page_cache_bytes,
            tier_table.CHUNK_FILE_BYTES: 0 if files is None else files.size_bytes,
            tier_table.CHUNK_FILE_COUNT: 0 if files is None else len(files),
            **self._sweeps.gauges(),
            tier_table.PARTITION_ERRORS: sum(
                self._failure_of(task) is not None for task in tuple(self._tasks.values())
            ),
            tier_table.STORE_AVAILABLE: float(bool(status.store_id) and not status.error),
            tier_table.KMS_REQUESTS: aws_kms.COUNTS.requests,
            tier_table.KMS_ERRORS: aws_kms.COUNTS.errors,
        }

    # ------------------------------------------------------------ the store

    def _tier(self) -> Tier:
        try:
            return self._shared.guard.tier()
        except StoreError as error:
            raise RemoteUnavailable(str(error)) from error

    async def _translated(self, call: Awaitable[R]) -> R:
        """Await a call and translate its errors to those of the protocol."""
        try:
            return await call
        except ObjectDamaged as error:
            self._shared.metrics.add(tier_table.INTEGRITY_ERRORS)
            raise RemoteDataCorrupt(str(error)) from error
        except (StoreError, ManifestError, ThreadsBusy, OSError) as error:
            self._shared.guard.suspect(error)
            raise RemoteUnavailable(str(error)) from error


def _chunk_files(
    context: ReplicaContext, settings: RemoteSettings, counters: RemoteMetrics
) -> ChunkFiles | None:
    """Return the cache of chunks on disk, None if none is configured."""
    if not settings.disk_cache_bytes:
        return None
    # A folder of its own, because brokers on one machine may have the same configuration.
    return ChunkFiles(
        Path(settings.disk_cache_path) / f"broker-{context.node_id}",
        limit_bytes=settings.disk_cache_bytes,
        chunk_bytes=settings.chunk_bytes,
        count=counters.add,
    )


def _waiting(tasks: LeaderTasks, count: int | None = None) -> WaitingRecords | None:
    """Return the committed records of a term that are not in the tier; see
    :func:`waiting_records`.
    """
    if not tasks.term.tiering.copies:
        return None
    # While the store has not answered in this term, the replica's own knowledge counts.
    loaded, log = tasks.writer.loaded, tasks.partition.log
    known = log.highest_remote_offset + 1 if loaded is None else loaded.head.next_copy_offset
    return waiting_records(tasks.partition, known, count)
