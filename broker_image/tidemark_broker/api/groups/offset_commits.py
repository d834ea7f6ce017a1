"""OffsetCommit (8), TxnOffsetCommit (28) and OffsetDelete (47): committed offsets of a group.

OffsetCommit, versions 2 to 10:

- 2: retention time
- 3: throttle time
- 5: no retention time any more
- 6: leader epoch (KIP-320)
- 7: static members (KIP-345)
- 8: flexible
- 9: members of the consumer protocol (KIP-848)
- 10: topics by id

TxnOffsetCommit, versions 0 to 5:

- 2: leader epoch
- 3: flexible, and the member's identity (KIP-447)
- 4: the client understands TRANSACTION_ABORTABLE (KIP-890)
- 5: the request adds the group to the transaction, without AddOffsetsToTxn (KIP-890)

OffsetDelete has version 0 (KIP-496).

Behaviour:

- Topics are checked one by one, and the offsets of the others are stored.
- Offsets are answered once they are committed to the group's log. Those of a transaction count once
  its marker commits them.
- An offset carries the topic's id. It does not count for a later topic of the same name.
- OffsetDelete keeps the offsets of topics that the group consumes.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10 import request as v10
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorLog, TransactionalProducer
from tidemark_broker.groups.core.group_offsets import NewOffset, OffsetCommitter
from tidemark_broker.groups.core.offsets import OffsetKey
from tidemark_broker.groups.core.values import MemberIdentity
from tidemark_broker.log import VerificationGuard
from tidemark_broker.replication import types
from tidemark_broker.replication.metadata import TopicMetadata
from tidemark_broker.transactions import verification
from tidemark_broker.transactions.core.metadata import Producer

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
class OffsetPartitionError:
    """Result of one partition, in the answers to all three Apis."""

    partition_index: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class OffsetTopicErrors:
    """One topic, with the identification of the request."""

    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[OffsetPartitionError, ...]


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponse(ThrottledAnswer):
    """Results in the order of the request, also of TxnOffsetCommit."""

    topics: tuple[OffsetTopicErrors, ...]


class _CommitEntry(NamedTuple):
    """One partition: its error, or the offset to store."""

    error: ErrorCode
    new: NewOffset | None


async def commit(request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
    """Store a group's committed offsets, and answer once they are committed to its log."""
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return await _refused(request, call, ErrorCode.group_authorization_failed)
    # Ids are resolved once, since the topics may change while the loop yields.
    views = [_view(topic, call) for topic in request.topics]
    # Names resolved from ids are authorized too, so that an id cannot bypass the ACL.
    names = {view.name for view in views if view is not None} | {t.name for t in request.topics}
    denied = await call.denied(Operation.READ, names)
    # Kafka distinguishes an unknown id, from which clients refresh their metadata, from an unknown
    # name.
    by_id = call.version >= _BY_ID_SINCE
    unknown = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    entries = await call.time_slice.collect(_entries(request, views, denied, unknown))
    new = [entry.new for entry in entries if entry.new is not None]
    try:
        by = _by(request, call)
        errors = (
            await call.services.groups.commit(by, new, call.time_slice.renew_if_over) if new else []
        )
    except CoordinatorError as error:
        errors = [error.error_code] * len(new)
    return OffsetCommitResponse(
        topics=await _results(request.topics, call, _matched(entries, errors))
    )


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
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    views: Sequence[TopicMetadata | None],
    denied: Set[str],
    unknown: ErrorCode,
) -> Iterator[_CommitEntry]:
    """Yield one entry for each partition in the order of the request: the new offset, or an error.

    ``views`` are the request's topics in this broker's metadata, None for unknown ones, which get
    the error ``unknown``. ``denied`` contains names that the client may not read.
    """
    topics: Sequence[Any] = request.topics
    for topic, view in zip(topics, views, strict=True):
        name = topic.name if view is None else view.name
        for part in topic.partitions:
            # As in Kafka, authorization is checked before existence, which it would reveal.
            if name in denied:
                yield _CommitEntry(ErrorCode.topic_authorization_failed, None)
            elif view is None:
                yield _CommitEntry(unknown, None)
            elif part.partition_index not in view.partitions:
                yield _CommitEntry(ErrorCode.unknown_topic_or_partition, None)
            else:
                new = NewOffset(
                    of=OffsetKey(view.name, part.partition_index),
                    offset=part.committed_offset,
                    leader_epoch=part.committed_leader_epoch,
                    metadata=part.committed_metadata,
                    # The id distinguishes the offset from one of a deleted topic of that name.
                    topic_id=view.topic_id,
                )
                yield _CommitEntry(ErrorCode.none, new)


