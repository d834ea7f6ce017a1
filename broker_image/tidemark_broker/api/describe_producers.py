"""DescribeProducers (61): recent producers of a partition and their open transactions (KIP-664).

Clients query the leader, or a given replica (``kafka-transactions.sh find-hanging --broker-id``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.metadata import missing_topic
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.log import ActiveProducer
from tidemark_broker.security.acls import Operation

#: Producers in one response. If a partition has more, those that wrote last are returned.
_PRODUCERS_MAX = 50_000
_SHOWN_MAX = 249


@dataclass(slots=True, kw_only=True)
class ProducerState:
    """State of one producer; -1 for absent values."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


@dataclass(slots=True, kw_only=True)
class PartitionResponse:
    partition_index: int
    error_code: ErrorCode
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


@dataclass(slots=True, kw_only=True)
class TopicResponse:
    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(slots=True, kw_only=True)
class DescribeProducersResponse:
    """Results in the order of the request."""

    topics: tuple[TopicResponse, ...]
    throttle_time: timedelta = ZERO


async def handle(request: DescribeProducersRequest, call: Call) -> DescribeProducersResponse:
    """Return the recent producers of each partition.

    Partitions that follow once :data:`_PRODUCERS_MAX` producers are in the response get an error,
    so that it fits in memory.
    """
    denied = await call.denied(Operation.READ, (topic.name for topic in request.topics))
    topics, returned = [], 0
    for topic in request.topics:
        # Authorization is by topic, while errors are reported by partition.
        refused = ErrorCode.topic_authorization_failed if topic.name in denied else ErrorCode.none
        partitions = []
        for index in topic.partition_indexes:
            found = await _partition(topic.name, index, refused, call, returned)
            returned += len(found.active_producers)
            partitions.append(found)
        topics.append(TopicResponse(name=topic.name, partitions=tuple(partitions)))
    return DescribeProducersResponse(topics=tuple(topics))


async def _partition(
    topic: str, index: int, refused: ErrorCode, call: Call, returned: int
) -> PartitionResponse:
    """Return the producers of one partition, or its error.

    ``refused`` is the authorization error of the topic, NONE if the client may read it.
    ``returned`` is the number of producers that are already in the response.
    """
    # Let other requests run between partitions.
    if call.time_slice.is_over:
        await call.time_slice.renew()
    if refused is not ErrorCode.none:
        return PartitionResponse(partition_index=index, error_code=refused)
    # The answer must fit in memory; admin clients can split their request.
    if returned >= _PRODUCERS_MAX:
        return PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.invalid_request,
            error_message=f"{returned} producers were returned already: request fewer partitions",
        )
    replicas = call.services.replicas
    partition = replicas.get(topic, index)
    error = replicas.error_of(topic, index) if partition is None else partition.check_replica()
    # A deleted topic may still have a replica here until its log is removed.
    if topic not in call.services.cluster.topics:
        error = missing_topic(topic)
    if partition is None or error is not ErrorCode.none:
        return PartitionResponse(
            partition_index=index,
            error_code=error,
            error_message=f"{topic[:_SHOWN_MAX]}-{index} is not on this broker",
        )
    # Most recently active first, so a limited answer contains the producers of interest.
    found = await call.time_slice.collect(_states(partition.log.active_producers(_PRODUCERS_MAX)))
    return PartitionResponse(
        partition_index=index, error_code=ErrorCode.none, active_producers=tuple(found)
    )


def _states(producers: list[ActiveProducer]) -> Iterator[ProducerState]:
    for producer in producers:
        yield ProducerState(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp_ms,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=producer.txn_first_offset,
        )


API = Api(
    key=61,
    name="DescribeProducers",
    version_min=0,
    version_max=0,
    request=DescribeProducersRequest,
    answer=DescribeProducersResponse,
    handler=handle,
    open_ended=True,
)
