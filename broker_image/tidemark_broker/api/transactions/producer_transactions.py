"""Transactions of producers (KIP-98): their begin, contents and end.

InitProducerId (22), AddPartitionsToTxn (24), AddOffsetsToTxn (25) and EndTxn (26).

InitProducerId, versions 0 to 6:

- 2: flexible
- 3: producer id and epoch, so that a producer may resume (KIP-360)
- 4: the client understands PRODUCER_FENCED (KIP-588)
- 5: the client understands TRANSACTION_ABORTABLE (KIP-890)
- 6: two-phase commit (KIP-939)

AddPartitionsToTxn, versions 0 to 5:

- 2: the client understands PRODUCER_FENCED
- 3: flexible
- 4: for brokers: many transactions, and verification without adding (KIP-890)
- 5: TRANSACTION_ABORTABLE

AddOffsetsToTxn, versions 0 to 4:

- 2: the client understands PRODUCER_FENCED
- 3: flexible
- 4: TRANSACTION_ABORTABLE

EndTxn, versions 0 to 5:

- 2: the client understands PRODUCER_FENCED
- 3: flexible
- 4: TRANSACTION_ABORTABLE
- 5: each end raises the producer's epoch, and the answer contains the new identity (KIP-890)

Versions that are not named have the fields of the version before.

Behaviour:

- Partitions are added all or none. One bad partition gives the others OPERATION_NOT_ATTEMPTED.
- From version 4 of AddPartitionsToTxn the client needs CLUSTER_ACTION.
- EndTxn is answered once the decision is committed. Markers are written afterwards, and the next
  transaction waits for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_partitions_to_txn import v5
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v6.request import InitProducerIdRequest

from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.client import Client
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.coordinator_lookup import partition_of
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.decisions import Decision
from tidemark_broker.transactions.core.metadata import EPOCH_BUMP_LEVEL, NO_PRODUCER_ID, Producer

# ---------------------------------------------------------------- InitProducerId


#: Longest wait for a block of ids. Clients retry.
_WAIT_S = 5.0
#: From this version a client understands PRODUCER_FENCED.
_INIT_FENCED_SINCE = 4


@dataclass(slots=True, kw_only=True)
class InitProducerIdResponse(ThrottledAnswer):
    """The producer's identity, -1 with an error."""

    error_code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1
    ongoing_txn_producer_id: int = -1
    ongoing_txn_producer_epoch: int = -1


async def init_producer_id(request: InitProducerIdRequest, call: Call) -> InitProducerIdResponse:
    """Assign or confirm the identity of a producer."""
    decision = await _init(request, call)
    # KIP-588: older clients only know INVALID_PRODUCER_EPOCH, which is fatal for them too.
    error = _as_known(decision.error, call, since=_INIT_FENCED_SINCE)
    if error is not ErrorCode.none or decision.producer is None:
        return InitProducerIdResponse(error_code=error)
    return InitProducerIdResponse(
        error_code=error,
        producer_id=decision.producer.producer_id,
        producer_epoch=decision.producer.epoch,
    )


async def _init(request: InitProducerIdRequest, call: Call) -> Decision:
    """Authorize the request, and return a producer id and epoch or an error."""
    refused = _init_refusal(request.transactional_id, request, call.client)
    if refused is not ErrorCode.none:
        return Decision(error=refused)
    # With a transactional id its coordinator decides. It may fence an older producer.
    if request.transactional_id is not None:
        return await _init_transactional(request.transactional_id, request, call)
    # An idempotent producer without a transactional id gets any unused id.
    producer_id = await call.services.producer_ids.next_id(call.wait_s(_WAIT_S))
    if producer_id is None:
        return Decision(error=ErrorCode.coordinator_load_in_progress)
    return Decision(producer=Producer(producer_id, 0))


async def _init_transactional(
    transactional_id: str, request: InitProducerIdRequest, call: Call
) -> Decision:
    # Two-phase commit (KIP-939) is off, as in Kafka by default.
    if request.enable2_pc:
        return Decision(error=ErrorCode.transactional_id_authorization_failed)
    if request.keep_prepared_txn:
        return Decision(error=ErrorCode.unsupported_version)
    # After an error, a producer names itself to get a higher epoch (KIP-360). -1: a new producer.
    expected = Producer(request.producer_id, request.producer_epoch)
    try:
        shard = call.services.transactions.coordinators.shard_of(transactional_id)
        return await shard.init_producer_id(
            transactional_id,
            expected=None if expected.producer_id == NO_PRODUCER_ID else expected,
            timeout_ms=milliseconds(request.transaction_timeout),
        )
    except CoordinatorError as failed:
        return Decision(error=failed.error_code)


def _init_refusal(
    transactional_id: str | None, request: InitProducerIdRequest, client: Client
) -> ErrorCode:
    # Without a transactional id there is no resource to authorize, only the right to produce.
    if transactional_id is None:
        if not _may_be_idempotent(client):
            return ErrorCode.cluster_authorization_failed
    elif not client.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    # Kafka requires both or neither of id and epoch (KIP-360), and no empty transactional id.
    if (request.producer_id == -1) != (request.producer_epoch == -1) or transactional_id == "":
        return ErrorCode.invalid_request
    return ErrorCode.none


def _may_be_idempotent(client: Client) -> bool:
    """True if the client may produce idempotently: permission to write any topic suffices
    (KIP-679).
    """
    if client.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER):
        return True
    permissions = client.permissions
    return permissions is None or permissions.allows_any(Operation.WRITE, ResourceType.TOPIC)


