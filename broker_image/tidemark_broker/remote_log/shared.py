"""What every part of one broker's remote log manager shares."""

import asyncio
import uuid
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tidemark_broker.remote_log.metrics import RemoteMetrics
from tidemark_broker.remote_log.pools import Pool
from tidemark_broker.remote_log.settings import DynamicSettings, RemoteSettings
from tidemark_broker.remote_log.store import StoreGuard
from tidemark_broker.replication.context import ReplicaContext


@dataclass(slots=True)
class Pools:
    """KIP-950's three. Uploads run in the copier's; all commits, decisions and deletions in
    expiration's, so that a claim never waits behind an upload; reads in the fetcher's."""

    copier: Pool
    expiration: Pool
    fetcher: Pool

    @classmethod
    def of(cls, settings: RemoteSettings) -> "Pools":
        """As configured."""
        return cls(
            copier=Pool("copier", threads=settings.copier_threads),
            expiration=Pool("expiration", threads=settings.expiration_threads),
            fetcher=Pool(
                "fetcher",
                threads=settings.reader_threads,
                pending_max=settings.reader_pending_max,
            ),
        )

    async def close(self) -> None:
        """Let running calls end, drop the others."""
        for pool in (self.fetcher, self.copier, self.expiration):
            await pool.close()


@dataclass(slots=True, kw_only=True)
class Shared:
    """``uploading``: segment ids whose upload runs in this process; a cancelled one cannot be
    stopped, and its objects must not be deleted before it has ended, or it would leave some."""

    context: ReplicaContext
    settings: RemoteSettings
    dynamic: DynamicSettings
    guard: StoreGuard
    pools: Pools
    metrics: RemoteMetrics
    uploading: set[uuid.UUID] = field(default_factory=set)
    store_key: str = "remote-store"

    def notifier(self, key: Hashable) -> Callable[[], None]:
        """A call that wakes who waits under ``key``; any thread may make it."""
        loop, purgatory = asyncio.get_running_loop(), self.context.purgatory

        def notify() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(purgatory.notify, key)

        return notify
