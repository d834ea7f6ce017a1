"""Common checks of the transactional Apis."""

from kio.schema.errors import ErrorCode

from tidemark_broker.api.table import Call
from tidemark_broker.security.acls import Operation, ResourceType


def refusal(call: Call, transactional_id: str) -> ErrorCode:
    """Return why the client may not use the id, or ``none``."""
    if not call.client.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    return ErrorCode.none if transactional_id else ErrorCode.invalid_request


def as_known(error: ErrorCode, call: Call, *, since: int) -> ErrorCode:
    """Replace PRODUCER_FENCED for versions that do not understand it (KIP-588)."""
    if error is ErrorCode.producer_fenced and call.version < since:
        return ErrorCode.invalid_producer_epoch
    return error