INIT_PRODUCER_ID = Api(init_producer_id, versions=(0, 6))


# ---------------------------------------------------------------- AddPartitionsToTxn


def _refusal(call: Call, transactional_id: str) -> ErrorCode:
    """Return why the client may not use the id, or ``none``."""
    if not call.client.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    return ErrorCode.none if transactional_id else ErrorCode.invalid_request


def _as_known(error: ErrorCode, call: Call, *, since: int) -> ErrorCode:
    """Replace PRODUCER_FENCED for versions that do not understand it (KIP-588)."""
    if error is ErrorCode.producer_fenced and call.version < since:
        return ErrorCode.invalid_producer_epoch
    return error


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
class AddPartitionsToTxnResponse(ThrottledAnswer):
    """Results in the order of the request."""

    error_code: ErrorCode = ErrorCode.none
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = ()
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = ()


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


async def add_partitions(
    request: AddPartitionsToTxnRequest, call: Call
) -> AddPartitionsToTxnResponse:
    """Add partitions to the producer's transaction, or let a broker verify many transactions.

    Up to version 3 a client adds to its own transaction. From version 4 the caller is a broker,
    which needs CLUSTER_ACTION.
    """
    if call.version < _BROKERS_SINCE:
        transaction = _of_producer(request)
        # A request may name thousands of partitions, so long loops hand the event loop back.
        await call.time_slice.renew_if_over()
        await _of_client(transaction, call)
        await call.time_slice.renew_if_over()
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
            await call.time_slice.renew_if_over()
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
    error = _refusal(call, transaction.transactional_id)
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
        shard = call.services.transactions.coordinators.shard_of(transactional_id)
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
    transaction.set_all(_as_known(error, call, since=_FENCED_SINCE))


ADD_PARTITIONS = Api(add_partitions, versions=(0, 5))


# ---------------------------------------------------------------- AddOffsetsToTxn


@dataclass(slots=True, kw_only=True)
class AddOffsetsToTxnResponse(ThrottledAnswer):
    error_code: ErrorCode


async def add_offsets(request: AddOffsetsToTxnRequest, call: Call) -> AddOffsetsToTxnResponse:
    """Add the group's ``__consumer_offsets`` partition to the producer's transaction.

    Answers once the transaction coordinator has written the partition to its log.
    """
    error = await _offsets_error(request, call)
    return AddOffsetsToTxnResponse(error_code=_as_known(error, call, since=_FENCED_SINCE))


async def _offsets_error(request: AddOffsetsToTxnRequest, call: Call) -> ErrorCode:
    """Add the partition through the transaction coordinator, and return the error code."""
    # The producer needs WRITE on its transactional id and READ on the group.
    error = _refusal(call, request.transactional_id)
    if error is not ErrorCode.none:
        return error
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return ErrorCode.group_authorization_failed
    services = call.services
    # The group's partition is a function of the partition count, so the topic must exist first.
    view = services.cluster.topics.get(GROUP_OFFSETS_TOPIC)
    if view is None or not view.partitions:
        services.creations.request(GROUP_OFFSETS_TOPIC)
        return ErrorCode.coordinator_not_available
    partition = partition_of(request.group_id, len(view.partitions))
    try:
        shard = services.transactions.coordinators.shard_of(request.transactional_id)
        return await shard.add_partitions(
            request.transactional_id,
            producer=Producer(request.producer_id, request.producer_epoch),
            partitions={TopicPartition(GROUP_OFFSETS_TOPIC, partition)},
            # Offset commits never raise the epoch, so version 0 keeps the rules before KIP-890.
            version=0,
        )
    except CoordinatorError as failed:
        return failed.error_code


ADD_OFFSETS = Api(add_offsets, versions=(0, 4))


# ---------------------------------------------------------------- EndTxn


@dataclass(slots=True, kw_only=True)
class EndTxnResponse(ThrottledAnswer):
    """The producer's identity, -1 with an error."""

    error_code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1


async def end(request: EndTxnRequest, call: Call) -> EndTxnResponse:
    """Commit or abort the producer's transaction, and return the producer's new identity.

    Answers once the decision is committed. The coordinator writes the markers afterwards.
    """
    error = _refusal(call, request.transactional_id)
    if error is not ErrorCode.none:
        return EndTxnResponse(error_code=error)
    try:
        shard = call.services.transactions.coordinators.shard_of(request.transactional_id)
        # Only clients of version 5 receive the raised epoch, so only they may have it raised.
        ended = await shard.end(
            request.transactional_id,
            producer=Producer(request.producer_id, request.producer_epoch),
            commit=request.committed,
            version=EPOCH_BUMP_LEVEL if call.version >= _RAISES_EPOCH_SINCE else 0,
        )
    except CoordinatorError as failed:
        return EndTxnResponse(error_code=failed.error_code)
    # An older client would not understand PRODUCER_FENCED (KIP-588).
    if ended.error is not ErrorCode.none or ended.producer is None:
        return EndTxnResponse(error_code=_as_known(ended.error, call, since=_FENCED_SINCE))
    return EndTxnResponse(
        error_code=ErrorCode.none,
        producer_id=ended.producer.producer_id,
        producer_epoch=ended.producer.epoch,
    )


END = Api(end, versions=(0, 5))
