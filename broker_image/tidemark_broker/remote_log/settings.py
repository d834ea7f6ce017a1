"""Settings of the remote log manager: Kafka's broker keys, and a few under ``tidemark.``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tidemark.configuration.broker_keys import (
    CUSTOM_METADATA_MAX_BYTES,
    REMOTE_DELETE_DELAY_MS,
    SWEEP,
    SWEEP_DELAY_MS,
)
from tidemark.configuration.table import BROKER
from tidemark_broker.config import BrokerConfig

_KEYS = {
    "copier_threads": "remote.log.manager.copier.thread.pool.size",
    "expiration_threads": "remote.log.manager.expiration.thread.pool.size",
    "commit_threads": "tidemark.remote.commit.threads",
    "reader_threads": "remote.log.reader.threads",
    "reader_pending_max": "remote.log.reader.max.pending.tasks",
    "interval_s": "remote.log.manager.task.interval.ms",
    "backoff_s": "remote.log.manager.task.retry.backoff.ms",
    "backoff_max_s": "remote.log.manager.task.retry.backoff.max.ms",
    "copy_bytes_per_second": "remote.log.manager.copy.max.bytes.per.second",
    "copy_windows": "remote.log.manager.copy.quota.window.num",
    "copy_window_seconds": "remote.log.manager.copy.quota.window.size.seconds",
    "fetch_bytes_per_second": "remote.log.manager.fetch.max.bytes.per.second",
    "fetch_windows": "remote.log.manager.fetch.quota.window.num",
    "fetch_window_seconds": "remote.log.manager.fetch.quota.window.size.seconds",
    "index_cache_bytes": "remote.log.index.file.cache.total.size.bytes",
    "chunk_cache_bytes": "tidemark.remote.chunk.cache.bytes",
    "chunk_bytes": "tidemark.remote.chunk.bytes",
    "page_cache_bytes": "tidemark.remote.page.cache.bytes",
    "delete_delay_ms": REMOTE_DELETE_DELAY_MS,
    "custom_metadata_max_bytes": CUSTOM_METADATA_MAX_BYTES,
    "head_check_s": "tidemark.remote.head.check.interval.ms",
    "probe_s": "tidemark.remote.store.probe.interval.ms",
    "sweep_interval_s": "tidemark.remote.sweep.interval.ms",
    "sweep_delay_ms": SWEEP_DELAY_MS,
    "sweeps": SWEEP,
}


def _default(field: str) -> Any:
    default: Any = BROKER[_KEYS[field]].default_value
    return default / 1000 if field.endswith("_s") else default


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """Settings of the whole broker.

    They are threads and queues of the pools, times in seconds (``_s``) or ms, and limits of the
    caches in bytes (a chunk is a whole number of ``integrity.PIECE_BYTES``). The delays, the limit
    of custom metadata and the switch for sweeps can be changed for the whole cluster at run time.
    """

    copier_threads: int = _default("copier_threads")
    expiration_threads: int = _default("expiration_threads")
    commit_threads: int = _default("commit_threads")
    reader_threads: int = _default("reader_threads")
    reader_pending_max: int = _default("reader_pending_max")
    interval_s: float = _default("interval_s")
    backoff_s: float = _default("backoff_s")
    backoff_max_s: float = _default("backoff_max_s")
    jitter: float = 0.2
    copy_bytes_per_second: int = _default("copy_bytes_per_second")
    copy_windows: int = _default("copy_windows")
    copy_window_seconds: int = _default("copy_window_seconds")
    fetch_bytes_per_second: int = _default("fetch_bytes_per_second")
    fetch_windows: int = _default("fetch_windows")
    fetch_window_seconds: int = _default("fetch_window_seconds")
    index_cache_bytes: int = _default("index_cache_bytes")
    chunk_cache_bytes: int = _default("chunk_cache_bytes")
    chunk_bytes: int = _default("chunk_bytes")
    page_cache_bytes: int = _default("page_cache_bytes")
    delete_delay_ms: int = _default("delete_delay_ms")
    custom_metadata_max_bytes: int = _default("custom_metadata_max_bytes")
    head_check_s: float = _default("head_check_s")
    probe_s: float = _default("probe_s")
    sweep_interval_s: float = _default("sweep_interval_s")
    sweep_delay_ms: int = _default("sweep_delay_ms")
    sweeps: bool = _default("sweeps")

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Read the settings. Raises :class:`ConfigError` with the key."""
        values: dict[str, Any] = {
            field: config.seconds(key) if field.endswith("_s") else config.integer(key)
            for field, key in _KEYS.items()
            if key != SWEEP
        }
        values["sweeps"] = config.boolean(SWEEP)
        return cls(**values)


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
