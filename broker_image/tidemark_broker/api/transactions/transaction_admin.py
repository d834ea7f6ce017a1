"""Transactions for administrators (KIP-664): state, producers of a partition, and markers.

- DescribeTransactions (65), version 0
- ListTransactions (66), versions 0 to 2. Version 1 adds a filter by age (KIP-994), and version 2 a
  regular expression of ids (KIP-1152).
- DescribeProducers (61), version 0
- WriteTxnMarkers (27), versions 1 and 2. Version 2 adds the version of the transaction protocol
  (KIP-890).

Behaviour:

- DescribeTransactions leaves out topics that the client may not describe.
- A list or a description that does not fit in memory is COORDINATOR_LOAD_IN_PROGRESS, and the
  client retries.
- DescribeProducers returns at most 50,000 producers, those that wrote last. A follower answers too
  (``kafka-transactions.sh find-hanging --broker-id``).
- WriteTxnMarkers ends a hanging transaction in partitions that this broker leads. Brokers use an
  internal Api. ALTER on the cluster suffices, as in Kafka.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest

from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import ZERO, ThrottledAnswer
from tidemark_broker.api.table import Api, Call, missing_topic
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.topic_patterns import BadPattern, compiled
from tidemark_broker.log import ActiveProducer
from tidemark_broker.transactions.core.metadata import STATES_BY_LABEL, TransactionMetadata
from tidemark_broker.transactions.wire import WireMarker

# ---------------------------------------------------------------- DescribeTransactions


_EPOCH = datetime.fromtimestamp(0, tz=UTC)
#: Approximate size of an id, and of a partition of its transaction, in an answer.
_BARE_BYTES, _PARTITION_BYTES = 500, 40


@dataclass(slots=True, kw_only=True)
class TopicData:
    """Partitions of one topic that are in the transaction."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class DescribedTransaction:
    """State of one transactional id.

    Of a decided transaction only partitions without markers are listed.
    """

    error_code: ErrorCode
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout: timedelta = ZERO
    transaction_start_time: datetime = _EPOCH
    producer_id: int = 0
    producer_epoch: int = 0
    topics: tuple[TopicData, ...] = ()


@dataclass(slots=True, kw_only=True)
class DescribeTransactionsResponse(ThrottledAnswer):
    """Each id once, in the order of the request."""

    transaction_states: tuple[DescribedTransaction, ...]


async def describe_transactions(
    request: DescribeTransactionsRequest, call: Call
) -> DescribeTransactionsResponse:
    """Return the state of transactions that this broker coordinates, within the memory limit.

    A transactional id that does not fit gets COORDINATOR_LOAD_IN_PROGRESS, which the client
    retries.
    """
    states: list[DescribedTransaction] = []
    weight_bytes = 0
    for transactional_id in dict.fromkeys(request.transactional_ids):
        found = _found(transactional_id, call)
        partitions = 0 if isinstance(found, ErrorCode) else len(found.partitions)
        weight_bytes += _BARE_BYTES + partitions * _PARTITION_BYTES
        # The client repeats an id that is answered with this retriable code.
        if not call.has_room(weight_bytes):
            found = ErrorCode.coordinator_load_in_progress
        if isinstance(found, ErrorCode):
            states.append(DescribedTransaction(error_code=found, transactional_id=transactional_id))
        else:
            states.append(_described(transactional_id, found, call))
        # Let other requests run if this one has used up its time slice.
        await call.time_slice.renew_if_over()
    return DescribeTransactionsResponse(transaction_states=tuple(states))


def _found(transactional_id: str, call: Call) -> TransactionMetadata | ErrorCode:
    if not call.client.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    if not transactional_id:
        return ErrorCode.invalid_request
    try:
        known = call.services.transactions.describe(transactional_id)
    except CoordinatorError as failed:
        return failed.error_code
    return ErrorCode.transactional_id_not_found if known is None else known


