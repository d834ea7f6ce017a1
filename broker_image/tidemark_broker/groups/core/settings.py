"""Settings of groups from the broker's configuration, by Kafka's keys."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.configuration.group_keys import (
    ASSIGNMENT_INTERVAL_MS,
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
)
from tidemark_broker.config import BrokerConfig
from tidemark_broker.config_entries import text_of
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

    initial_rebalance_delay_ms: int
    session_timeout_min_ms: int
    session_timeout_max_ms: int
    size_max: int
    bytes_max: int
    offset_metadata_max: int
    offsets_retention_ms: int
    retention_check_ms: int
    commit_timeout_ms: int
    consumer_session_timeout_ms: int
    consumer_heartbeat_interval_ms: int
    consumer_size_max: int
    consumer_assignment_interval_ms: int
    #: Minimum and maximum of a group's own values, by key.
    group_bounds: Mapping[str, tuple[int, int]]
    migration: Migration
    #: Names of assignors; the first one is the default.
    consumer_assignors: tuple[str, ...]
    regex_refresh_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> "GroupSettings":
        """Read the settings from the broker's configuration, by Kafka's keys."""
        return cls(
            initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
            session_timeout_min_ms=config.integer("group.min.session.timeout.ms"),
            session_timeout_max_ms=config.integer("group.max.session.timeout.ms"),
            # Kafka's default is unlimited, which would allow records that no log accepts.
            size_max=min(config.integer("group.max.size"), MEMBERS_MAX),
            bytes_max=config.integer("tidemark.groups.bytes.max"),
            offset_metadata_max=config.integer("offset.metadata.max.bytes"),
            offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
            retention_check_ms=config.integer("offsets.retention.check.interval.ms"),
            commit_timeout_ms=config.integer("offsets.commit.timeout.ms"),
            consumer_session_timeout_ms=config.integer("group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval_ms=config.integer("group.consumer.heartbeat.interval.ms"),
            consumer_size_max=min(config.integer("group.consumer.max.size"), MEMBERS_MAX),
            consumer_assignment_interval_ms=config.integer("group.consumer.assignment.interval.ms"),
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
            regex_refresh_ms=config.integer("group.consumer.regex.refresh.interval.ms"),
        )
