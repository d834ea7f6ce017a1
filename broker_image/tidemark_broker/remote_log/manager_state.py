"""Shared state of a broker's remote log manager."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from tidemark.metrics import tier_table
from tidemark.metrics.metric import Metric as Row
from tidemark.metrics.metric import MetricType
from tidemark_broker.admission.rate import ByteRateQuota, Windows
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.purgatory import DelayedOperationKey, Signal
from tidemark_broker.remote_log.chunk_files import ChunkFiles
from tidemark_broker.remote_log.settings import DynamicSettings, RemoteSettings
from tidemark_broker.remote_log.store import StoreGuard
from tidemark_broker.remote_log.uploads import Uploads
from tidemark_broker.replication.partition import ReplicaContext
from tidemark_broker.replication.threads import ThreadPool


class RemoteMetrics:
    """Counters of copies, reads and deletions, safe between threads."""

    def __init__(self) -> None:
        counters = [row for row in tier_table.ALL if row.kind is MetricType.COUNTER]
        self._values = dict.fromkeys(counters, 0.0)
        self._lock = ordered_lock(LockRank.LEAF)

    def add(self, row: Row, amount: float = 1) -> None:
        """Increase one of the table's counters."""
        with self._lock:
            self._values[row] += amount

    def values(self) -> dict[Row, float]:
        """Return a copy of all counters."""
        with self._lock:
            return dict(self._values)


#: Minimum length of a wait whose condition is not met.
_LEAST_WAIT_S = 0.05


@dataclass(slots=True)
class Pools:
    """Thread pools of KIP-950, and one for commits.

    Uploads run in the copier's, decisions and deletions in expiration's, reads in the fetcher's.
    Claims and commits of the manifest have their own threads: elections and copies wait for them,
    and they are short, while a deletion is long.
    """

    copier: ThreadPool
    expiration: ThreadPool
    fetcher: ThreadPool
    commits: ThreadPool

    @classmethod
    def of(cls, settings: RemoteSettings) -> "Pools":
        """Create the pools of the settings."""
        return cls(
            copier=ThreadPool("copies to the tier", threads=settings.copier_threads),
            expiration=ThreadPool("deletions in the tier", threads=settings.expiration_threads),
            fetcher=ThreadPool(
                "reads of the tier",
                threads=settings.reader_threads,
                pending_max=settings.reader_pending_max,
            ),
            commits=ThreadPool("commits to the tier", threads=settings.commit_threads),
        )

    async def close(self) -> None:
        """Let running calls end, drop the others."""
        pools = (self.fetcher, self.copier, self.expiration, self.commits)
        await asyncio.gather(*(pool.close() for pool in pools))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteQuotas:
    """Quotas of KIP-956 for copies and fetches."""

    copy: ByteRateQuota
    fetch: ByteRateQuota

    @classmethod
    def of(
        cls, settings: RemoteSettings, counters: RemoteMetrics, now: Callable[[], float]
    ) -> "RemoteQuotas":
        """Create the quotas of the settings.

        ``counters`` receives the throttled seconds; ``now`` returns monotonic seconds.
        """
        # Both quotas use Kafka's sliding windows, with separate settings.
        copy = Windows(settings.copy_windows, settings.copy_window_seconds)
        fetch = Windows(settings.fetch_windows, settings.fetch_window_seconds)
        return cls(
            copy=ByteRateQuota(
                settings.copy_bytes_per_second,
                copy,
                partial(counters.add, tier_table.COPY_THROTTLED),
                now,
            ),
            fetch=ByteRateQuota(
                settings.fetch_bytes_per_second,
                fetch,
                partial(counters.add, tier_table.FETCH_THROTTLED),
                now,
            ),
        )


@dataclass(slots=True, kw_only=True)
class ManagerState:
    """Shared services.

    ``chunk_files``: cache on disk, None without one. ``uploads``: those of this process.
    ``merges``: slots of merges. ``store_key``: purgatory key of tasks whose store fails.
    """

    context: ReplicaContext
    settings: RemoteSettings
    dynamic: DynamicSettings
    guard: StoreGuard
    pools: Pools
    quotas: RemoteQuotas
    metrics: RemoteMetrics
    uploads: Uploads
    merges: asyncio.Semaphore
    chunk_files: ChunkFiles | None = None
    store_key: Signal = field(default_factory=Signal)

    async def wait(
        self, keys: Collection[DelayedOperationKey], satisfied: Callable[[], bool], timeout_s: float
    ) -> None:
        """Wait in the purgatory.

        If it is full it returns at once, so a minimum wait keeps loops from blocking the broker.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if await self.context.purgatory.wait(keys, satisfied, timeout_s):
            return
        # The purgatory returned early because it is full: wait at least a moment.
        left_s = min(timeout_s, _LEAST_WAIT_S) - (loop.time() - began_s)
        await asyncio.sleep(max(left_s, 0.0))
