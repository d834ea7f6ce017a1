"""TxnOffsetCommit (28): store offsets of a group as part of a transaction (KIP-98).

The offsets count once a marker commits them. Up to version 4 the producer has named the group in
AddOffsetsToTxn before. From version 5 this request adds it to the transaction (KIP-890).
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.transactional import refusal
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorLog, TransactionalProducer
from tidemark_broker.groups.core.group_offsets import NewOffset, OffsetCommitter
from tidemark_broker.groups.core.offsets import OffsetKey
from tidemark_broker.groups.core.values import MemberIdentity
from tidemark_broker.log import VerificationGuard
from tidemark_broker.replication import types
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions import verification
from tidemark_broker.transactions.core.metadata import Producer

#: From these versions the request adds the partition to the transaction, and clients understand
#: TRANSACTION_ABORTABLE.
_ADDS_SINCE = 5
_ABORTABLE_SINCE = 4


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponsePartition:
    partition_index: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic:
    name: str
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    """Results in the order of the request."""

    topics: tuple[TxnOffsetCommitResponseTopic, ...]
    throttle_time: timedelta = ZERO


class _TxnCommitEntry(NamedTuple):
    """One partition: its error, or the offset to store as pending."""

    error: ErrorCode
    new: NewOffset | None


async def handle(request: TxnOffsetCommitRequest, call: Call) -> TxnOffsetCommitResponse:
    """Store offsets of a group as part of a transaction, pending until its marker commits them.

    Answers once the pending offsets are committed to the group's log.
    """
    error = refusal(call, request.transactional_id)
    if error is ErrorCode.none and not call.client.may(
        Operation.READ, ResourceType.GROUP, request.group_id
    ):
        error = ErrorCode.group_authorization_failed
    if error is not ErrorCode.none:
        return await _answer(request, call, iter(()), error)
    # As in Kafka, topics are checked one by one, and the others are still committed.
    denied = await call.denied(Operation.READ, (topic.name for topic in request.topics))
    entries = await call.time_slice.collect(_entries(request, denied, call))
    new = [entry.new for entry in entries if entry.new is not None]
    errors: list[ErrorCode] = []
    if new:
        try:
            errors = await _committed(request, new, call)
        except CoordinatorError as failed:
            errors = [failed.error_code] * len(new)
    # Errors of stored offsets are matched with their partitions by order.
    remaining = iter(errors)
    answers = (entry.error if entry.new is None else next(remaining) for entry in entries)
    return await _answer(request, call, answers, ErrorCode.none)


def _entries(
    request: TxnOffsetCommitRequest, denied: Set[str], call: Call
) -> Iterator[_TxnCommitEntry]:
    """Yield one entry for each partition, in the order of the request."""
    topics = call.services.cluster.topics
    for topic in request.topics:
        view = topics.get(topic.name)
        for part in topic.partitions:
            # As in Kafka, authorization is checked before existence, which it would reveal.
            if topic.name in denied:
                yield _TxnCommitEntry(ErrorCode.topic_authorization_failed, None)
            elif view is None or part.partition_index not in view.partitions:
                yield _TxnCommitEntry(ErrorCode.unknown_topic_or_partition, None)
            # The topic's id distinguishes the offset from one of a deleted topic of that name.
            else:
                new = NewOffset(
                    of=OffsetKey(topic.name, part.partition_index),
                    offset=part.committed_offset,
                    leader_epoch=part.committed_leader_epoch,
                    metadata=part.committed_metadata,
                    topic_id=view.topic_id,
                )
                yield _TxnCommitEntry(ErrorCode.none, new)


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


async def _answer(
    request: Any, call: Call, errors: Iterator[ErrorCode], error_of_all: ErrorCode
) -> TxnOffsetCommitResponse:
    topics = []
    for topic in request.topics:
        partitions = await call.time_slice.collect(
            TxnOffsetCommitResponsePartition(
                partition_index=part.partition_index, error_code=next(errors, error_of_all)
            )
            for part in topic.partitions
        )
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return TxnOffsetCommitResponse(topics=tuple(topics))


API = Api(
    key=28,
    name="TxnOffsetCommit",
    version_min=0,
    version_max=5,
    request=TxnOffsetCommitRequest,
    answer=TxnOffsetCommitResponse,
    handler=handle,
)
