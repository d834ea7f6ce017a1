"""DescribeTransactions (65, KIP-664): state of transactional ids whose coordinator is this broker.

Topics that the client may not describe are left out.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions.core.metadata import TransactionMetadata

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
class DescribeTransactionsResponse:
    """Each id once, in the order of the request."""

    transaction_states: tuple[DescribedTransaction, ...]
    throttle_time: timedelta = ZERO


async def handle(request: DescribeTransactionsRequest, call: Call) -> DescribeTransactionsResponse:
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
            states.append(_state(transactional_id, found, call))
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


def _state(transactional_id: str, known: TransactionMetadata, call: Call) -> DescribedTransaction:
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


API = Api(
    key=65,
    name="DescribeTransactions",
    version_min=0,
    version_max=0,
    open_ended=True,
    request=DescribeTransactionsRequest,
    answer=DescribeTransactionsResponse,
    handler=handle,
)
