"""AddPartitionsToTxn (24): add partitions to a transaction (KIP-98), all of them or none.

Up to version 3 a producer adds to its own transaction. From version 4 a broker sends many
transactions, and may only verify that the partitions are in them (KIP-890). That requires
CLUSTER_ACTION.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.add_partitions_to_txn import v5
from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import INTERNAL_TOPICS
from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.transactional import as_known, refusal
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions.core.metadata import EPOCH_BUMP_LEVEL, Producer

#: From this version brokers send the request, with many transactions.
_BROKERS_SINCE = 4
#: From this version the end of a transaction raises the producer epoch (KIP-890).
_RAISES_EPOCH_SINCE = 5
#: From this version clients understand PRODUCER_FENCED.
_FENCED_SINCE = 2

Topic = v5.request.AddPartitionsToTxnTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest(v5.request.AddPartitionsToTxnRequest):
    """One transaction up to version 3, many from version 4."""

    transactions: tuple[v5.request.AddPartitionsToTxnTransaction, ...] = ()
    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = -1
    v3_and_below_producer_epoch: int = -1
    v3_and_below_topics: tuple[Topic, ...] = ()


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: int
    partition_error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnTopicResult:
    name: str
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnResult:
    transactional_id: str
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...]


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    """Results in the order of the request."""

    error_code: ErrorCode = ErrorCode.none
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = ()
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = ()
    throttle_time: timedelta = ZERO


@dataclass(slots=True)
class _Transaction:
    """One transaction of the request, with the error code of each of its partitions.

    With ``verify_only`` the coordinator only checks that the partitions are in the transaction.
    """

    transactional_id: str
    producer: Producer
    topics: Sequence[Topic]
    verify_only: bool
    errors: dict[TopicPartition, ErrorCode]

    def set_all(self, error: ErrorCode) -> None:
        self.errors = dict.fromkeys(self.errors, error)

    def results(self) -> tuple[AddPartitionsToTxnTopicResult, ...]:
        return tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=self.errors[TopicPartition(topic.name, number)],
                    )
                    for number in topic.partitions
                ),
            )
            for topic in self.topics
        )


async def handle(request: AddPartitionsToTxnRequest, call: Call) -> AddPartitionsToTxnResponse:
    """Add partitions to the producer's transaction, or let a broker verify many transactions.

    Up to version 3 a client adds to its own transaction. From version 4 the caller is a broker,
    which needs CLUSTER_ACTION.
    """
    if call.version < _BROKERS_SINCE:
        transaction = _of_producer(request)
        # A request may name thousands of partitions, so long loops hand the event loop back.
        if call.time_slice.is_over:
            await call.time_slice.renew()
        await _of_client(transaction, call)
        if call.time_slice.is_over:
            await call.time_slice.renew()
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=transaction.results())
    if not call.client.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.cluster_authorization_failed)
    results: list[AddPartitionsToTxnResult] = []
    # A broker may verify thousands of transactions at once, so the loop yields between them.
    for part in in_parts(request.transactions):
        for entry in part:
            transaction = _of_broker(entry)
            await _check_existence(transaction, call)
            results.append(
                AddPartitionsToTxnResult(
                    transactional_id=entry.transactional_id, topic_results=transaction.results()
                )
            )
            if call.time_slice.is_over:
                await call.time_slice.renew()
    return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))


def _of_producer(request: AddPartitionsToTxnRequest) -> _Transaction:
    return _Transaction(
        request.v3_and_below_transactional_id,
        Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
        request.v3_and_below_topics,
        verify_only=False,
        errors=_partitions(request.v3_and_below_topics),
    )


def _of_broker(entry: v5.request.AddPartitionsToTxnTransaction) -> _Transaction:
    return _Transaction(
        entry.transactional_id,
        Producer(entry.producer_id, entry.producer_epoch),
        entry.topics,
        verify_only=entry.verify_only,
        errors=_partitions(entry.topics),
    )


def _partitions(topics: Sequence[Topic]) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, number): ErrorCode.none
        for topic in topics
        for number in topic.partitions
    }


async def _of_client(transaction: _Transaction, call: Call) -> None:
    """Apply the checks for clients: authorization, and no internal topic."""
    error = refusal(call, transaction.transactional_id)
    if error is not ErrorCode.none:
        transaction.set_all(error)
        return
    names = {tp.topic for tp in transaction.errors}
    denied = {*await call.denied(Operation.WRITE, names), *(names & INTERNAL_TOPICS)}
    for tp in transaction.errors:
        if tp.topic in denied:
            transaction.errors[tp] = ErrorCode.topic_authorization_failed
    await _check_existence(transaction, call)


async def _check_existence(transaction: _Transaction, call: Call) -> None:
    errors, topics = transaction.errors, call.services.cluster.topics
    # As in Kafka, one bad partition fails the transaction: the others get OPERATION_NOT_ATTEMPTED.
    for tp, error in errors.items():
        view = topics.get(tp.topic)
        if error is ErrorCode.none and (view is None or tp.partition not in view.partitions):
            errors[tp] = ErrorCode.unknown_topic_or_partition
    if all(error is ErrorCode.none for error in errors.values()):
        await _call_coordinator(transaction, call)
        return
    for tp, error in errors.items():
        if error is ErrorCode.none:
            errors[tp] = ErrorCode.operation_not_attempted


async def _call_coordinator(transaction: _Transaction, call: Call) -> None:
    """Add or verify the partitions at the transaction's coordinator, and set their error codes.

    The coordinator must be this broker. Otherwise all partitions get NOT_COORDINATOR, and the
    client looks for the right one.
    """
    transactional_id = transaction.transactional_id
    if not transactional_id:
        transaction.set_all(ErrorCode.invalid_request)
        return
    try:
        shard = call.services.transactions.shard_of(transactional_id)
        # Verification only reads the coordinator's memory, so it has no result to wait for.
        if transaction.verify_only:
            transaction.errors = shard.verify_partitions(
                transactional_id, producer=transaction.producer, partitions=set(transaction.errors)
            )
            return
        error = await shard.add_partitions(
            transactional_id,
            producer=transaction.producer,
            partitions=set(transaction.errors),
            # Only clients of version 5 understand a raised epoch in the answer to EndTxn (KIP-890).
            version=EPOCH_BUMP_LEVEL if call.version >= _RAISES_EPOCH_SINCE else 0,
        )
    except CoordinatorError as failed:
        error = failed.error_code
    transaction.set_all(as_known(error, call, since=_FENCED_SINCE))


API = Api(
    key=24,
    name="AddPartitionsToTxn",
    version_min=0,
    version_max=5,
    request=AddPartitionsToTxnRequest,
    answer=AddPartitionsToTxnResponse,
    handler=handle,
)
