"""Log settings of a topic.

Keys, types and defaults are those of the library's table: a field is its key with underscores,
unless it is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tidemark.configuration.table import TOPIC
from tidemark.configuration.values import INT64_MAX
from tidemark.records.batch import TimestampType

#: ``local.retention.*`` = -2: the same as the topic-wide limit.
LOCAL_SAME_AS_TOTAL = -2


def _default(name: str) -> Any:
    return TOPIC[name].default_value


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Limits in bytes or ms; -1 means none for retention, -2 for local retention "as total"."""

    segment_bytes: int = _default("segment.bytes")
    segment_ms: int = _default("segment.ms")
    segment_index_bytes: int = _default("segment.index.bytes")
    index_interval_bytes: int = _default("index.interval.bytes")
    retention_ms: int = _default("retention.ms")
    retention_bytes: int = _default("retention.bytes")
    local_retention_ms: int = _default("local.retention.ms")
    local_retention_bytes: int = _default("local.retention.bytes")
    max_message_bytes: int = _default("max.message.bytes")
    message_timestamp_type: TimestampType = field(default=_default("message.timestamp.type"))
    message_timestamp_before_max_ms: int = _default("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = _default("message.timestamp.after.max.ms")
    cleanup_policy: frozenset[str] = _default("cleanup.policy")
    min_cleanable_dirty_ratio: float = _default("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _default("min.compaction.lag.ms")
    max_compaction_lag_ms: int = _default("max.compaction.lag.ms")
    delete_retention_ms: int = _default("delete.retention.ms")
    min_insync_replicas: int = _default("min.insync.replicas")
    flush_messages: int = _default("flush.messages")
    flush_ms: int = _default("flush.ms")
    unclean_leader_election_enable: bool = _default("unclean.leader.election.enable")
    remote_storage_enable: bool = _default("remote.storage.enable")
    remote_copy_lag_ms: int = _default("remote.copy.lag.ms")
    remote_copy_lag_bytes: int = _default("remote.copy.lag.bytes")
    tidemark_remote_copy_max_lag_ms: int = _default("tidemark.remote.copy.max.lag.ms")
    tidemark_remote_copy_max_lag_bytes: int = _default("tidemark.remote.copy.max.lag.bytes")
    tidemark_remote_copy_paused: bool = _default("tidemark.remote.copy.paused")
    tidemark_remote_compression: str = _default("tidemark.remote.compression")
    # Computed once, because each append reads them.
    #: Whether ``cleanup.policy`` contains ``compact``.
    compacts: bool = field(init=False, repr=False)
    #: Age at which a segment is closed. Only closed segments are compacted, so the compaction lag
    #: limits it (Kafka's ``LogConfig.maxSegmentMs``).
    effective_segment_ms: int = field(init=False, repr=False)
    #: Size at which a segment is closed. A tiered log closes it at half of its maximum lag, because
    #: the next segment grows while this one is uploaded.
    effective_segment_bytes: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compute the fields that depend on others."""
        compacts = "compact" in self.cleanup_policy
        size = self.segment_bytes
        if self.remote_storage_enable:
            size = min(size, self.tidemark_remote_copy_max_lag_bytes // 2)
        lag_ms = self.max_compaction_lag_ms if compacts else self.segment_ms
        object.__setattr__(self, "compacts", compacts)
        object.__setattr__(self, "effective_segment_ms", min(self.segment_ms, lag_ms))
        object.__setattr__(self, "effective_segment_bytes", size)

    @classmethod
    def of(cls, entries: Mapping[str, str]) -> "LogConfig":
        """Parse a topic's configuration, with defaults for missing keys.

        Unknown keys are ignored here, because admission rejects them. Raises ``ValueError``, which
        names the key, for a value that cannot be parsed.
        """
        values: dict[str, Any] = {}
        for field_ in fields(cls):
            if not field_.init:
                continue
            key = TOPIC[field_.name.replace("_", ".")]
            if key.name in entries:
                try:
                    values[field_.name] = key.type.parse(entries[key.name].strip())
                except ValueError as error:
                    raise ValueError(
                        f"{key.name}={entries[key.name]!r} cannot be parsed"
                    ) from error
        return cls(**values)

    @property
    def effective_local_retention_ms(self) -> int:
        """``local.retention.ms`` with -2 replaced by the topic-wide value."""
        local = self.local_retention_ms
        return self.retention_ms if local == LOCAL_SAME_AS_TOTAL else local

    @property
    def effective_local_retention_bytes(self) -> int:
        """``local.retention.bytes`` with -2 replaced by the topic-wide value."""
        local = self.local_retention_bytes
        return self.retention_bytes if local == LOCAL_SAME_AS_TOTAL else local

    @property
    def effective_copy_lag_ms(self) -> int:
        """``remote.copy.lag.ms`` with -1 replaced by the local retention, -1 if that is
        unlimited.
        """
        lag = self.remote_copy_lag_ms
        return self.effective_local_retention_ms if lag < 0 else lag

    @property
    def effective_copy_lag_bytes(self) -> int:
        """``remote.copy.lag.bytes`` with -1 replaced by the local retention, -1 if that is
        unlimited.
        """
        lag = self.remote_copy_lag_bytes
        return self.effective_local_retention_bytes if lag < 0 else lag

    @property
    def delays_copies(self) -> bool:
        """Whether a closed segment is not copied at once (KIP-1241)."""
        return 0 not in (self.effective_copy_lag_ms, self.effective_copy_lag_bytes)

    @property
    def limits_lag(self) -> bool:
        """Whether the time or the bytes that may wait for the tier are limited."""
        return self.limits_lag_time or self.limits_lag_bytes

    @property
    def limits_lag_bytes(self) -> bool:
        """Whether the bytes that may wait for the tier are limited."""
        return self.tidemark_remote_copy_max_lag_bytes < INT64_MAX

    @property
    def limits_lag_time(self) -> bool:
        """Whether the time that a committed record may wait for the tier is limited."""
        return self.tidemark_remote_copy_max_lag_ms < INT64_MAX

    @property
    def early_close_ms(self) -> int:
        """Age of the oldest waiting record at which the leader closes the active segment.

        It is half of the maximum lag. The other half is for the upload.
        """
        return self.tidemark_remote_copy_max_lag_ms // 2

    @property
    def compresses_remote(self) -> bool:
        """Whether segments are compressed when they are copied to the tier."""
        return self.tidemark_remote_compression == "zstd"

    @property
    def deletes(self) -> bool:
        """Whether ``cleanup.policy`` contains ``delete``."""
        return "delete" in self.cleanup_policy