def _matched(entries: Iterable[_CommitEntry], errors: Iterable[ErrorCode]) -> Iterator[ErrorCode]:
    """Yield the error of each partition; ``errors`` are those of the stored offsets, in order."""
    remaining = iter(errors)
    return (entry.error if entry.new is None else next(remaining) for entry in entries)


async def _refused(
    request: OffsetCommitRequest | TxnOffsetCommitRequest, call: Call, error: ErrorCode
) -> OffsetCommitResponse:
    """Return an answer with the error of the group for all partitions."""
    return OffsetCommitResponse(topics=await _results(request.topics, call, repeat(error)))


async def _results(
    topics: Sequence[Any], call: Call, errors: Iterator[ErrorCode]
) -> tuple[OffsetTopicErrors, ...]:
    """Return the results of the request's topics; ``errors`` are in the order of the partitions."""
    results = []
    for topic in topics:
        partitions = await call.time_slice.collect(
            OffsetPartitionError(partition_index=part.partition_index, error_code=next(errors))
            for part in topic.partitions
        )
        results.append(
            OffsetTopicErrors(
                name=topic.name,
                # Only OffsetCommit has topic ids.
                topic_id=getattr(topic, "topic_id", None),
                partitions=tuple(partitions),
            )
        )
    return tuple(results)


COMMIT = Api(commit, versions=(2, 10))


# ---------------------------------------------------------------- TxnOffsetCommit

#: From these versions the request adds the partition to the transaction, and clients understand
#: TRANSACTION_ABORTABLE.
_ADDS_SINCE = 5
_ABORTABLE_SINCE = 4


async def commit_in_transaction(
    request: TxnOffsetCommitRequest, call: Call
) -> OffsetCommitResponse:
    """Store offsets of a group as part of a transaction, pending until its marker commits them.

    Answers once the pending offsets are committed to the group's log.
    """
    transactional_id, may = request.transactional_id, call.client.may
    if not may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return await _refused(request, call, ErrorCode.transactional_id_authorization_failed)
    if not transactional_id:
        return await _refused(request, call, ErrorCode.invalid_request)
    if not may(Operation.READ, ResourceType.GROUP, request.group_id):
        return await _refused(request, call, ErrorCode.group_authorization_failed)
    # As in Kafka, topics are checked one by one, and the others are still committed.
    denied = await call.denied(Operation.READ, (topic.name for topic in request.topics))
    views = [call.services.cluster.topics.get(topic.name) for topic in request.topics]
    unknown = ErrorCode.unknown_topic_or_partition
    entries = await call.time_slice.collect(_entries(request, views, denied, unknown))
    new = [entry.new for entry in entries if entry.new is not None]
    try:
        errors = await _committed(request, new, call) if new else []
    except CoordinatorError as failed:
        errors = [failed.error_code] * len(new)
    return OffsetCommitResponse(
        topics=await _results(request.topics, call, _matched(entries, errors))
    )


async def _committed(
    request: TxnOffsetCommitRequest, new: list[NewOffset], call: Call
) -> list[ErrorCode]:
    """Verify the transaction, write the pending offsets, and return their error codes in order.

    Raises :class:`CoordinatorError` if this broker does not coordinate the group.
    """
    if not request.group_id:
        return [ErrorCode.invalid_group_id] * len(new)
    groups = call.services.groups
    producer = TransactionalProducer(request.producer_id, request.producer_epoch)
    log = groups.log_of(request.group_id)
    # The transaction must include the offsets partition before anything is written to it.
    found = await _verified(request, producer, log, call)
    if isinstance(found, ErrorCode):
        return [found] * len(new)
    by = OffsetCommitter(
        group_id=request.group_id,
        who=MemberIdentity(request.member_id, request.group_instance_id),
        generation_id=request.generation_id,
        producer=producer,
    )
    # The log requires the guard with the producer's next append.
    if found is not None:
        log.verified(producer, found)
    return await groups.commit(by, new, call.time_slice.renew_if_over)


