"""Fetch (1): consumers' reads; long poll through the purgatory; the tier for what is only there.

Sessions are not kept: every answer carries session id 0, which is legal and makes every request a
full one. Followers of this cluster use an Api of their own. Record bytes go from
the log to the socket as one object.
"""

import time
import uuid
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as v16

from tidemark_broker.api.endpoints import (
    NO_LEADER,
    LeaderIdAndEpoch,
    NodeEndpoint,
    node_endpoints,
)
from tidemark_broker.api.fetch_read import (
    PartitionRequest,
    Read,
    check_leaders,
    must_wait,
    read_from_disk,
    total_bytes,
)
from tidemark_broker.api.fetch_remote import read_remote
from tidemark_broker.api.fetch_wait import read_until_enough
from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.turns import named_twice
from tidemark_broker.quotas.table import QuotaKind
from tidemark_broker.security.acls import Operation

#: From this version on a topic is named by its id alone.
_BY_ID = 13
_LEADER_ERRORS = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic(v16.FetchTopic):
    """Named until version 12."""

    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(v16.FetchRequest):
    """``replica_id`` stands in ``replica_state`` from version 15 on."""

    topics: tuple[FetchTopic, ...]
    replica_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    """Where the log of the leader differs from the client's (KIP-595)."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(slots=True, kw_only=True)
class PartitionData:
    """``records``: whole batches, as they lie in the log."""

    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    current_leader: LeaderIdAndEpoch = NO_LEADER
    aborted_transactions: tuple[()] | None
    preferred_read_replica: int = -1
    records: bytes


@dataclass(slots=True, kw_only=True)
class FetchableTopicResponse:
    """As the request names it."""

    topic: str
    topic_id: uuid.UUID | None
    partitions: tuple[PartitionData, ...]


@dataclass(slots=True, kw_only=True)
class FetchResponse:
    """In the order of the request."""

    error_code: ErrorCode
    session_id: int = 0
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: FetchRequest, call: Call) -> FetchResponse:
    """Read what is there; wait for more if that is less than asked; fetch from the tier."""
    refusal = _refusal(request)
    if refusal is not ErrorCode.none:
        return FetchResponse(error_code=refusal)
    services, bytes_max = call.services, _bytes_max(request, call)
    if bytes_max == 0:
        return FetchResponse(error_code=ErrorCode.none)
    max_wait_s = call.poll_s(milliseconds(request.max_wait) / 1000)
    deadline_s = time.monotonic() + max_wait_s
    named = [(topic, *_name_of(topic, call)) for topic in request.topics]
    denied = await call.denied(Operation.READ, (name for _, name, _ in named if name))
    requests = await call.turns.all_of(_partition_requests(named, denied))
    reads = await read_until_enough(
        requests,
        call,
        max_bytes=bytes_max,
        min_bytes=request.min_bytes,
        max_wait_s=max_wait_s,
    )
    if must_wait(reads):
        await read_from_disk(reads)
        await read_remote(reads, services, deadline_s)
        check_leaders(reads, services)
        call.memory.hold(total_bytes(reads))
    if call.quotas is not None:
        call.quotas.use(QuotaKind.FETCH, total_bytes(reads))
    return FetchResponse(
        error_code=ErrorCode.none,
        responses=await _topics(request, call, reads),
        node_endpoints=node_endpoints(call, _leaders(reads)),
    )


def _refusal(request: FetchRequest) -> ErrorCode:
    if request.session_id != 0:
        return ErrorCode.fetch_session_id_not_found
    if request.session_epoch > 0:
        return ErrorCode.invalid_fetch_session_epoch
    replica_id = max(request.replica_id, request.replica_state.replica_id)
    return ErrorCode.invalid_request if replica_id >= 0 else ErrorCode.none


def _bytes_max(request: FetchRequest, call: Call) -> int:
    """0: the quota is used up. Clients take an answer without any partition if it says that they
    are throttled."""
    most = max(1, min(request.max_bytes, call.services.settings.fetch_bytes_max))
    room = None if call.quotas is None else call.quotas.room(QuotaKind.FETCH)
    return most if room is None else int(min(most, room))


def _partition_requests(
    named: Sequence[tuple[FetchTopic, str, ErrorCode]], denied: Set[str]
) -> Iterator[PartitionRequest]:
    twice = named_twice(
        [
            (topic.topic_id or topic.topic, part.partition)
            for topic, _, _ in named
            for part in topic.partitions
        ]
    )
    for topic, name, error in named:
        refused = ErrorCode.topic_authorization_failed if name in denied else error
        for part in topic.partitions:
            repeated = twice and (topic.topic_id or topic.topic, part.partition) in twice
            yield _partition_request(name, part, ErrorCode.invalid_request if repeated else refused)


def _name_of(topic: FetchTopic, call: Call) -> tuple[str, ErrorCode]:
    if call.version < _BY_ID:
        return topic.topic, ErrorCode.none
    view = None if topic.topic_id is None else call.services.cluster.by_id(topic.topic_id)
    return ("", ErrorCode.unknown_topic_id) if view is None else (view.name, ErrorCode.none)


def _partition_request(name: str, part: v16.FetchPartition, error: ErrorCode) -> PartitionRequest:
    return PartitionRequest(
        topic=name,
        partition=part.partition,
        offset=part.fetch_offset,
        max_bytes=part.partition_max_bytes,
        current_leader_epoch=part.current_leader_epoch,
        last_fetched_epoch=part.last_fetched_epoch,
        error=error,
    )


async def _topics(
    request: FetchRequest, call: Call, reads: list[Read]
) -> tuple[FetchableTopicResponse, ...]:
    remaining = iter(reads)
    topics = []
    for topic in request.topics:
        parts = await call.turns.all_of(
            _partition(next(remaining), request.isolation_level) for _ in topic.partitions
        )
        topics.append(
            FetchableTopicResponse(
                topic=topic.topic, topic_id=topic.topic_id, partitions=tuple(parts)
            )
        )
    return tuple(topics)


def _partition(read: Read, isolation_level: int) -> PartitionData:
    result = read.result
    made = PartitionData(
        partition_index=read.request.partition,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=() if isolation_level else None,
        records=result.data,
    )
    if result.diverging is not None:
        made.diverging_epoch = EpochEndOffset(
            epoch=result.diverging.epoch, end_offset=result.diverging.end_offset
        )
    if result.error in _LEADER_ERRORS:
        made.current_leader = LeaderIdAndEpoch(
            leader_id=result.leader_id, leader_epoch=result.leader_epoch
        )
    return made


def _leaders(reads: list[Read]) -> set[int]:
    return {read.result.leader_id for read in reads if read.result.error in _LEADER_ERRORS}


API = Api(
    key=1,
    name="Fetch",
    version_min=4,
    version_max=16,
    request=FetchRequest,
    answer=FetchResponse,
    handler=handle,
)
