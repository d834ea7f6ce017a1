"""Requests and answers of the classic protocol, in the form of the core. Times in ms.

An answer goes to the callable of the request, exactly once, at once or later: when the others have
joined, when the leader's assignment is committed, or when the member is removed.
"""

import enum
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from tidemark_broker.groups.core.assignors import Assignment

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1
#: Size of a member's protocol without its name and metadata.
_PROTOCOL_BYTES = 250
#: Longest part of a name in a log line, since clients' names may have 32 KiB.
_SHOWN_MAX = 200


def shown(text: str) -> str:
    """Return a client's name in a form for log lines: one line of limited length."""
    return repr(text[:_SHOWN_MAX])[1:-1]


class GroupState(enum.StrEnum):
    """States as ListGroups and DescribeGroups name them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, with its subscription."""

    name: str
    metadata: bytes


def weight_of(protocols: tuple[MemberProtocol, ...]) -> int:
    """Approximate memory in bytes."""
    return sum(
        _PROTOCOL_BYTES + len(protocol.name) + len(protocol.metadata) for protocol in protocols
    )


class MemberIdentity(NamedTuple):
    """Identity of a member; static with ``instance_id`` (KIP-345)."""

    member_id: str
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    """A member in the leader's answer."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """Answer to a join.

    ``members`` is for the leader only. ``skip_assignment``: it must not assign (KIP-814).
    """

    error: ErrorCode = ErrorCode.none
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """Assignment of a member in its generation."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


Join: TypeAlias = Callable[[JoinAnswer], None]
Sync: TypeAlias = Callable[[SyncAnswer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """Request to join.

    ``needs_member_id``: a new dynamic member gets its id first (version 4, KIP-394).
    ``may_skip_assignment``: version 9. ``new_id`` is a unique id for a member without one.
    """

    group_id: str
    who: MemberIdentity
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    needs_member_id: bool
    may_skip_assignment: bool
    new_id: str
    answer: Join

    @property
    def weight_bytes(self) -> int:
        """Memory in bytes that the member needs."""
        return weight_of(self.protocols)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """Request for an assignment. ``assignments`` by member id, from the leader only."""

    group_id: str
    who: MemberIdentity
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Sequence[tuple[str, bytes]]
    answer: Sync


# ------------------------------------------------------------ consumer protocol

# Values of consumer-protocol heartbeats and answers. Times are in milliseconds.

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
