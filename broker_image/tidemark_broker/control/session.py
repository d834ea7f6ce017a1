"""A session with the controller: its identity, and the errors that end it.

The identity proves that this process is the one that registered last.
"""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode


class SessionEnded(Exception):
    """The session has ended. The next one starts with discovery."""


class NotController(SessionEnded):
    """The other side does not lead; the next address is tried at once."""


class ControllerRefused(SessionEnded):
    """The controller rejects this broker for the reason in the text. Retried after a pause."""


class PreviousProcessAlive(ControllerRefused):
    """The broker's previous process still counts as alive, for at most one session."""


def name_of(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def check(code: int, request: str) -> None:
    """Raise the error that a code in the answer to ``request`` means for the session."""
    if code == 0:
        return
    if code == int(ErrorCode.not_controller.value):
        raise NotController(f"{request}: not the controller")
    # A newer session or controller has taken over; a new registration resolves it.
    if code in (
        int(ErrorCode.stale_broker_epoch.value),
        int(ErrorCode.stale_controller_epoch.value),
    ):
        raise SessionEnded(f"{request}: {name_of(code)}")
    raise ControllerRefused(f"{request}: {name_of(code)}")


@dataclass(frozen=True, slots=True)
class ControllerSession:
    """Result of a registration. ``token`` is a secret between broker and controller."""

    broker_id: int
    broker_epoch: int
    token: bytes = field(repr=False)
