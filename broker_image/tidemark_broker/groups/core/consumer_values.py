"""Values of consumer-protocol heartbeats and answers. Times are in milliseconds."""

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidemark_broker.groups.core.assignors import Assignment

#: Special epochs: a joining member, a leaving one, and a static one that leaves temporarily.
JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2
NO_TIMEOUT = -1


class ConsumerGroupState(enum.StrEnum):
    """States as ListGroups and ConsumerGroupDescribe name them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class SubscribedTopic(NamedTuple):
    """An existing topic and its number of partitions."""

    topic_id: uuid.UUID
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """One heartbeat.

    None and :data:`NO_TIMEOUT` mean unchanged, ``regex`` "" means removed. ``resolved`` has the
    topics of the expressions that the group requested
    (:meth:`~.consumer_heartbeats.ConsumerGroups.unresolved`), as of ``topics_version``.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    topic_names: tuple[str, ...] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    resolved: Mapping[str, frozenset[str]] | None = None
    topics_version: int = 0

    @property
    def says_more(self) -> bool:
        """True if the heartbeat contains anything about the member itself."""
        return self.rebalance_timeout_ms != NO_TIMEOUT or any(
            value is not None
            for value in (
                self.instance_id,
                self.rack_id,
                self.topic_names,
                self.regex,
                self.server_assignor,
            )
        )

    @property
    def is_full(self) -> bool:
        """True if all fields are set. The answer then contains the assignment even if unchanged."""
        return self.member_epoch == JOIN or (
            self.rebalance_timeout_ms != NO_TIMEOUT
            and (self.topic_names is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """Answer to a heartbeat. ``assignment`` None means unchanged.

    It may be sent once the log is committed up to ``recorded_below``.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    recorded_below: int = 0
