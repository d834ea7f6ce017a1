"""A host's store under the test's observation: calls can be recorded, refused and blocked."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.topics import TopicCatalog
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager

Before = Callable[[str, str], None]


class WatchedStore:
    """Calls ``before(call, key)`` first, in the thread of the call; its exception is the result."""

    def __init__(self, real: Any, before: Before) -> None:
        self._real, self._before = real, before

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._real, name)

        def made(key: Any, *args: Any) -> Any:
            self._before(name, str(key))
            try:
                return call(key, *args)
            finally:
                # A blocked call has ended even if the real store refused it.
                if isinstance(self._before, BlockedCall):
                    self._before.after(name, str(key))

        return made if callable(call) and name != "describe" else call


class BlockedCall:
    """Blocks the first call of a kind under a prefix until it is released."""

    def __init__(self, name: str, prefix: str) -> None:
        self._name, self._prefix = name, prefix
        self.begun, self._release = threading.Event(), threading.Event()
        self._ended = threading.Event()

    def _matches(self, name: str, key: str) -> bool:
        return name == self._name and key.startswith(self._prefix)

    def __call__(self, name: str, key: str) -> None:
        if self._matches(name, key):
            self.begun.set()
            assert self._release.wait(20)

    def after(self, name: str, key: str) -> None:
        if self._matches(name, key):
            self._ended.set()

    async def release(self) -> None:
        """Release the call, and wait until it succeeded or was refused."""
        self._release.set()
        assert await asyncio.to_thread(self._ended.wait, 20)


def watch(host: TieredHost, before: Before, **manifests: Any) -> None:
    """Run ``before`` ahead of every later call of the host's store."""
    tier = host.tier()
    store: Any = WatchedStore(tier.store, before)
    buckets: Any = {name: WatchedStore(real, before) for name, real in tier.segments.stores.items()}
    made, topics = ManifestStore(store, **manifests), TopicCatalog(store)
    storage = RemoteStorageManager(buckets)
    host.remote._shared.guard._tier = Tier(store, made, storage, topics, TierReader(made, topics))


async def ready(host: TieredHost) -> None:
    await host.until(lambda: bool(host.remote.status().store_id) and not host.remote.status().error)


async def watched_leader(host: TieredHost, before: Before, **manifests: Any) -> None:
    """Let the host lead a tiered partition in an epoch whose calls all run ``before``."""
    await host.apply()
    await ready(host)
    # The watch begins before epoch 2, so its claim and all later calls are seen.
    watch(host, before, **manifests)
    await host.apply(leader_epoch=2)
