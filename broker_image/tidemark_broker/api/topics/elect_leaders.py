"""ElectLeaders (43): preferred leaders (KIP-183), or unclean ones for partitions without a leader.

Versions 0 to 2:

- 1: unclean elections, error of the whole request (KIP-460)
- 2: flexible

Behaviour:

- ALTER on the cluster is required.
- A request without partitions concerns all partitions. Its answer contains all topics, but only
  those partitions for which an election was needed.
- The answer waits until this broker's metadata contains the new leaders.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark.wire.topics import Assignment, ChangeKind, TopicChange, TopicChangeResult
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.topic_change_requests import error_of, forward, wait_until_known

_PREFERRED, _UNCLEAN = 0, 1


@dataclass(slots=True, kw_only=True)
class ElectionResult:
    partition_id: int
    error_code: ErrorCode
    error_message: str | None


@dataclass(slots=True, kw_only=True)
class ReplicaElectionResult:
    topic: str
    partition_result: tuple[ElectionResult, ...]


@dataclass(slots=True, kw_only=True)
class ElectLeadersResponse(ThrottledAnswer):
    """Results by topic. ``error_code`` is set if the whole request was rejected."""

    error_code: ErrorCode = ErrorCode.none
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()


async def handle(request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    """Have the operator elect leaders, and answer once this broker's metadata contains them.

    Waits at most the request's time-out. Needs ALTER on the cluster.
    """
    # Partitions by topic, each once.
    requested = _requested(request, call)
    # As in Kafka, an error of the whole request is repeated for each partition.
    if not call.client.may(Operation.ALTER, ResourceType.CLUSTER):
        denied = ErrorCode.cluster_authorization_failed
        results = await call.time_slice.collect(
            _refused(topic, numbers, denied) for topic, numbers in requested.items()
        )
        return ElectLeadersResponse(error_code=denied, replica_election_results=tuple(results))
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        wrong, text = ErrorCode.invalid_request, f"Unknown election type {request.election_type}"
        results = await call.time_slice.collect(
            _refused(topic, numbers, wrong, text) for topic, numbers in requested.items()
        )
        return ElectLeadersResponse(error_code=wrong, replica_election_results=tuple(results))
    # One change for each topic, which the operator applies to its partitions.
    unclean = request.election_type == _UNCLEAN
    loop, wait_s = asyncio.get_running_loop(), milliseconds(request.timeout) / 1000
    until_s = loop.time() + wait_s
    changes = await call.time_slice.collect(
        _change(topic, numbers, unclean=unclean) for topic, numbers in requested.items()
    )
    outcomes = await forward(call, changes, wait_s=wait_s)
    found = dict(zip(requested, outcomes, strict=True))
    # The operator has stored the new leaders. This broker's metadata follows a moment later.
    await wait_until_known(
        call,
        found,
        lambda topic: _are_led(topic, found[topic], call, unclean=unclean),
        until_s - loop.time(),
    )
    answers = await call.time_slice.collect(
        _result(topic, requested[topic], found[topic], is_all=request.topic_partitions is None)
        for topic in requested
    )
    return ElectLeadersResponse(replica_election_results=tuple(answers))


def _requested(request: ElectLeadersRequest, call: Call) -> Mapping[str, Sequence[int]]:
    if request.topic_partitions is None:
        return {name: tuple(view.partitions) for name, view in call.services.cluster.topics.items()}
    requested: dict[str, dict[int, None]] = {}
    for entry in request.topic_partitions:
        requested.setdefault(entry.topic, {}).update(dict.fromkeys(entry.partitions))
    return {topic: tuple(numbers) for topic, numbers in requested.items()}


def _change(topic: str, numbers: Sequence[int], *, unclean: bool) -> TopicChange:
    return TopicChange(
        kind=ChangeKind.ELECT,
        name=topic,
        topic_id=None,
        assignments=tuple(Assignment(partition=number, replicas=()) for number in numbers),
        unclean=unclean,
    )


def _are_led(topic: str, result: TopicChangeResult, call: Call, *, unclean: bool) -> bool:
    """True if this broker's metadata has the leaders of the elected partitions."""
    view = call.services.cluster.topics.get(topic)
    if view is None:
        return True
    rows = [view.partitions.get(part.partition) for part in result.parts if not part.error_code]
    return all(row is None or _is_led(row, unclean=unclean) for row in rows)


def _is_led(row: control.PartitionState, *, unclean: bool) -> bool:
    # Negative node ids are placeholders (KIP-409) and cannot lead.
    preferred = next((node for node in row.replicas if node >= 0), -1)
    return row.leader >= 0 if unclean else row.leader == preferred


def _result(
    topic: str, numbers: Sequence[int], result: TopicChangeResult, *, is_all: bool
) -> ReplicaElectionResult:
    """Return the results of one topic's partitions.

    ``numbers`` are the requested partitions. With ``is_all`` the request concerned all partitions.
    """
    if result.error_code:
        return _refused(topic, numbers, error_of(result.error_code), result.error_message)
    parts = tuple(
        ElectionResult(
            partition_id=part.partition,
            error_code=error_of(part.error_code),
            error_message=part.error_message,
        )
        for part in result.parts
        # With all partitions requested, those that needed no election are left out, as in Kafka.
        if not (is_all and part.error_code == ErrorCode.election_not_needed)
    )
    return ReplicaElectionResult(topic=topic, partition_result=parts)


def _refused(
    topic: str, numbers: Sequence[int], code: ErrorCode, message: str | None = None
) -> ReplicaElectionResult:
    return ReplicaElectionResult(
        topic=topic,
        partition_result=tuple(
            ElectionResult(partition_id=number, error_code=code, error_message=message)
            for number in numbers
        ),
    )


API = Api(handle, versions=(0, 2), open_ended=True, waits=True)
