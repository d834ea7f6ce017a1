"""Settings of groups from the broker's configuration, by Kafka's keys."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.configuration.group_keys import (
    ASSIGNMENT_INTERVAL_MS,
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
)
from tidemark_broker.config import BrokerConfig
from tidemark_broker.config_entries import key_field, text_of, values_of
from tidemark_broker.groups.core.assignors import ASSIGNORS

#: Limit of one group, whatever is configured. The record of a larger generation exceeds a log's
#: default limit, and is written as one record.
MEMBERS_MAX = 10_000


class Migration(enum.Enum):
    """Values of ``group.consumer.migration.policy``: online changes of a group's protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        """True if a group is upgraded when its first consumer-protocol member joins."""
        return self in (Migration.BIDIRECTIONAL, Migration.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        """True if a group is downgraded when its last consumer-protocol member leaves."""
        return self in (Migration.BIDIRECTIONAL, Migration.DOWNGRADE)


class Now(NamedTuple):
    """One moment in two clocks: monotonic seconds for deadlines, ms since the epoch for records."""

    s: float
    ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of groups. Times in ms. ``bytes_max`` is the memory limit of a broker's groups."""

    initial_rebalance_delay_ms: int = key_field("group.initial.rebalance.delay.ms")
    session_timeout_min_ms: int = key_field("group.min.session.timeout.ms")
    session_timeout_max_ms: int = key_field("group.max.session.timeout.ms")
    size_max: int = key_field("group.max.size")
    bytes_max: int = key_field("tidemark.groups.bytes.max")
    offset_metadata_max: int = key_field("offset.metadata.max.bytes")
    offsets_retention_ms: int
    retention_check_ms: int = key_field("offsets.retention.check.interval.ms")
    commit_timeout_ms: int = key_field("offsets.commit.timeout.ms")
    consumer_session_timeout_ms: int = key_field("group.consumer.session.timeout.ms")
    consumer_heartbeat_interval_ms: int = key_field("group.consumer.heartbeat.interval.ms")
    consumer_size_max: int = key_field("group.consumer.max.size")
    consumer_assignment_interval_ms: int = key_field("group.consumer.assignment.interval.ms")
    #: Minimum and maximum of a group's own values, by key.
    group_bounds: Mapping[str, tuple[int, int]]
    migration: Migration
    #: Names of assignors; the first one is the default.
    consumer_assignors: tuple[str, ...]
    regex_refresh_ms: int = key_field("group.consumer.regex.refresh.interval.ms")

    @classmethod
    def of(cls, config: BrokerConfig) -> "GroupSettings":
        """Read the settings from the broker's configuration, by Kafka's keys."""
        values = values_of(cls, config.entries)
        # Kafka's default is unlimited, which would allow records that no log accepts.
        for name in ("size_max", "consumer_size_max"):
            values[name] = min(values[name], MEMBERS_MAX)
        return cls(
            **values,
            offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
            group_bounds={
                SESSION_TIMEOUT_MS: (
                    config.integer("group.consumer.min.session.timeout.ms"),
                    config.integer("group.consumer.max.session.timeout.ms"),
                ),
                HEARTBEAT_INTERVAL_MS: (
                    config.integer("group.consumer.min.heartbeat.interval.ms"),
                    config.integer("group.consumer.max.heartbeat.interval.ms"),
                ),
                ASSIGNMENT_INTERVAL_MS: (
                    config.integer("group.consumer.min.assignment.interval.ms"),
                    config.integer("group.consumer.max.assignment.interval.ms"),
                ),
            },
            migration=Migration(text_of(config.entries, "group.consumer.migration.policy")),
            consumer_assignors=tuple(ASSIGNORS),
        )


# ------------------------------------------------------------ settings of single groups

# Effective configuration of a consumer group: its own value, else the broker's (Kafka's
# GroupConfigManager).

#: Returns a group's own configuration by Kafka's keys.
GroupConfigOf = Callable[[str], Mapping[str, str]]


class GroupConfigs:
    """Configuration of consumer-protocol groups, in ms.

    A group's value outside the broker's bounds is replaced by the nearest bound. Pure.
    """

    def __init__(self, settings: GroupSettings, own: GroupConfigOf) -> None:
        self._settings = settings
        self._own = own

    def session_timeout_ms(self, group_id: str) -> int:
        """Session timeout of the group's members."""
        default_ms = self._settings.consumer_session_timeout_ms
        return self._of(group_id, SESSION_TIMEOUT_MS, default_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Interval in which members should send heartbeats."""
        default_ms = self._settings.consumer_heartbeat_interval_ms
        return self._of(group_id, HEARTBEAT_INTERVAL_MS, default_ms)

    def assignment_interval_ms(self, group_id: str) -> int:
        """Minimum interval between two computations of targets."""
        default_ms = self._settings.consumer_assignment_interval_ms
        return self._of(group_id, ASSIGNMENT_INTERVAL_MS, default_ms)

    def _of(self, group_id: str, key: str, default_ms: int) -> int:
        text = self._own(group_id).get(key)
        if text is None:
            return default_ms
        # Bounds may have been narrowed after the value was set, so it is clamped when it is read.
        least, most = self._settings.group_bounds[key]
        return min(max(int(text), least), most)


def config_error(config: Mapping[str, str], settings: GroupSettings) -> str | None:
    """Return the problem with a group's configuration, or None if it is valid.

    The text is that of Kafka's ``GroupConfig.validate``.
    """
    for key, (least, most) in settings.group_bounds.items():
        # A key that is not set has the broker's value, which is valid by itself.
        if key not in config:
            continue
        value, name = int(config[key]), key.removeprefix("consumer.")
        if value < least:
            return f"{key} must be greater than or equal to group.consumer.min.{name}"
        if value > most:
            return f"{key} must be less than or equal to group.consumer.max.{name}"
    # The two values are compared after defaults, since only one of them may be set.
    session_ms = int(config.get(SESSION_TIMEOUT_MS, settings.consumer_session_timeout_ms))
    heartbeat_ms = int(config.get(HEARTBEAT_INTERVAL_MS, settings.consumer_heartbeat_interval_ms))
    if session_ms <= heartbeat_ms:
        return f"{SESSION_TIMEOUT_MS} must be greater than {HEARTBEAT_INTERVAL_MS}"
    return None
