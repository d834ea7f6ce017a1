"""OffsetCommit (8): store the committed offsets of a group or of a standalone consumer."""

import uuid
from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10 import request as v10

from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.group_offsets import NewOffset, OffsetCommitter
from tidemark_broker.groups.core.offsets import OffsetKey
from tidemark_broker.groups.core.values import MemberIdentity
from tidemark_broker.replication.metadata import TopicMetadata
from tidemark_broker.security.acls import Operation, ResourceType

_BY_ID_SINCE = 10
#: Default of ``retention_time``: the broker's ``offsets.retention.minutes``.
_AS_THE_BROKER_SAYS = timedelta(milliseconds=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic(v10.OffsetCommitRequestTopic):
    """Topic with a name until version 9."""

    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(v10.OffsetCommitRequest):
    """Request with ``retention_time`` until version 4."""

    topics: tuple[OffsetCommitRequestTopic, ...]
    retention_time: timedelta = _AS_THE_BROKER_SAYS


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    partition_index: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    """One topic, with the identification of the request."""

    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[OffsetCommitResponsePartition, ...]


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponse:
    """Results in the order of the request."""

    topics: tuple[OffsetCommitResponseTopic, ...]
    throttle_time: timedelta = ZERO


class _CommitEntry(NamedTuple):
    """One partition: its error, or the offset to store."""

    error: ErrorCode
    new: NewOffset | None


async def handle(request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
    """Store a group's committed offsets, and answer once they are committed to its log."""
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return await _answer(request, call, iter(()), ErrorCode.group_authorization_failed)
    # Ids are resolved once, since the topics may change while the loop yields.
    views = [_view(topic, call) for topic in request.topics]
    # Names resolved from ids are authorized too, so that an id cannot bypass the ACL.
    names = {view.name for view in views if view is not None} | {t.name for t in request.topics}
    denied = await call.denied(Operation.READ, names)
    entries = await call.time_slice.collect(_entries(request, views, denied, call))
    kept = [entry.new for entry in entries if entry.new is not None]
    errors: list[ErrorCode] = []
    if kept:
        try:
            errors = await call.services.groups.commit(
                _by(request, call), kept, call.time_slice.renew_if_over
            )
        except CoordinatorError as error:
            errors = [error.error_code] * len(kept)
    # Errors of stored offsets are matched with their partitions by order.
    remaining = iter(errors)
    answers = (entry.error if entry.new is None else next(remaining) for entry in entries)
    return await _answer(request, call, answers)


def _by(request: OffsetCommitRequest, call: Call) -> OffsetCommitter:
    return OffsetCommitter(
        group_id=request.group_id,
        who=MemberIdentity(request.member_id, request.group_instance_id),
        generation_id=request.generation_id_or_member_epoch,
        version=call.version,
        retention_ms=milliseconds(request.retention_time),
    )


def _view(topic: OffsetCommitRequestTopic, call: Call) -> TopicMetadata | None:
    cluster = call.services.cluster
    if call.version < _BY_ID_SINCE:
        return cluster.topics.get(topic.name)
    return None if topic.topic_id is None else cluster.by_id(topic.topic_id)


def _entries(
    request: OffsetCommitRequest,
    views: list[TopicMetadata | None],
    denied: Set[str],
    call: Call,
) -> Iterator[_CommitEntry]:
    """Yield one entry for each partition in the order of the request: the new offset, or an error.

    ``views`` are the request's topics in this broker's metadata, None for unknown ones. ``denied``
    contains names that the client may not read.
    """
    # An id of a deleted topic is an error of its own, from which clients refresh their metadata.
    by_id = call.version >= _BY_ID_SINCE
    # Kafka distinguishes an unknown id from an unknown name.
    unknown = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    for topic, view in zip(request.topics, views, strict=True):
        name = topic.name if view is None else view.name
        for part in topic.partitions:
            if name in denied:
                yield _CommitEntry(ErrorCode.topic_authorization_failed, None)
            elif view is None:
                yield _CommitEntry(unknown, None)
            elif part.partition_index not in view.partitions:
                yield _CommitEntry(ErrorCode.unknown_topic_or_partition, None)
            else:
                yield _CommitEntry(ErrorCode.none, _new(view, part))


def _new(view: TopicMetadata, part: Any) -> NewOffset:
    return NewOffset(
        of=OffsetKey(view.name, part.partition_index),
        offset=part.committed_offset,
        leader_epoch=part.committed_leader_epoch,
        metadata=part.committed_metadata,
        topic_id=view.topic_id,
    )


async def _answer(
    request: OffsetCommitRequest,
    call: Call,
    errors: Iterator[ErrorCode],
    error_of_all: ErrorCode = ErrorCode.none,
) -> OffsetCommitResponse:
    """Return the response with one error code for each partition.

    ``errors`` are in the order of the request. ``error_of_all`` is used once they are exhausted.
    """
    # Errors are in the order of the partitions; a group error fills in for all of them.
    topics = []
    for topic in request.topics:
        partitions = await call.time_slice.collect(
            OffsetCommitResponsePartition(
                partition_index=part.partition_index, error_code=next(errors, error_of_all)
            )
            for part in topic.partitions
        )
        topics.append(
            OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions)
            )
        )
    return OffsetCommitResponse(topics=tuple(topics))


API = Api(
    key=8,
    name="OffsetCommit",
    version_min=2,
    version_max=10,
    request=OffsetCommitRequest,
    answer=OffsetCommitResponse,
    handler=handle,
)