async def _verified(
    request: TxnOffsetCommitRequest,
    producer: TransactionalProducer,
    log: CoordinatorLog,
    call: Call,
) -> VerificationGuard | ErrorCode | None:
    """Verify that the transaction includes the group's offsets partition (KIP-890).

    Return the guard that the log requires, None if none is needed, or the error. Transient errors
    are converted so that clients do not look for another group coordinator.
    """
    # From version 5 the verification also adds the partition, so AddOffsetsToTxn is not needed.
    adds = call.version >= _ADDS_SINCE
    tp = types.TopicPartition(*log.partition.tp)
    found = await verification.verified(
        call.services.transactions.inquiries,
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        {tp: partial(log.begin_verification, producer)},
        adds=adds,
    )
    error = found.get(tp)
    if error is None or isinstance(error, VerificationGuard):
        return error
    # COORDINATOR_LOAD_IN_PROGRESS makes clients retry without a new lookup.
    if error in verification.PASSES:
        return ErrorCode.coordinator_load_in_progress
    return verification.as_client_knows(error, knows_abortable=call.version >= _ABORTABLE_SINCE)


COMMIT_IN_TRANSACTION = Api(commit_in_transaction, versions=(0, 5))


# ---------------------------------------------------------------- OffsetDelete


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponse(ThrottledAnswer):
    """Results in the order of the request, none with an error of the whole request."""

    error_code: ErrorCode = ErrorCode.none
    topics: tuple[OffsetTopicErrors, ...] = ()


async def delete(request: OffsetDeleteRequest, call: Call) -> OffsetDeleteResponse:
    """Delete a group's committed offsets of partitions that it does not consume (KIP-496)."""
    if not call.client.may(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.group_authorization_failed)
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.invalid_group_id)
    denied = await call.denied(Operation.READ, (topic.name for topic in request.topics))
    errors: dict[OffsetKey, ErrorCode] = {}
    deletable = []
    # Each partition is checked by itself. Only an error of the group fails the whole request.
    for topic in request.topics:
        view = call.services.cluster.topics.get(topic.name)
        for part in topic.partitions:
            of = OffsetKey(topic.name, part.partition_index)
            if topic.name in denied:
                errors[of] = ErrorCode.topic_authorization_failed
            elif view is None or part.partition_index not in view.partitions:
                errors[of] = ErrorCode.unknown_topic_or_partition
            else:
                deletable.append(of)
            # Let other requests run, since a request may name thousands of partitions.
            await call.time_slice.renew_if_over()
    error = await _delete(request.group_id, deletable, errors, call)
    if error is not ErrorCode.none:
        return OffsetDeleteResponse(error_code=error)
    answers = (
        errors[OffsetKey(topic.name, part.partition_index)]
        for topic in request.topics
        for part in topic.partitions
    )
    return OffsetDeleteResponse(topics=await _results(request.topics, call, answers))


async def _delete(
    group_id: str,
    deletable: list[OffsetKey],
    errors: dict[OffsetKey, ErrorCode],
    call: Call,
) -> ErrorCode:
    """Delete the offsets in parts, and set the error code of each in ``errors``.

    Return the error of the request as a whole, NONE if there is none.
    """
    try:
        for part in in_parts(deletable) if deletable else ():
            made = await call.services.groups.delete_offsets(group_id, part)
            # A single code means that the group itself cannot be changed.
            if isinstance(made, ErrorCode):
                return made
            errors.update(zip(part, made, strict=True))
            await call.time_slice.renew_if_over()
    except CoordinatorError as error:
        return error.error_code
    return ErrorCode.none


DELETE = Api(delete, versions=(0, 0))
