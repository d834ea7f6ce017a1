"""Answers that need no decision. Pure."""

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_operator.listener.frames import Request, Response


def heartbeat_response(
    code: ErrorCode,
    controller_epoch: int,
    *,
    is_fenced: bool = True,
    should_shut_down: bool = False,
) -> control.BrokerHeartbeatResponse:
    """A heartbeat's answer; whoever is told nothing else is fenced."""
    return control.BrokerHeartbeatResponse(
        error_code=int(code),
        is_fenced=is_fenced,
        should_shut_down=should_shut_down,
        controller_epoch=controller_epoch,
    )


def not_controller(request: Request) -> Response:
    """The answer of a process that does not lead; the broker then tries another address."""
    code = int(ErrorCode.not_controller)
    match request:
        case control.BrokerRegistrationRequest():
            return control.BrokerRegistrationResponse(
                error_code=code,
                error_message="this operator does not lead, or has not taken over yet",
                broker_epoch=-1,
                controller_epoch=-1,
                session_timeout_ms=0,
            )
        case control.BrokerHeartbeatRequest():
            return heartbeat_response(ErrorCode.not_controller, -1)
        case control.AlterPartitionRequest():
            return control.AlterPartitionResponse(error_code=code, results=())
        case control.BrokerStatusRequest():
            return control.BrokerStatusResponse(error_code=code)
        case control.AttachRequest():
            return control.AttachResponse(error_code=code, controller_epoch=-1)
