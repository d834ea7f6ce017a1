"""Why a session with a controller ends."""

from kio.schema.errors import ErrorCode


class SessionEnded(Exception):
    """The session is over; the next one begins with finding out who leads."""


class NotController(SessionEnded):
    """The other side does not lead: try the next address at once."""


class Refused(SessionEnded):
    """The controller refuses this broker; the text says why. Worth a pause before another try."""


class AliveElsewhere(Refused):
    """The former process of this broker still counts as alive: that is over within a session."""


def name_of(code: int) -> str:
    """Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def check(code: int, what: str) -> None:
    """Raise what an answer's error code means for the session."""
    if code == 0:
        return
    if code == int(ErrorCode.not_controller.value):
        raise NotController(f"{what}: not the controller")
    if code in (
        int(ErrorCode.stale_broker_epoch.value),
        int(ErrorCode.stale_controller_epoch.value),
    ):
        raise SessionEnded(f"{what}: {name_of(code)}")
    raise Refused(f"{what}: {name_of(code)}")
