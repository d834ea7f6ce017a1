"""InitProducerId (22): assign an id to an idempotent producer, or initialise a transactional id
(KIP-98, KIP-360, KIP-890).
"""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v6.request import InitProducerIdRequest

from tidemark_broker.api.client import Client
from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.producer_ids import Initialised, InitTransactionalId
from tidemark_broker.security.acls import Operation, ResourceType

#: Longest wait for a block of ids. Clients retry.
_WAIT_S = 5.0
#: From this version a client understands PRODUCER_FENCED.
_KNOWS_FENCED = 4


@dataclass(slots=True, kw_only=True)
class InitProducerIdResponse:
    """The producer's identity, -1 with an error."""

    error_code: ErrorCode
    producer_id: int
    producer_epoch: int
    ongoing_txn_producer_id: int = -1
    ongoing_txn_producer_epoch: int = -1
    throttle_time: timedelta = ZERO


async def handle(request: InitProducerIdRequest, call: Call) -> InitProducerIdResponse:
    """Assign or confirm the identity of a producer."""
    found = await _init(request, call)
    error = found.error
    # KIP-588: older clients only know INVALID_PRODUCER_EPOCH, which is fatal for them too.
    if error is ErrorCode.producer_fenced and call.version < _KNOWS_FENCED:
        error = ErrorCode.invalid_producer_epoch
    return InitProducerIdResponse(
        error_code=error,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        ongoing_txn_producer_id=found.ongoing_producer_id,
        ongoing_txn_producer_epoch=found.ongoing_producer_epoch,
    )


async def _init(request: InitProducerIdRequest, call: Call) -> Initialised:
    """Authorize the request, and return a producer id and epoch or an error."""
    transactional_id, services = request.transactional_id, call.services
    refused = _refusal(transactional_id, request, call.client)
    if refused is not ErrorCode.none:
        return Initialised(error=refused)
    # With a transactional id its coordinator decides. It may fence an older producer.
    if transactional_id is not None:
        initialisation = InitTransactionalId(
            transactional_id=transactional_id,
            timeout_ms=milliseconds(request.transaction_timeout),
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            enable_2pc=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
        )
        return await services.transactions.init_producer_id(initialisation)
    # An idempotent producer without a transactional id gets any unused id.
    producer_id = await services.producer_ids.next_id(call.wait_s(_WAIT_S))
    if producer_id is None:
        return Initialised(error=ErrorCode.coordinator_load_in_progress)
    return Initialised(error=ErrorCode.none, producer_id=producer_id, producer_epoch=0)


def _refusal(
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


API = Api(
    key=22,
    name="InitProducerId",
    version_min=0,
    version_max=6,
    request=InitProducerIdRequest,
    answer=InitProducerIdResponse,
    handler=handle,
)
