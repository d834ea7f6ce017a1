"""The manager's settings: Kafka's broker keys, and a few of our own under ``tidemark.``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from tidemark.tier.manifest import PAGE_CACHE_BYTES
from tidemark_broker.config import BrokerConfig

CUSTOM_METADATA_MAX_BYTES = "remote.log.metadata.custom.metadata.max.bytes"
DELETE_DELAY_MS = "remote.delete.delay.ms"

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """Threads and queues of the pools, times in seconds (``_s``) or ms, limits of the caches in
    bytes, each for the whole broker (a chunk is a whole number of ``integrity.PIECE_BYTES``). The
    last two may be changed for the whole cluster at run time."""

    copier_threads: int = 10
    expiration_threads: int = 10
    commit_threads: int = 10
    reader_threads: int = 10
    reader_pending_max: int = 100
    interval_s: float = 30.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    jitter: float = 0.2
    index_cache_bytes: int = 64 * _MIB
    chunk_cache_bytes: int = 32 * _MIB
    chunk_bytes: int = 2 * _MIB
    page_cache_bytes: int = PAGE_CACHE_BYTES
    delete_delay_ms: int = 60_000
    custom_metadata_max_bytes: int = 128

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Raises :class:`ConfigError` that names the key."""
        interval_s = config.milliseconds("remote.log.manager.task.interval.ms", 30_000)
        return cls(
            copier_threads=config.integer(
                "remote.log.manager.copier.thread.pool.size", 10, least=1
            ),
            expiration_threads=config.integer(
                "remote.log.manager.expiration.thread.pool.size", 10, least=1
            ),
            commit_threads=config.integer("tidemark.remote.commit.threads", 10, least=1),
            reader_threads=config.integer("remote.log.reader.threads", 10, least=1),
            reader_pending_max=config.integer("remote.log.reader.max.pending.tasks", 100, least=1),
            interval_s=interval_s,
            backoff_s=config.milliseconds("remote.log.manager.task.retry.backoff.ms", 500),
            backoff_max_s=config.milliseconds(
                "remote.log.manager.task.retry.backoff.max.ms", 30_000
            ),
            index_cache_bytes=config.integer(
                "remote.log.index.file.cache.total.size.bytes", 64 * _MIB, least=1
            ),
            chunk_cache_bytes=config.integer(
                "tidemark.remote.chunk.cache.bytes", 32 * _MIB, least=1
            ),
            chunk_bytes=config.integer("tidemark.remote.chunk.bytes", 2 * _MIB, least=4096),
            page_cache_bytes=config.integer(
                "tidemark.remote.page.cache.bytes", PAGE_CACHE_BYTES, least=1
            ),
            delete_delay_ms=config.integer(DELETE_DELAY_MS, 60_000),
            custom_metadata_max_bytes=config.integer(CUSTOM_METADATA_MAX_BYTES, 128),
        )


class DynamicSettings:
    """The settings that the Cluster's configuration may override; read afresh at each use."""

    def __init__(
        self, settings: RemoteSettings, cluster_config: Callable[[], Mapping[str, str]]
    ) -> None:
        self._settings = settings
        self._cluster_config = cluster_config

    @property
    def delete_delay_ms(self) -> int:
        """How long objects outlive the commit that marks them, so that a reader's plan does."""
        return self._integer(DELETE_DELAY_MS, self._settings.delete_delay_ms)

    @property
    def custom_metadata_max_bytes(self) -> int:
        """KIP-917's limit; larger is refused, equal is fine."""
        return self._integer(CUSTOM_METADATA_MAX_BYTES, self._settings.custom_metadata_max_bytes)

    def _integer(self, key: str, default: int) -> int:
        """Admission has checked the value; one that slipped through counts as not set."""
        text = self._cluster_config().get(key, "").strip()
        return int(text) if text.isascii() and text.isdigit() else default
