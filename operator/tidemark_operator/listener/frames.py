"""Requests that the control listener serves, and the responses that need no decision. Pure."""

from dataclasses import dataclass
from typing import Any, get_args

from kio.schema.errors import ErrorCode

from tidemark.wire import control, framing, topics

#: Requests within a session, which carry its secret.
SessionRequest = (
    control.BrokerHeartbeatRequest
    | control.AlterPartitionRequest
    | control.BrokerStatusRequest
    | control.AllocateProducerIdsRequest
    | control.AttachRequest
    | topics.ChangeTopicsRequest
)
#: Requests before a session.
Introduction = control.BrokerRegistrationRequest | control.ReplicaStatesRequest
Request = Introduction | SessionRequest
Response = (
    control.BrokerRegistrationResponse
    | control.ReplicaStatesResponse
    | control.BrokerHeartbeatResponse
    | control.AlterPartitionResponse
    | control.BrokerStatusResponse
    | control.AllocateProducerIdsResponse
    | control.AttachResponse
    | topics.ChangeTopicsResponse
)
_REQUESTS: dict[int, Any] = {kind.__api_key__: kind for kind in get_args(Request)}


@dataclass(frozen=True, slots=True)
class Received:
    """A request and the correlation id of its answer."""

    correlation_id: int
    request: Request


def decode_request(frame: bytes) -> Received:
    """Return a broker's request; raises :class:`framing.FrameError` for an unknown one."""
    key, version, correlation_id = framing.peek_request(frame)
    request_type = _REQUESTS.get(key)
    if request_type is None or version != 0:
        raise framing.FrameError(f"request key {key} version {version} is not supported")
    request: Request = framing.decode_request(request_type, frame)
    return Received(correlation_id, request)


def heartbeat_response(
    code: ErrorCode,
    controller_epoch: int,
    *,
    is_fenced: bool = True,
    should_shut_down: bool = False,
) -> control.BrokerHeartbeatResponse:
    """Return a heartbeat's response; brokers count as fenced unless stated otherwise."""
    return control.BrokerHeartbeatResponse(
        error_code=int(code),
        is_fenced=is_fenced,
        should_shut_down=should_shut_down,
        controller_epoch=controller_epoch,
    )


def not_controller(request: Request) -> Response:
    """Return the NOT_CONTROLLER response of an operator that does not lead.

    The broker then tries another operator's address.
    """
    if isinstance(request, control.BrokerRegistrationRequest):
        return control.BrokerRegistrationResponse(
            error_code=int(ErrorCode.not_controller),
            error_message="this operator is not the active controller",
            broker_epoch=-1,
            controller_epoch=-1,
            session_timeout_ms=0,
        )
    if isinstance(request, control.ReplicaStatesRequest):
        return control.ReplicaStatesResponse(error_code=int(ErrorCode.not_controller))
    return _refused(request, ErrorCode.not_controller, -1)


def stale(request: SessionRequest, controller_epoch: int) -> Response:
    """Return the response to a request of a former registration, or without its secret.

    The broker then registers again.
    """
    return _refused(request, ErrorCode.stale_broker_epoch, controller_epoch)


def _refused(request: SessionRequest, code: ErrorCode, controller_epoch: int) -> Response:
    """Return the error response to a request that needs a broker session.

    ``controller_epoch`` is the present one, -1 without a term.
    """
    # Each request has a response type of its own; counts and ids are -1 or empty.
    match request:
        case control.BrokerHeartbeatRequest():
            return heartbeat_response(code, controller_epoch)
        case control.AlterPartitionRequest():
            return control.AlterPartitionResponse(error_code=int(code), results=())
        case control.BrokerStatusRequest():
            return control.BrokerStatusResponse(error_code=int(code))
        case control.AllocateProducerIdsRequest():
            return control.AllocateProducerIdsResponse(
                error_code=int(code), producer_id_start=-1, producer_id_len=0
            )
        case control.AttachRequest():
            return control.AttachResponse(error_code=int(code), controller_epoch=controller_epoch)
        case topics.ChangeTopicsRequest():
            return topics.ChangeTopicsResponse(error_code=int(code), results=())
