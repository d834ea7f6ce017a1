"""Fetch (1): consumers' reads; long poll through the purgatory; the tier for what is only there.

Sessions are not kept: every answer carries session id 0, which is legal and makes every request a
full one. Followers of this cluster use an Api of their own. Record bytes go from
the log to the socket as one object.
"""

import time
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark_broker.api.endpoints import node_endpoints
from tidemark_broker.api.fetch_read import Asked, Read, check_leaders, must_wait, read_from_disk
from tidemark_broker.api.fetch_remote import read_remote
from tidemark_broker.api.fetch_wait import read_until_enough
from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call

#: From this version on a topic is named by its id alone.
_BY_ID = 13
_LEADER_ERRORS = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})


async def handle(request: Any, call: Call) -> Any:
    """Read what is there; wait for more if that is less than asked; fetch from the tier."""
    refusal = _refusal(request)
    if refusal is not ErrorCode.none:
        return _answer(call, refusal, ())
    services = call.services
    max_wait_s = milliseconds(request.max_wait) / 1000
    deadline_s = time.monotonic() + max_wait_s
    asked = [_asked(topic, part, call) for topic in request.topics for part in topic.partitions]
    reads = await read_until_enough(
        asked,
        services,
        max_bytes=min(request.max_bytes, services.settings.fetch_bytes_max),
        min_bytes=request.min_bytes,
        max_wait_s=max_wait_s,
    )
    if must_wait(reads):
        await read_from_disk(reads)
        await read_remote(reads, services, deadline_s)
        check_leaders(reads, services)
    return _answer(call, ErrorCode.none, _topics(request, call, reads), _leaders(reads))


def _refusal(request: Any) -> ErrorCode:
    session_id = getattr(request, "session_id", 0)
    if session_id != 0:
        return ErrorCode.fetch_session_id_not_found
    if getattr(request, "session_epoch", -1) > 0:
        return ErrorCode.invalid_fetch_session_epoch
    state = getattr(request, "replica_state", None)
    replica_id = request.replica_id if state is None else state.replica_id
    return ErrorCode.invalid_request if replica_id >= 0 else ErrorCode.none


def _asked(topic: Any, part: Any, call: Call) -> Asked:
    if call.version < _BY_ID:
        name, error = topic.topic, ErrorCode.none
    else:
        view = None if topic.topic_id is None else call.services.cluster.by_id(topic.topic_id)
        name = "" if view is None else view.name
        error = ErrorCode.unknown_topic_id if view is None else ErrorCode.none
    return Asked(
        topic=name,
        partition=part.partition,
        offset=part.fetch_offset,
        max_bytes=part.partition_max_bytes,
        current_leader_epoch=getattr(part, "current_leader_epoch", -1),
        last_fetched_epoch=getattr(part, "last_fetched_epoch", -1),
        error=error,
    )


def _topics(request: Any, call: Call, reads: list[Read]) -> tuple[Any, ...]:
    topic_of = call.shapes.of("FetchableTopicResponse")
    remaining = iter(reads)
    topics = []
    for topic in request.topics:
        name = {"topic_id": topic.topic_id} if call.version >= _BY_ID else {"topic": topic.topic}
        parts = tuple(
            _partition(next(remaining), call, request.isolation_level) for _ in topic.partitions
        )
        topics.append(topic_of(**name, partitions=parts))
    return tuple(topics)


def _partition(read: Read, call: Call, isolation_level: int) -> Any:
    result = read.result
    values: dict[str, Any] = {}
    if result.diverging is not None and call.version >= 12:
        values["diverging_epoch"] = call.shapes.of("EpochEndOffset")(
            epoch=result.diverging.epoch, end_offset=result.diverging.end_offset
        )
    if result.error in _LEADER_ERRORS and call.version >= 12:
        values["current_leader"] = call.shapes.of("LeaderIdAndEpoch")(
            leader_id=result.leader_id, leader_epoch=result.leader_epoch
        )
    return call.shapes.of("PartitionData")(
        partition_index=read.asked.partition,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=() if isolation_level else None,
        preferred_read_replica=-1,
        records=result.data,
        **values,
    )


def _leaders(reads: list[Read]) -> set[int]:
    return {read.result.leader_id for read in reads if read.result.error in _LEADER_ERRORS}


def _answer(
    call: Call, error: ErrorCode, topics: tuple[Any, ...], leaders: set[int] | None = None
) -> Any:
    return call.shapes.answer(
        throttle_time=ZERO,
        error_code=error,
        session_id=0,
        responses=topics,
        node_endpoints=node_endpoints(call, leaders or ()),
    )


API = Api(key=1, name="Fetch", version_min=4, version_max=16, handler=handle)
