"""Metadata (3): brokers, topics and leaders. A request may create topics.

Versions 0 to 13:

- 1: racks, controller, internal topics, and an empty list for no topics
- 2: cluster id
- 3: throttle time
- 4: topics are created only on request
- 5: offline replicas
- 6: the client understands LISTENER_NOT_FOUND
- 7: leader epoch (KIP-320)
- 8: authorized operations (KIP-430)
- 9: flexible
- 10: topic ids in the answer (KIP-516)
- 11: no authorized operations of the cluster, which DescribeCluster has (KIP-700)
- 12: topics by id
- 13: error of the whole request (KIP-1102)

Behaviour:

- Placeholders (KIP-409) are among the replicas and the offline replicas, never in the ISR.
- A partition without a leader that clients can reach is LEADER_NOT_AVAILABLE. A broker reports
  itself as leader only once it leads. A request for a topic whose logs are being opened waits for
  them.
- A topic that the client may not describe is left out of all topics, and is unknown if it is
  requested by id. By name it is TOPIC_AUTHORIZATION_FAILED, whether it exists or not.
- A listener of ``tidemark.readers.listeners`` lists Readers among the replicas of tiered
  partitions, because Java clients read only from a replica. They are never leader or in the ISR.
- KIP-950 adds ``tiered_epoch`` and ``tiered_state`` to topics. They are tagged fields from version
  9, so that stock clients skip them. Their tags are far above Kafka's own, because a later Kafka
  may use the next numbers.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13 import request as v13

from tidemark.logfiles.names import INTERNAL_TOPICS
from tidemark.wire import control
from tidemark.wire.entity import wire
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.endpoints import NodeEndpoint, reachable, registered_at
from tidemark_broker.api.schema import NOT_ASKED, ThrottledAnswer
from tidemark_broker.api.table import Api, Call, missing_topic
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.metadata import CHANGED, TopicMetadata

TIERED_EPOCH_TAG = 10_000
TIERED_STATE_TAG = 10_001
_DESCRIBE = (Operation.DESCRIBE, ResourceType.TOPIC)
#: Requests contain ids from version 10, which are used from this version.
_BY_ID_SINCE = 12
_LISTENER_NOT_FOUND_SINCE = 6
#: Longest wait for the logs of a new topic to open.
_OPEN_S = 1.0


@dataclass(slots=True, kw_only=True)
class MetadataResponsePartition:
    """One partition, as broker ids; -1 for no leader."""

    error_code: ErrorCode
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class MetadataResponseTopic:
    """One topic.

    ``tiered_epoch`` is -1 if it was never tiered. For ``tiered_state`` see
    :class:`~tidemark.tiering.TieringState`.
    """

    error_code: ErrorCode
    name: str | None
    topic_id: uuid.UUID | None
    is_internal: bool = False
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: int = NOT_ASKED
    tiered_epoch: int = wire("int32", default=-1, tag=TIERED_EPOCH_TAG)
    tiered_state: int = wire("int8", default=0, tag=TIERED_STATE_TAG)


@dataclass(slots=True, kw_only=True)
class MetadataResponse(ThrottledAnswer):
    """Answer. ``controller_id`` is the broker to name as controller, -1 for none.

    ``brokers`` are registered and unfenced. If all are fenced, as during a restart of the whole
    cluster, each registered broker is listed. A client that receives no broker forgets those it
    knew, and may not query any for minutes (librdkafka, issue 5301).

    ``error_code`` is for Kafka's REBOOTSTRAP_REQUIRED (KIP-1102) and is never set here.
    """

    brokers: tuple[NodeEndpoint, ...] = ()
    cluster_id: str | None = None
    controller_id: int = -1
    topics: tuple[MetadataResponseTopic, ...]
    cluster_authorized_operations: int = NOT_ASKED
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(v13.MetadataRequest):
    """Request with a field that exists until version 10."""

    include_cluster_authorized_operations: bool = False


async def handle(request: MetadataRequest, call: Call) -> MetadataResponse:
    """Return brokers, topics and partition leaders: of all topics, or of the requested ones.

    May create missing topics, and waits for a topic whose logs are being opened.
    """
    if _names_too_early(request, call):
        return MetadataResponse(topics=tuple(map(_refused, request.topics or ())))
    cluster = call.services.cluster
    listener = call.client.listener
    # In version 0 an empty list means all topics. Later it means none, and null means all.
    if request.topics is None or (call.version == 0 and not request.topics):
        present = dict(cluster.topics)  # a topic created meanwhile has not been authorized
        hidden = await call.denied(Operation.DESCRIBE, present)
        live = reachable(cluster, listener)
        topics = _all_but(hidden, present, request, call, frozenset(live))
    else:
        denied = await _create_missing(request, call)
        await _wait_until_open(request.topics, call)
        live = reachable(cluster, listener)  # brokers may have been fenced during the wait
        topics = _requested(request.topics, request, call, frozenset(live), denied)
    return MetadataResponse(
        # If all brokers are fenced, the registered ones, since a client without any broker is
        # stuck.
        brokers=tuple(
            NodeEndpoint(
                node_id=node, host=end.host, port=end.port, rack=cluster.brokers[node].rack
            )
            for node, end in (live or registered_at(cluster, listener)).items()
        ),
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=tuple(await call.time_slice.collect(topics)),
        cluster_authorized_operations=(
            call.client.operations(ResourceType.CLUSTER)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def _names_too_early(request: MetadataRequest, call: Call) -> bool:
    """True if the request uses ids in a version that has the field but does not support it."""
    return call.version < _BY_ID_SINCE and any(
        topic.name is None or topic.topic_id is not None for topic in request.topics or ()
    )


def _refused(topic: v13.MetadataRequestTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.invalid_request, name=topic.name or "", topic_id=topic.topic_id
    )


def _all_but(
    hidden: Set[str],
    topics: Mapping[str, TopicMetadata],
    request: MetadataRequest,
    call: Call,
    live: frozenset[int],
) -> Iterator[MetadataResponseTopic]:
    for name, view in sorted(topics.items()):
        if name not in hidden:
            yield _topic(view, live, _operations(request, call, name), call)


def _requested(
    topics: Iterable[v13.MetadataRequestTopic],
    request: MetadataRequest,
    call: Call,
    live: frozenset[int],
    denied: Set[str],
) -> Iterator[MetadataResponseTopic]:
    for name, topic_id in dict.fromkeys((topic.name, topic.topic_id) for topic in topics):
        answer = _one(name, topic_id, request, call, live)
        if name in denied:
            answer.error_code = ErrorCode.topic_authorization_failed
        yield answer


def _one(
    name: str | None,
    topic_id: uuid.UUID | None,
    request: MetadataRequest,
    call: Call,
    live: frozenset[int],
) -> MetadataResponseTopic:
    """Return one topic by name or by id, or its error. If both are given, the id counts.

    ``live`` contains the ids of the brokers that the client can reach.
    """
    cluster, client = call.services.cluster, call.client
    if name is None or topic_id is not None:
        name, view = None, None if topic_id is None else cluster.by_id(topic_id)
        missing = ErrorCode.unknown_topic_id
        # An id that the client may not describe must look unknown.
        if view is not None and not client.may(*_DESCRIBE, view.name):
            view = None
    elif not client.may(*_DESCRIBE, name):
        view, missing = None, ErrorCode.topic_authorization_failed
    else:
        view, missing = cluster.topics.get(name), missing_topic(name)
    if view is not None:
        return _topic(view, live, _operations(request, call, view.name), call)
    return MetadataResponseTopic(
        error_code=missing,
        name=name,
        topic_id=topic_id,
    )


async def _create_missing(request: MetadataRequest, call: Call) -> Set[str]:
    """Request the creation of missing topics, if the request and the Cluster allow it.

    Return the names of the topics that the client may not create. As in Kafka's
    ``AutoTopicCreationManager``, created topics appear in a later response, and clients retry.
    """
    creations, client = call.services.creations, call.client
    denied: set[str] = set()
    if not request.allow_auto_topic_creation:
        return denied
    # CREATE on the cluster saves a check for each topic.
    may_create_any = client.may(Operation.CREATE, ResourceType.CLUSTER)
    for topic in request.topics or ():
        name = topic.name
        # This check includes DESCRIBE, so that the answer does not reveal hidden topics.
        if name is not None and _may_be_made(name, call):
            if may_create_any or client.may(Operation.CREATE, ResourceType.TOPIC, name):
                creations.request(name, principal=client.principal)
            else:
                denied.add(name)
        # Let other requests run, since a request may name thousands of topics.
        await call.time_slice.renew_if_over()
    return denied


async def _wait_until_open(topics: Sequence[v13.MetadataRequestTopic], call: Call) -> None:
    """Wait until a topic that was just created has leaders, at most :data:`_OPEN_S` seconds.

    Its logs are being opened. The response would otherwise have no leaders for a few ms, which some
    clients treat as final.
    """
    cluster, replicas = call.services.cluster, call.services.replicas
    # Only a topic that the client may describe is waited for, or the wait would reveal it.
    for topic in topics:
        name, topic_id = topic.name, topic.topic_id
        view = cluster.by_id(topic_id) if topic_id is not None else cluster.topics.get(name or "")
        if (
            view is not None
            and replicas.is_opening(view)
            and call.client.may(*_DESCRIBE, view.name)
        ):
            is_open = partial(_is_open, view, replicas)
            await call.services.purgatory.wait([CHANGED], is_open, call.wait_s(_OPEN_S))
            break  # logs open concurrently, so one wait is enough for all topics


def _is_open(topic: TopicMetadata, replicas: ReplicaManager) -> bool:
    return not replicas.is_opening(topic)


def _may_be_made(name: str, call: Call) -> bool:
    services = call.services
    return (
        name not in services.cluster.topics
        and services.creations.may_create(name)
        and missing_topic(name) is ErrorCode.unknown_topic_or_partition
        and call.client.may(*_DESCRIBE, name)
    )


def _operations(request: MetadataRequest, call: Call, topic: str) -> int:
    if not request.include_topic_authorized_operations:
        return NOT_ASKED
    return call.client.operations(ResourceType.TOPIC, topic)


def _topic(
    view: TopicMetadata, live: frozenset[int], authorized_operations: int, call: Call
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=view.name,
        topic_id=view.topic_id,
        is_internal=view.name in INTERNAL_TOPICS,
        partitions=tuple(_partition(view, row, live, call) for row in view.partitions.values()),
        topic_authorized_operations=authorized_operations,
        tiered_epoch=view.tiering.epoch,
        tiered_state=view.tiering.state,
    )


def _partition(
    view: TopicMetadata, row: control.PartitionState, live: frozenset[int], call: Call
) -> MetadataResponsePartition:
    """Return leader, replicas and ISR of one partition as this client may see them.

    ``row`` is the state from the controller, ``live`` the brokers that the client can reach.
    """
    # Metadata may be ahead of this broker: it is reported as leader only once its log is open.
    led = row.leader in live and call.services.replicas.is_led(view.topic_id, row)
    made = MetadataResponsePartition(
        error_code=ErrorCode.none if led else _leader_error(row, live, call),
        partition_index=row.partition,
        leader_id=row.leader if led else -1,
        leader_epoch=row.leader_epoch,
        replica_nodes=(*row.replicas, *_readers(view, live, call)),
        isr_nodes=row.isr,
        offline_replicas=tuple(node for node in row.replicas if node not in live),
    )
    # Clients of version 0 cannot handle replicas without a broker entry.
    if call.version == 0:
        _without_unavailable(made, live)
    return made


def _readers(view: TopicMetadata, live: frozenset[int], call: Call) -> list[int]:
    """Return the Readers to list among the replicas, which some clients require before they
    follow a redirection.
    """
    services = call.services
    if not services.cluster.readers or not view.tiering.reads_tier:
        return []
    if call.client.listener not in services.settings.readers_listeners:
        return []
    return sorted(services.cluster.readers & live)


def _leader_error(row: control.PartitionState, live: frozenset[int], call: Call) -> ErrorCode:
    """Return the error of a partition without a reachable leader.

    As in Kafka, newer clients receive LISTENER_NOT_FOUND if the leader lacks their listener.
    """
    # A live leader without this listener is a configuration error that the client should see.
    broker = call.services.cluster.brokers.get(row.leader)
    lacks_listener = row.leader not in live and broker is not None and not broker.fenced
    if lacks_listener and call.version >= _LISTENER_NOT_FOUND_SINCE:
        return ErrorCode.listener_not_found
    return ErrorCode.leader_not_available


def _without_unavailable(part: MetadataResponsePartition, live: frozenset[int]) -> None:
    """Remove unreachable replicas, as version 0 requires, and mark the partition."""
    replicas = tuple(node for node in part.replica_nodes if node in live)
    isr = tuple(node for node in part.isr_nodes if node in live)
    all_there = (replicas, isr) == (part.replica_nodes, part.isr_nodes)
    if part.error_code is ErrorCode.none and not all_there:
        part.error_code = ErrorCode.replica_not_available
    part.replica_nodes, part.isr_nodes = replicas, isr


API = Api(handle, versions=(0, 13), open_ended=True)
