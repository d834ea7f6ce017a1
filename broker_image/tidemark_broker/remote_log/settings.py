"""Settings of the remote log manager: Kafka's broker keys, and a few under ``tidemark.``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from tidemark.backoff import Backoff
from tidemark.configuration.broker_keys import (
    CHUNK_CACHE_PATH,
    CUSTOM_METADATA_MAX_BYTES,
    MERGE_MAX_BYTES,
    REMOTE_DELETE_DELAY_MS,
    SWEEP,
    SWEEP_DELAY_MS,
)
from tidemark_broker.config import BrokerConfig
from tidemark_broker.config_entries import (
    ConfigError,
    key_field,
    seconds_field,
    text_of,
    values_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """Settings of the whole broker.

    They are threads and queues of the pools, times in seconds (``_s``) or ms, and limits of the
    caches in bytes (a chunk is a whole number of ``integrity.PIECE_BYTES``). The delays, the limit
    of custom metadata and the switch for sweeps can be changed for the whole cluster at run time.
    """

    copier_threads: int = key_field("remote.log.manager.copier.thread.pool.size")
    expiration_threads: int = key_field("remote.log.manager.expiration.thread.pool.size")
    commit_threads: int = key_field("tidemark.remote.commit.threads")
    reader_threads: int = key_field("remote.log.reader.threads")
    reader_pending_max: int = key_field("remote.log.reader.max.pending.tasks")
    interval_s: float = seconds_field("remote.log.manager.task.interval.ms")
    backoff_s: float = seconds_field("remote.log.manager.task.retry.backoff.ms")
    backoff_max_s: float = seconds_field("remote.log.manager.task.retry.backoff.max.ms")
    jitter: float = 0.2
    copy_bytes_per_second: int = key_field("remote.log.manager.copy.max.bytes.per.second")
    copy_windows: int = key_field("remote.log.manager.copy.quota.window.num")
    copy_window_seconds: int = key_field("remote.log.manager.copy.quota.window.size.seconds")
    fetch_bytes_per_second: int = key_field("remote.log.manager.fetch.max.bytes.per.second")
    fetch_windows: int = key_field("remote.log.manager.fetch.quota.window.num")
    fetch_window_seconds: int = key_field("remote.log.manager.fetch.quota.window.size.seconds")
    index_cache_bytes: int = key_field("remote.log.index.file.cache.total.size.bytes")
    chunk_cache_bytes: int = key_field("tidemark.remote.chunk.cache.bytes")
    disk_cache_bytes: int = key_field("tidemark.remote.chunk.cache.disk.bytes")
    disk_cache_path: str = ""
    chunk_bytes: int = key_field("tidemark.remote.chunk.bytes")
    read_ahead_bytes: int = key_field("tidemark.remote.read.ahead.max.bytes")
    page_cache_bytes: int = key_field("tidemark.remote.page.cache.bytes")
    delete_delay_ms: int = key_field(REMOTE_DELETE_DELAY_MS)
    custom_metadata_max_bytes: int = key_field(CUSTOM_METADATA_MAX_BYTES)
    merge_bytes: int = key_field(MERGE_MAX_BYTES)
    head_check_s: float = seconds_field("tidemark.remote.head.check.interval.ms")
    probe_s: float = seconds_field("tidemark.remote.store.probe.interval.ms")
    sweep_interval_s: float = seconds_field("tidemark.remote.sweep.interval.ms")
    sweep_delay_ms: int = key_field(SWEEP_DELAY_MS)
    sweeps: bool = key_field(SWEEP)

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Read the settings. Raises :class:`ConfigError` with the key."""
        settings = cls(
            **values_of(cls, config.entries),
            disk_cache_path=text_of(config.entries, CHUNK_CACHE_PATH),
        )
        if settings.disk_cache_bytes and not settings.disk_cache_path:
            raise ConfigError(
                f"tidemark.remote.chunk.cache.disk.bytes={settings.disk_cache_bytes} requires "
                f"{CHUNK_CACHE_PATH}, the directory of the cache"
            )
        return settings

    @property
    def request_backoff(self) -> Backoff:
        """Pauses between attempts that clients wait for: at most 10 s by default."""
        most_s = max(self.backoff_s, min(self.backoff_max_s, 10.0))
        return Backoff(first_s=self.backoff_s, most_s=most_s)

    @property
    def read_ahead_total_bytes(self) -> int:
        """Budget for data that is loaded in advance for all readers: half of the chunk cache.

        The other half remains for data that is in use, and for readers that follow each other.
        """
        return self.chunk_cache_bytes // 2


class DynamicSettings:
    """Settings that the Cluster's configuration may override; read at each use."""

    def __init__(
        self, settings: RemoteSettings, cluster_config: Callable[[], Mapping[str, str]]
    ) -> None:
        self._settings = settings
        self._cluster_config = cluster_config

    @property
    def delete_delay_ms(self) -> int:
        """Time that objects outlive the commit that marks them, so that readers with an older
        snapshot succeed.
        """
        return self._integer(REMOTE_DELETE_DELAY_MS, self._settings.delete_delay_ms)

    @property
    def custom_metadata_max_bytes(self) -> int:
        """Limit of KIP-917; only larger values are refused."""
        return self._integer(CUSTOM_METADATA_MAX_BYTES, self._settings.custom_metadata_max_bytes)

    @property
    def merge_bytes(self) -> int:
        """Largest size of a merged segment in the tier, 0 for no merges."""
        return self._integer(MERGE_MAX_BYTES, self._settings.merge_bytes)

    @property
    def sweep_delay_ms(self) -> int:
        """Minimum age of an unnamed object before a sweep removes it."""
        return self._integer(SWEEP_DELAY_MS, self._settings.sweep_delay_ms)

    @property
    def sweeps(self) -> bool:
        """Whether sweeps run.

        False also while the Cluster has the annotation ``tidemark.dev/sweep-paused``.
        """
        text = self._cluster_config().get(SWEEP, "").strip().lower()
        return text == "true" if text else self._settings.sweeps

    def _integer(self, key: str, default: int) -> int:
        """Return an overridden value.

        Admission has checked it; an invalid one counts as not set.
        """
        text = self._cluster_config().get(key, "").strip()
        return int(text) if text.isascii() and text.isdigit() else default
