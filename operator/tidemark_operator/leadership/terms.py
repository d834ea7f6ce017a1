"""How a term of leadership ends."""

from tidemark.reasons import Reason


class TermEnded(Exception):
    """This process may not act as the controller any more (or not under this epoch)."""


class NotLeading(TermEnded):
    """The Lease is lost or ran out."""


class ControllerFenced(TermEnded):
    """The API server holds a higher controller epoch: another controller has taken over."""


class EpochTooLow(TermEnded):
    """A broker has seen a higher controller epoch than ours: take over again, above ``floor``."""

    def __init__(self, floor: int) -> None:
        super().__init__(f"a broker has seen controller epoch {floor}")
        self.floor = floor


class SlicesBehind(TermEnded):
    """More was decided than the slices hold: take over again, and rebuild them from what brokers
    report then."""


class EpochsExhausted(Exception):
    """There is no higher controller epoch: nobody can take over any more."""

    reason = Reason.EPOCHS_EXHAUSTED
