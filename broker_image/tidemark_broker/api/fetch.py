"""Fetch (1): reads of consumers, with sessions, long polls through the purgatory, and tier reads.

Followers of this cluster use an Api of their own. Record bytes pass from the log to the socket as
one object.
"""

import itertools
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18 import request as v18

from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH
from tidemark_broker.admission.client_quotas import QuotaKind
from tidemark_broker.api.endpoints import (
    NO_LEADER,
    LeaderIdAndEpoch,
    NodeEndpoint,
    node_endpoints,
)
from tidemark_broker.api.fetch_read import (
    FetchParams,
    Read,
    check_replicas,
    must_wait,
    read_from_disk,
    total_bytes,
)
from tidemark_broker.api.fetch_remote import read_remote
from tidemark_broker.api.fetch_session import FetchContext, FetchMetadata, Key, PartitionRequest
from tidemark_broker.api.fetch_wait import read_until_enough
from tidemark_broker.api.replica_selector import rack_of
from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.replication.fetch_metadata import NO_SESSION
from tidemark_broker.security.acls import Operation

_READ_COMMITTED = 1
#: From this version a topic is identified by its id alone.
_BY_ID = 13
#: From these versions clients know KAFKA_STORAGE_ERROR, consumers may read from followers
#: (KIP-392), and answers contain the current leader (KIP-951).
_STORAGE_ERROR_SINCE = 6
_FOLLOWERS_SINCE = 11
_LEADERS_SINCE = 16
_LEADER_ERRORS = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
#: Errors that Kafka finds before it reads. Their partitions are last in the answer.
_NOT_READ = frozenset(
    {
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.topic_authorization_failed,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic(v18.FetchTopic):
    """Topic with a name until version 12."""

    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic(v18.ForgottenTopic):
    """Topic with a name until version 12."""

    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(v18.FetchRequest):
    """Request of all versions. ``replica_id`` is part of ``replica_state`` from version 15."""

    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()
    replica_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergingEpoch:
    """Position at which the leader's log diverges from the client's (KIP-595)."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(slots=True, kw_only=True)
class AbortedTransaction:
    """An aborted transaction: a consumer skips the producer's records from ``first_offset`` to
    the marker.
    """

    producer_id: int
    first_offset: int


@dataclass(slots=True, kw_only=True)
class PartitionData:
    """One partition. ``records`` are whole batches in the form of the log."""

    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging_epoch: DivergingEpoch = DivergingEpoch()
    current_leader: LeaderIdAndEpoch = NO_LEADER
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    preferred_read_replica: int = -1
    records: bytes


@dataclass(slots=True, kw_only=True)
class FetchableTopicResponse:
    """One topic, with the identification of the request."""

    topic: str
    topic_id: uuid.UUID | None
    partitions: tuple[PartitionData, ...]


@dataclass(slots=True, kw_only=True)
class FetchResponse:
    """Topics in the order in which they were read."""

    error_code: ErrorCode
    session_id: int = NO_SESSION
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: FetchRequest, call: Call) -> FetchResponse:
    """Read records for a consumer, waiting for ``min_bytes`` at most ``max_wait`` if necessary.

    Records in memory come first. Those that are only on disk or in remote storage are read
    afterwards, once for the whole request.
    """
    services = call.services
    # Followers use the replication listener. A stock Kafka follower must not join the ISR here.
    if max(request.replica_id, request.replica_state.replica_id) >= 0:
        return FetchResponse(error_code=ErrorCode.invalid_request)
    context = await _context(request, call)
    if isinstance(context, ErrorCode):
        return FetchResponse(error_code=context)
    # Bytes that the client's quota permits now (KIP-219). None without a quota.
    room = None if call.quotas is None else call.quotas.remaining(QuotaKind.FETCH)
    if room is not None and room < 1:
        # Clients take an answer without any partition if it says that they are throttled.
        return FetchResponse(error_code=ErrorCode.none, session_id=context.session_id)
    # A large request has a shorter poll, because it occupies memory while it waits.
    max_wait_s = call.poll_s(milliseconds(request.max_wait) / 1000)
    deadline_s = time.monotonic() + max_wait_s
    max_bytes = min(request.max_bytes, services.settings.fetch_bytes_max)
    params = FetchParams(
        max_bytes=max_bytes if room is None else min(max_bytes, int(room)),
        min_bytes=request.min_bytes,
        max_wait_s=max_wait_s,
        leader_only=call.version < _FOLLOWERS_SINCE,
        rack=rack_of(call, request.rack_id),
        read_committed=request.isolation_level == _READ_COMMITTED,
    )
    # Records in memory are collected first. Only then are the disk and the tier read, once.
    reads = await read_until_enough(await _checked(context.requests, call), call, params)
    if must_wait(reads):
        await read_from_disk(reads)
        await read_remote(reads, services, deadline_s)
        # Leadership may have been lost meanwhile, and a deposed leader must not answer with
        # records.
        check_replicas(reads, services, params)
        call.memory.set_reserved(total_bytes(reads))
    # The quota counts what is sent. A throttled client was given less room above.
    if call.quotas is not None:
        call.quotas.use(QuotaKind.FETCH, total_bytes(reads))
    return await _answer(request, call, context, reads)


async def _context(request: FetchRequest, call: Call) -> FetchContext | ErrorCode:
    """Return the fetch session of a request (KIP-227), or the error for the client.

    The context knows which partitions to read: the named ones plus those of earlier requests. After
    an error the client starts a new session.
    """
    metadata = FetchMetadata(
        # The client is part of the session's identity, so that another client cannot use or end it.
        request.session_id,
        request.session_epoch,
        call.version >= _BY_ID,
        call.client.identity,
    )
    named = await _named(request, call)
    forgotten = [
        (topic.topic_id or topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    return call.services.fetch_sessions.context(metadata, named, forgotten, time.monotonic())


async def _named(request: FetchRequest, call: Call) -> Mapping[Key, PartitionRequest]:
    """Return the partitions that the request names, by session key.

    If one is named twice, the last entry counts, as in Kafka.
    """
    named: dict[Key, PartitionRequest] = {}
    for topic in request.topics:
        name = topic.topic
        if topic.topic_id is not None:
            view = call.services.cluster.by_id(topic.topic_id)
            name = "" if view is None else view.name
        for part in topic.partitions:
            made = PartitionRequest(
                topic=name,
                topic_id=topic.topic_id,
                partition=part.partition,
                offset=part.fetch_offset,
                max_bytes=part.partition_max_bytes,
                # Negative epochs mean none (Kafka's ``FetchRequest.optionalEpoch``).
                current_leader_epoch=max(part.current_leader_epoch, UNKNOWN_EPOCH),
                last_fetched_epoch=part.last_fetched_epoch,
            )
            named[made.key] = made
            # A request may name thousands of partitions: let other requests run.
            if call.time_slice.is_over:
                await call.time_slice.renew()
    return named


async def _checked(requests: Sequence[PartitionRequest], call: Call) -> Sequence[PartitionRequest]:
    """Return the partitions, with an error for those that may not be read."""
    # Only sessions by id can contain topics whose name is still unknown.
    if call.version >= _BY_ID and not all(request.topic for request in requests):
        requests = await call.time_slice.collect(_resolved(request, call) for request in requests)
    denied = await call.denied(
        Operation.READ, (request.topic for request in requests if request.topic)
    )
    if not denied:
        return requests
    return await call.time_slice.collect(_unless_denied(request, denied) for request in requests)


def _resolved(request: PartitionRequest, call: Call) -> PartitionRequest:
    """Resolve a topic that was unknown when the session was created."""
    if request.topic:
        return request
    view = None if request.topic_id is None else call.services.cluster.by_id(request.topic_id)
    if view is None:
        return replace(request, error=ErrorCode.unknown_topic_id)
    return replace(request, topic=view.name)


def _unless_denied(request: PartitionRequest, denied: Set[str]) -> PartitionRequest:
    if request.topic not in denied:
        return request
    return replace(request, error=ErrorCode.topic_authorization_failed)


async def _answer(
    request: FetchRequest, call: Call, context: FetchContext, reads: Sequence[Read]
) -> FetchResponse:
    """Return the response with the partitions that the session has not sent in this state yet.

    ``reads`` contains the result of each partition in the order of reading.
    """
    # Results are matched with the session first: it decides which partitions have news.
    results = [(read.request, read.result) for read in reads]
    await call.time_slice.renew()  # each step below iterates over all partitions at once
    answered = context.answered(results, time.monotonic())
    await call.time_slice.renew()
    # The session has advanced without this request, so its data will not be sent.
    if isinstance(answered, ErrorCode):
        call.memory.set_reserved(0)
        return FetchResponse(error_code=answered)
    session_id, is_sent = answered
    sent = [read for read, is_one in zip(reads, is_sent, strict=True) if is_one]
    # A stable sort keeps the order of reads, as Kafka's answer has it.
    sent.sort(key=_is_not_read)
    await call.time_slice.renew_if_over()
    leaders = call.version >= _LEADERS_SINCE
    return FetchResponse(
        error_code=ErrorCode.none,
        session_id=session_id,
        responses=await _topics(request, call, sent),
        node_endpoints=node_endpoints(call, _leaders(sent)) if leaders else (),
    )


def _is_not_read(read: Read) -> bool:
    return read.result.error in _NOT_READ


async def _topics(
    request: FetchRequest, call: Call, reads: Iterable[Read]
) -> tuple[FetchableTopicResponse, ...]:
    """Return one entry for each run of adjacent partitions of the same topic.

    As in Kafka, a topic occurs several times if other partitions were read in between.
    """
    topics = []
    for _, run in itertools.groupby(reads, lambda read: read.request.key[0]):
        # Partitions of a run have the same topic, so the first one identifies it.
        of_topic = list(run)
        named = of_topic[0].request
        parts = await call.time_slice.collect(
            _partition(read, request.isolation_level, call.version) for read in of_topic
        )
        topics.append(
            FetchableTopicResponse(
                topic=named.topic, topic_id=named.topic_id, partitions=tuple(parts)
            )
        )
    return tuple(topics)


def _partition(read: Read, isolation_level: int, version: int) -> PartitionData:
    """Return the response of one partition, in a form that the client's version understands."""
    result = read.result
    # The fields that every version has; newer ones keep their defaults if they do not apply.
    made = PartitionData(
        partition_index=read.request.partition,
        error_code=_error_in(version, result.error),
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=_aborted(read, isolation_level),
        preferred_read_replica=result.preferred_read_replica,
        records=result.data,
    )
    # The client truncates to this position before it fetches again (KIP-595).
    if result.diverging is not None:
        made.diverging_epoch = DivergingEpoch(
            epoch=result.diverging.epoch, end_offset=result.diverging.end_offset
        )
    # Saves the client a metadata request (KIP-951).
    if version >= _LEADERS_SINCE and result.error in _LEADER_ERRORS:
        made.current_leader = LeaderIdAndEpoch(
            leader_id=result.leader_id, leader_epoch=result.leader_epoch
        )
    return made


def _aborted(read: Read, isolation_level: int) -> tuple[AbortedTransaction, ...] | None:
    # Kafka sends an empty list for partitions that failed early, and null otherwise.
    if isolation_level != _READ_COMMITTED:
        return () if _is_not_read(read) else None
    return tuple(
        AbortedTransaction(
            producer_id=transaction.producer_id, first_offset=transaction.first_offset
        )
        for transaction in read.result.aborted
    )


def _error_in(version: int, error: ErrorCode) -> ErrorCode:
    """Return an error the client's version knows, as Kafka's ``maybeDownConvertStorageError``
    does.
    """
    if error is ErrorCode.kafka_storage_error and version < _STORAGE_ERROR_SINCE:
        return ErrorCode.not_leader_or_follower
    return error


def _leaders(reads: Iterable[Read]) -> set[int]:
    return {read.result.leader_id for read in reads if read.result.error in _LEADER_ERRORS}


API = Api(
    key=1,
    name="Fetch",
    version_min=4,
    version_max=18,
    request=FetchRequest,
    answer=FetchResponse,
    handler=handle,
)
