"""Requests to brokers that decisions need, and their answers, in the core's values.

The engine decides how a request reaches a broker. Error codes are Kafka's. An answer counts only
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
    """One replica's part: done, or the error (REQUEST_TIMED_OUT: still in progress)."""

    partition: int
    error_code: int
    leader_epoch: int
    is_leader: bool
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DisablementAnswer:
    """Progress of one broker."""

    broker_epoch: int
    tiered_epoch: int
    replicas: tuple[DisabledReplica, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierDeletion:
    """Request to remove a deleted topic's data from the tier; ``tiered_epoch`` -1: never tiered."""

    topic_id: uuid.UUID
    name: str
    tiered_epoch: int
    partitions: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierDeletionAnswer:
    """Answer to a TierDeletion; REQUEST_TIMED_OUT: the broker is still working on it."""

    error_code: int
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogAnswer:
    """End of a replica's log (KIP-966), and the committed offsets that it has lost."""

    key: RowKey
    error_code: int
    leader_epoch: int
    end: LogEnd
    lost: range = range(0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogsAnswer:
    """One broker's answer about the logs of its replicas."""

    broker_epoch: int
    logs: tuple[ReplicaLogAnswer, ...]
