"""AddOffsetsToTxn (25): add the ``__consumer_offsets`` partition of a group to a transaction
(KIP-98).
"""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.transactional import as_known, refusal
from tidemark_broker.coordinators.coordinator_lookup import partition_of
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions.core.metadata import Producer

#: From this version clients understand PRODUCER_FENCED.
_FENCED_SINCE = 2


@dataclass(slots=True, kw_only=True)
class AddOffsetsToTxnResponse:
    error_code: ErrorCode
    throttle_time: timedelta = ZERO


async def handle(request: AddOffsetsToTxnRequest, call: Call) -> AddOffsetsToTxnResponse:
    """Add the group's ``__consumer_offsets`` partition to the producer's transaction.

    Answers once the transaction coordinator has written the partition to its log.
    """
    error = await _error(request, call)
    return AddOffsetsToTxnResponse(error_code=as_known(error, call, since=_FENCED_SINCE))


async def _error(request: AddOffsetsToTxnRequest, call: Call) -> ErrorCode:
    """Add the partition through the transaction coordinator, and return the error code."""
    # The producer needs WRITE on its transactional id and READ on the group.
    error = refusal(call, request.transactional_id)
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
        return await services.transactions.shard_of(request.transactional_id).add_partitions(
            request.transactional_id,
            producer=Producer(request.producer_id, request.producer_epoch),
            partitions={TopicPartition(GROUP_OFFSETS_TOPIC, partition)},
            # Offset commits never raise the epoch, so version 0 keeps the rules before KIP-890.
            version=0,
        )
    except CoordinatorError as failed:
        return failed.error_code


API = Api(
    key=25,
    name="AddOffsetsToTxn",
    version_min=0,
    version_max=4,
    request=AddOffsetsToTxnRequest,
    answer=AddOffsetsToTxnResponse,
    handler=handle,
)
