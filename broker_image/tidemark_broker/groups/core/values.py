"""Requests and answers of the classic protocol, as the core speaks of them; times in milliseconds.

An answer goes to the callable that came with the request, exactly once, at once or later: when the
others have joined, when the leader's assignment is committed, or when the member is gone.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1
#: What a protocol of a member weighs beside its name and metadata.
_PROTOCOL_BYTES = 250
#: Of a name in a log line; those of clients may have 32 KiB.
_SHOWN_MAX = 200


def shown(text: str) -> str:
    """A name that a client has made up, as log lines have it: in one line, and not too long."""
    return repr(text[:_SHOWN_MAX])[1:-1]


class GroupState(enum.StrEnum):
    """As ListGroups and DescribeGroups name them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Protocol(NamedTuple):
    """An assignor that a member can do, and what it subscribes to with that."""

    name: str
    metadata: bytes


def weight_of(protocols: tuple[Protocol, ...]) -> int:
    """About what they take of memory, in bytes."""
    return sum(_PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols)


class Identity(NamedTuple):
    """Who a member says it is; with ``instance_id`` a static one (KIP-345)."""

    member_id: str
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    """One of a generation, as its leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """``members`` for the leader only; ``skip_assignment``: it need not assign (KIP-814)."""

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
    """What a member is to do in this generation."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


Join: TypeAlias = Callable[[JoinAnswer], None]
Sync: TypeAlias = Callable[[SyncAnswer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """``needs_member_id``: a new dynamic member is given an id first (version 4, KIP-394);
    ``may_skip_assignment``: version 9. ``new_id`` is unique, for a member that has none."""

    group_id: str
    who: Identity
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    needs_member_id: bool
    may_skip_assignment: bool
    new_id: str
    answer: Join

    @property
    def weight_bytes(self) -> int:
        """What it wants to be kept."""
        return weight_of(self.protocols)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """``assignments`` by member id, of the leader only."""

    group_id: str
    who: Identity
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Sequence[tuple[str, bytes]]
    answer: Sync
