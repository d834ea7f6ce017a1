"""What brokers are asked for the sake of a decision, and what they answer, in the core's values.

How a question reaches a broker is the engine's business. Error codes are Kafka's; an answer counts
under the epochs that it carries.
"""

import dataclasses
import uuid

from tidemark.tiering import DisablePolicy
from tidemark_operator.controller.model import LogEnd, RowKey


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Disablement:
    """KIP-950's ``DisableRemoteTopic``, for the partitions that one broker hosts."""

    topic_id: uuid.UUID
    tiered_epoch: int
    policy: DisablePolicy
    partitions: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DisabledReplica:
    """One replica's part: done, or why not (REQUEST_TIMED_OUT: still at work)."""

    partition: int
    error_code: int
    leader_epoch: int
    is_leader: bool
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DisablementAnswer:
    """How far one broker is."""

    broker_epoch: int
    tiered_epoch: int
    replicas: tuple[DisabledReplica, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierDeletion:
    """Remove what a deleted topic left in the tier; ``tiered_epoch`` -1: it never was tiered."""

    topic_id: uuid.UUID
    name: str
    tiered_epoch: int
    partitions: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierDeletionAnswer:
    """REQUEST_TIMED_OUT: the broker is still at work."""

    error_code: int
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogAnswer:
    """Where a replica's log ends (KIP-966), and the committed offsets that it has lost."""

    key: RowKey
    error_code: int
    leader_epoch: int
    end: LogEnd
    lost: range = range(0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogsAnswer:
    """What one broker says of the replicas that it was asked about."""

    broker_epoch: int
    logs: tuple[ReplicaLogAnswer, ...]
