"""Exceptions that end a term of leadership."""

from tidemark.reasons import Reason


class TermEnded(Exception):
    """This process may not act as the controller any more, or not under this epoch."""


class NotLeading(TermEnded):
    """The Lease is lost or has expired."""


class ControllerFenced(TermEnded):
    """The API server holds a higher controller epoch: another controller has taken over."""


class EpochTooLow(TermEnded):
    """A broker has seen a higher controller epoch: take over again, above ``floor``."""

    def __init__(self, floor: int) -> None:
        super().__init__(f"a broker has seen controller epoch {floor}")
        self.floor = floor


class SlicesBehind(TermEnded):
    """The slices lack decisions that brokers have received.

    The next takeover rebuilds the slices from the brokers' reports.
    """


class EpochsExhausted(Exception):
    """The controller epoch has reached its maximum, so no takeover is possible."""

    reason = Reason.EPOCHS_EXHAUSTED