def _described(
    transactional_id: str, known: TransactionMetadata, call: Call
) -> DescribedTransaction:
    """Return the description of one transaction.

    Topics that the client may not describe are left out.
    """
    # Sorted, so that an answer is the same on every call.
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(known.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return DescribedTransaction(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=known.state.label,
        transaction_timeout=timedelta(milliseconds=known.timeout_ms),
        transaction_start_time=_EPOCH + timedelta(milliseconds=known.started_ms),
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        topics=tuple(
            TopicData(topic=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
            if call.client.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ),
    )


DESCRIBE_TRANSACTIONS = Api(describe_transactions, versions=(0, 0), open_ended=True)


# ---------------------------------------------------------------- ListTransactions


#: Approximate size of an id in an answer.
_ID_BYTES = 200


@dataclass(slots=True, kw_only=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    transaction_state: str


@dataclass(slots=True, kw_only=True)
class ListTransactionsResponse(ThrottledAnswer):
    """The transactions. ``unknown_state_filters`` are names in the request that are not states."""

    error_code: ErrorCode
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListedTransaction, ...] = ()


async def list_transactions(
    request: ListTransactionsRequest, call: Call
) -> ListTransactionsResponse:
    """List the transactions that this broker coordinates and that match the filters."""
    # Kafka answers LOADING rather than an incomplete list, and clients retry.
    coordinators = call.services.transactions.coordinators
    if coordinators.loading:
        return ListTransactionsResponse(error_code=ErrorCode.coordinator_load_in_progress)
    # Reserved for all transactions, because the number of matches is not known yet.
    if not call.has_room(sum(len(shard.table) for shard in coordinators.active()) * _ID_BYTES):
        return ListTransactionsResponse(error_code=ErrorCode.coordinator_load_in_progress)
    try:
        matches = await _matcher(request.transactional_id_pattern)
    except BadPattern:
        return ListTransactionsResponse(error_code=ErrorCode.invalid_regular_expression)
    found = await call.time_slice.collect(_looked_at(request, call, matches))
    return ListTransactionsResponse(
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(
            name for name in request.state_filters if name not in STATES_BY_LABEL
        ),
        transaction_states=tuple(transaction for transaction in found if transaction is not None),
    )


async def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return the filter of ids. As in Kafka, no pattern and an empty one match all, others whole
    ids.

    Raises :class:`BadPattern`.
    """
    # Compiling an expression from a client may take long, so it runs in a thread.
    return await asyncio.to_thread(compiled, pattern) if pattern else lambda _: True


def _looked_at(
    request: ListTransactionsRequest, call: Call, matches: Callable[[str], bool]
) -> Iterator[ListedTransaction | None]:
    """Yield the transactions that match the filters and may be described, None for others.

    The caller yields the event loop between items. ``matches`` is the filter of transactional ids.
    """
    transactions = call.services.transactions
    now_ms = transactions.shared.replicas.wall_ms()
    states = {STATES_BY_LABEL.get(name) for name in request.state_filters}
    producers = set(request.producer_id_filters)

    def is_match(known: TransactionMetadata) -> bool:
        """Return whether a transaction matches the filters of state, producer id and age."""
        if (states and known.state not in states) or (
            producers and known.producer_id not in producers
        ):
            return False
        # A negative filter means any age (KIP-994).
        open_ms = now_ms - known.started_ms
        return request.duration_filter < 0 or open_ms > request.duration_filter

    for shard in transactions.coordinators.active():
        for transactional_id, known in shard.table.all():
            # The cheap filters run first, since an ACL check for each id is the slowest part.
            may = (
                is_match(known)
                and matches(transactional_id)
                and call.client.may(
                    Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
                )
            )
            yield _listed(transactional_id, known) if may else None


def _listed(transactional_id: str, known: TransactionMetadata) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=transactional_id,
        producer_id=known.producer_id,
        transaction_state=known.state.label,
    )


LIST_TRANSACTIONS = Api(list_transactions, versions=(0, 2), open_ended=True)


# ---------------------------------------------------------------- DescribeProducers


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
class DescribeProducersResponse(ThrottledAnswer):
    """Results in the order of the request."""

    topics: tuple[TopicResponse, ...]


async def describe_producers(
    request: DescribeProducersRequest, call: Call
) -> DescribeProducersResponse:
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
    await call.time_slice.renew_if_over()
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


DESCRIBE_PRODUCERS = Api(describe_producers, versions=(0, 0), open_ended=True)


# ---------------------------------------------------------------- WriteTxnMarkers


#: Kafka's ``request.timeout.ms``: longest wait for markers to be committed.
_WAIT_S = 30.0


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerPartitionResult:
    partition_index: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerTopicResult:
    name: str
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerResult:
    producer_id: int
    topics: tuple[WritableTxnMarkerTopicResult, ...]


@dataclass(slots=True, kw_only=True)
class WriteTxnMarkersResponse:
    """Results in the order of the request."""

    markers: tuple[WritableTxnMarkerResult, ...]


async def write_markers(request: WriteTxnMarkersRequest, call: Call) -> WriteTxnMarkersResponse:
    """Write transaction markers to partitions that this broker leads, and wait for their commit."""
    flattened = await call.time_slice.collect(_flattened(request))
    # As in Kafka, ALTER suffices, so that administrators need no broker's permission.
    may = call.client.may(Operation.ALTER, ResourceType.CLUSTER) or call.client.may(
        Operation.CLUSTER_ACTION, ResourceType.CLUSTER
    )
    errors: Sequence[ErrorCode] = [ErrorCode.cluster_authorization_failed] * len(flattened)
    if may:
        errors = await call.services.marker_writer.write(flattened, wait_s=call.wait_s(_WAIT_S))
    # Errors are in the order of the flattened markers.
    remaining = iter(errors)
    results = await call.time_slice.collect(
        _result(marker, remaining) for marker in request.markers
    )
    return WriteTxnMarkersResponse(markers=tuple(results))


def _flattened(request: WriteTxnMarkersRequest) -> Iterator[WireMarker]:
    for marker in request.markers:
        for topic in marker.topics:
            for partition in topic.partition_indexes:
                yield WireMarker(
                    topic=topic.name,
                    partition=partition,
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    coordinator_epoch=marker.coordinator_epoch,
                    commit=marker.transaction_result,
                    version=marker.transaction_version,
                )


def _result(marker: WritableTxnMarker, remaining: Iterator[ErrorCode]) -> WritableTxnMarkerResult:
    """Return the results of one marker, grouped by topic as in the request.

    ``remaining`` yields the error codes of all markers in the order in which they were written,
    which is that of the request.
    """
    # Each partition takes the next error code, so the loops must be in the order of the request.
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    WritableTxnMarkerPartitionResult(
                        partition_index=partition, error_code=next(remaining)
                    )
                    for partition in topic.partition_indexes
                ),
            )
            for topic in marker.topics
        ),
    )


WRITE_MARKERS = Api(write_markers, versions=(1, 2))
