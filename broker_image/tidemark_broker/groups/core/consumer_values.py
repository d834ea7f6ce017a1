"""What a member says in a heartbeat, and what it is told; times in milliseconds."""

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidemark_broker.groups.core.assignors import Assignment

#: Epochs that are none: a member that joins, that leaves, and a static one that will be back.
JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2
NO_TIMEOUT = -1


class ConsumerGroupState(enum.StrEnum):
    """As ListGroups and ConsumerGroupDescribe name them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Topic(NamedTuple):
    """A topic that exists, and how many partitions it has."""

    topic_id: uuid.UUID
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """None and :data:`NO_TIMEOUT` mean: as before. ``regex`` "": none any more. ``resolved``: the
    topics of expressions, as far as the group asked for them
    (:meth:`~.consumer_heartbeats.ConsumerGroups.unresolved`), as of ``topics_version``."""

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
        """Does the member say anything of itself, but that it is there?"""
        return self.rebalance_timeout_ms != NO_TIMEOUT or any(
            each is not None
            for each in (
                self.instance_id,
                self.rack_id,
                self.topic_names,
                self.regex,
                self.server_assignor,
            )
        )

    @property
    def is_full(self) -> bool:
        """Does the member say everything? Then it is told everything."""
        return self.member_epoch == JOIN or (
            self.rebalance_timeout_ms != NO_TIMEOUT
            and (self.topic_names is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """``assignment`` None: as before. To be told once all below ``recorded_below`` is committed."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    recorded_below: int = 0
