"""What groups read of a broker's configuration, by Kafka's keys."""

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

#: Of one group, whatever is configured: the record of a generation of more is larger than a log
#: takes by default, and is made in one go.
MEMBERS_MAX = 10_000


class Migration(enum.Enum):
    """``group.consumer.migration.policy``: whether a group changes its protocol with its members
    in it."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        """When the first member of KIP-848's protocol joins."""
        return self in (Migration.BIDIRECTIONAL, Migration.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        """When the last one goes."""
        return self in (Migration.BIDIRECTIONAL, Migration.DOWNGRADE)


class Now(NamedTuple):
    """One moment, by two clocks: seconds of a monotonic one, for what is due, and milliseconds
    since the epoch, for what stands on record."""

    s: float
    ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Times in milliseconds. ``bytes_max``: what the groups of a broker may take of memory."""

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
    #: What one group may have, by its key: the least and the most.
    group_bounds: Mapping[str, tuple[int, int]]
    migration: Migration
    #: By their names, the one first that members get who ask for none.
    consumer_assignors: tuple[str, ...]
    regex_refresh_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> "GroupSettings":
        """As the broker's file says."""
        return cls(
            initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
            session_timeout_min_ms=config.integer("group.min.session.timeout.ms"),
            session_timeout_max_ms=config.integer("group.max.session.timeout.ms"),
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
