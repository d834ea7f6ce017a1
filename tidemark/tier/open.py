"""From the configuration of a remote store to an open tier."""

from dataclasses import dataclass

from tidemark.tier.config import RemoteStorage, open_stores
from tidemark.tier.manifest import PAGE_CACHE_BYTES, ManifestStore
from tidemark.tier.objects import ObjectStore
from tidemark.tier.reader import TierReader
from tidemark.tier.remote_storage_manager import RemoteStorageManager
from tidemark.tier.topics import TopicCatalog


@dataclass(frozen=True, slots=True)
class Tier:
    """Everything that works on one remote storage. ``store``: the metadata's (first) bucket."""

    store: ObjectStore
    manifests: ManifestStore
    segments: RemoteStorageManager
    topics: TopicCatalog
    reader: TierReader


def open_store(config: RemoteStorage) -> ObjectStore:
    """The store that holds identity, heads, pages and topics. Opening reaches for nothing yet."""
    return next(iter(open_stores(config).values()))


def open_tier(config: RemoteStorage, *, page_cache_bytes: int = PAGE_CACHE_BYTES) -> Tier:
    """Stores and everything on them; ``identity.ensure_identity(tier.store, ...)`` comes first."""
    buckets = open_stores(config)
    store = next(iter(buckets.values()))
    manifests = ManifestStore(store, page_cache_bytes=page_cache_bytes)
    topics = TopicCatalog(store)
    reader = TierReader(manifests, topics)
    return Tier(store, manifests, RemoteStorageManager(buckets), topics, reader)
