"""Settings of the remote log manager: Kafka's broker keys, and a few under ``tidemark.``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tidemark.configuration.broker_keys import (
    CUSTOM_METADATA_MAX_BYTES,
    REMOTE_DELETE_DELAY_MS,
    SWEEP,
    SWEEP_DELAY_MS,
)
from tidemark.configuration.table import BROKER
from tidemark_broker.config import BrokerConfig


def _setting(key: str) -> Any:
    """Declare a field that is read from ``key`` and has its default."""
    default: Any = BROKER[key].default_value
    return field(default=default, metadata={"key": key})


def _seconds(key: str) -> Any:
    """Declare a field in seconds that is read from ``key``, which is in milliseconds."""
    default: Any = BROKER[key].default_value
    return field(default=default / 1000, metadata={"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """Settings of the whole broker.

    They are threads and queues of the pools, times in seconds (``_s``) or ms, and limits of the
    caches in bytes (a chunk is a whole number of ``integrity.PIECE_BYTES``). The delays, the limit
    of custom metadata and the switch for sweeps can be changed for the whole cluster at run time.
    """

    copier_threads: int = _setting("remote.log.manager.copier.thread.pool.size")
    expiration_threads: int = _setting("remote.log.manager.expiration.thread.pool.size")
    commit_threads: int = _setting("tidemark.remote.commit.threads")
    reader_threads: int = _setting("remote.log.reader.threads")
    reader_pending_max: int = _setting("remote.log.reader.max.pending.tasks")
    interval_s: float = _seconds("remote.log.manager.task.interval.ms")
    backoff_s: float = _seconds("remote.log.manager.task.retry.backoff.ms")
    backoff_max_s: float = _seconds("remote.log.manager.task.retry.backoff.max.ms")
    jitter: float = 0.2
    copy_bytes_per_second: int = _setting("remote.log.manager.copy.max.bytes.per.second")
    copy_windows: int = _setting("remote.log.manager.copy.quota.window.num")
    copy_window_seconds: int = _setting("remote.log.manager.copy.quota.window.size.seconds")
    fetch_bytes_per_second: int = _setting("remote.log.manager.fetch.max.bytes.per.second")
    fetch_windows: int = _setting("remote.log.manager.fetch.quota.window.num")
    fetch_window_seconds: int = _setting("remote.log.manager.fetch.quota.window.size.seconds")
    index_cache_bytes: int = _setting("remote.log.index.file.cache.total.size.bytes")
    chunk_cache_bytes: int = _setting("tidemark.remote.chunk.cache.bytes")
    chunk_bytes: int = _setting("tidemark.remote.chunk.bytes")
    page_cache_bytes: int = _setting("tidemark.remote.page.cache.bytes")
    delete_delay_ms: int = _setting(REMOTE_DELETE_DELAY_MS)
    custom_metadata_max_bytes: int = _setting(CUSTOM_METADATA_MAX_BYTES)
    head_check_s: float = _seconds("tidemark.remote.head.check.interval.ms")
    probe_s: float = _seconds("tidemark.remote.store.probe.interval.ms")
    sweep_interval_s: float = _seconds("tidemark.remote.sweep.interval.ms")
    sweep_delay_ms: int = _setting(SWEEP_DELAY_MS)
    sweeps: bool = _setting(SWEEP)

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Read the settings. Raises :class:`ConfigError` with the key."""
        values: dict[str, Any] = {}
        for setting in fields(cls):
            key = setting.metadata.get("key")
            if key is not None:
                read = config.seconds if setting.name.endswith("_s") else config.integer
                values[setting.name] = read(key) if key != SWEEP else config.boolean(key)
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
