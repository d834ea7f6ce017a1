"""What a topic's configuration means for its logs: Kafka's keys and Kafka's defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.records.batch import TimestampType

#: ``local.retention.*`` = -2: the same as the topic-wide limit.
LOCAL_SAME_AS_TOTAL = -2
NO_LIMIT = -1

_DAY_MS = 24 * 3600 * 1000
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Limits in bytes or ms; -1 means none for retention, -2 for local retention "as total"."""

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * _DAY_MS
    segment_index_bytes: int = 10 * 1024**2
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = NO_LIMIT
    local_retention_ms: int = LOCAL_SAME_AS_TOTAL
    local_retention_bytes: int = LOCAL_SAME_AS_TOTAL
    max_message_bytes: int = 1024**2 + 12
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = _INT64_MAX
    message_timestamp_after_max_ms: int = 3600 * 1000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_insync_replicas: int = 1
    flush_messages: int = _INT64_MAX
    flush_ms: int = _INT64_MAX
    unclean_leader_election_enable: bool = False

    @classmethod
    def of(cls, entries: Mapping[str, str]) -> "LogConfig":
        """From Kafka's topic keys; unknown keys are ignored here (admission refuses them).

        A value that cannot be read is a ``ValueError`` that names its key.
        """
        values: dict[str, Any] = {}
        for key, (field, parse) in _KEYS.items():
            if key in entries:
                try:
                    values[field] = parse(entries[key].strip())
                except (ValueError, KeyError) as error:
                    raise ValueError(f"{key}={entries[key]!r} cannot be read") from error
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
    def deletes(self) -> bool:
        """Whether ``cleanup.policy`` holds ``delete``."""
        return "delete" in self.cleanup_policy


def _timestamp_type(text: str) -> TimestampType:
    return {
        "CreateTime": TimestampType.CREATE_TIME,
        "LogAppendTime": TimestampType.LOG_APPEND_TIME,
    }[text]


def _policies(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_KEYS: dict[str, tuple[str, Callable[[str], object]]] = {
    "segment.bytes": ("segment_bytes", int),
    "segment.ms": ("segment_ms", int),
    "segment.index.bytes": ("segment_index_bytes", int),
    "index.interval.bytes": ("index_interval_bytes", int),
    "retention.ms": ("retention_ms", int),
    "retention.bytes": ("retention_bytes", int),
    "local.retention.ms": ("local_retention_ms", int),
    "local.retention.bytes": ("local_retention_bytes", int),
    "max.message.bytes": ("max_message_bytes", int),
    "message.timestamp.type": ("message_timestamp_type", _timestamp_type),
    "message.timestamp.before.max.ms": ("message_timestamp_before_max_ms", int),
    "message.timestamp.after.max.ms": ("message_timestamp_after_max_ms", int),
    "cleanup.policy": ("cleanup_policy", _policies),
    "min.insync.replicas": ("min_insync_replicas", int),
    "flush.messages": ("flush_messages", int),
    "flush.ms": ("flush_ms", int),
    "unclean.leader.election.enable": ("unclean_leader_election_enable", _boolean),
}
