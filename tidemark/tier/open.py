"""Opening of a tier from the configuration of its remote store."""

from dataclasses import dataclass

from tidemark.tier.metadata.manifest import PAGE_CACHE_BYTES, ManifestStore
from tidemark.tier.metadata.topics import TopicCatalog
from tidemark.tier.reader import TierReader
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager
from tidemark.tier.stores.config import RemoteStorage, open_stores
from tidemark.tier.stores.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class Tier:
    """Components that work on one remote store. ``store``: the first bucket, with the metadata."""

    store: ObjectStore
    manifests: ManifestStore
    segments: RemoteStorageManager
    topics: TopicCatalog
    reader: TierReader

    def topic_names(self) -> set[str]:
        """Return the names of all topics. Raises StoreUnavailable."""
        return {topic.name for topic in self.topics.all()}


def open_store(config: RemoteStorage) -> ObjectStore:
    """Return the store with identity, heads, pages and topics; nothing is connected yet."""
    return next(iter(open_stores(config).values()))


def open_tier(config: RemoteStorage, *, page_cache_bytes: int = PAGE_CACHE_BYTES) -> Tier:
    """Return the tier's components; call ``identity.ensure_identity(tier.store, ...)`` first."""
    buckets = open_stores(config)
    store = next(iter(buckets.values()))
    manifests = ManifestStore(store, page_cache_bytes=page_cache_bytes)
    topics = TopicCatalog(store)
    reader = TierReader(manifests, topics)
    return Tier(store, manifests, RemoteStorageManager(buckets, config.key_ring), topics, reader)
