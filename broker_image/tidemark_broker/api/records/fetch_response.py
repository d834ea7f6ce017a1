"""Response of a Fetch: its messages, and their assembly from the results of the reads.

Record bytes pass from the log to the socket as one object.
"""

import itertools
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidemark.records.split_bytes import SplitBytes
from tidemark_broker.api.endpoints import NO_LEADER, LeaderIdAndEpoch, NodeEndpoint, node_endpoints
from tidemark_broker.api.fetch_session import FetchContext, PartitionRequest
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Call
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.types import NO_SESSION, FetchResult

READ_COMMITTED = 1
#: From these versions clients know KAFKA_STORAGE_ERROR, and answers contain the current leader
#: (KIP-951).
_STORAGE_ERROR_SINCE, _LEADERS_SINCE = 6, 16
#: Maximum number of partitions that are processed without a pause before each step.
_AT_ONCE_MAX = 100
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
    records: bytes | memoryview | SplitBytes


@dataclass(slots=True, kw_only=True)
class FetchableTopicResponse:
    """One topic, with the identification of the request."""

    topic: str
    topic_id: uuid.UUID | None
    partitions: tuple[PartitionData, ...]


@dataclass(slots=True, kw_only=True)
class FetchResponse(ThrottledAnswer):
    """Topics in the order in which they were read."""

    error_code: ErrorCode
    session_id: int = NO_SESSION
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@dataclass(slots=True)
class Read:
    """Result of one partition; ``result`` is replaced after the disk or the tier is read."""

    request: PartitionRequest
    partition: Partition | None
    result: FetchResult

    @property
    def settled(self) -> bool:
        """True if the partition's answer must not wait for more records."""
        result = self.result
        return (
            result.error is not ErrorCode.none
            or result.diverging is not None
            or result.preferred_read_replica >= 0
            or result.remote is not None
            or result.from_disk is not None
        )


def total_bytes(reads: Sequence[Read]) -> int:
    """Number of record bytes at hand."""
    return sum(len(read.result.data) for read in reads)


async def answer(
    isolation_level: int, call: Call, context: FetchContext, reads: Sequence[Read]
) -> FetchResponse:
    """Return the response with the partitions that the session has not sent in this state yet.

    ``reads`` contains the result of each partition in the order of reading.
    """
    # Each step below iterates over all partitions at once. A few take less time than a pause.
    pause = call.time_slice.renew if len(reads) > _AT_ONCE_MAX else call.time_slice.renew_if_over
    # Results are matched with the session first: it decides which partitions have news.
    results = [(read.request, read.result) for read in reads]
    await pause()
    answered = context.answered(results, time.monotonic())
    await pause()
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
        responses=await _topics(isolation_level, call, sent),
        node_endpoints=node_endpoints(call, _leaders(sent)) if leaders else (),
    )


def _is_not_read(read: Read) -> bool:
    return read.result.error in _NOT_READ


async def _topics(
    isolation_level: int, call: Call, reads: Iterable[Read]
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
            _partition(read, isolation_level, call.version) for read in of_topic
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
    if isolation_level != READ_COMMITTED:
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
