"""Epochs that fence controllers: their range, and which broker may raise them.

A controller epoch has 32 bits and never decreases, so a sender that could name any number could use
up the whole range with one message. A broker's number counts only if it has proven to be a Broker
of this cluster, and only up to a limit. A Cluster that was restored from a backup is behind by the
takeovers since then, which are never many.
"""

from tidemark.wire.control import BrokerRegistrationRequest
from tidemark_operator.controller.state.controller_state import ControllerState

EPOCH_MAX = 2**31 - 1
#: Epochs by which a broker may be ahead; beyond that its log directory has another history.
AHEAD_MAX = 1_000_000
#: Bits of a broker epoch below the epoch of the controller that assigned it.
BROKER_EPOCH_BITS = 24
#: Epochs left when the Cluster starts to warn, years before takeovers become impossible.
RUNNING_OUT = 2**24


def is_ahead(state: ControllerState, request: BrokerRegistrationRequest) -> bool:
    """Return whether a Broker of this cluster has obeyed a later controller than this one."""
    return (
        # Another cluster's broker, or one without a Broker object, raises nothing.
        request.cluster_id == state.cluster.cluster_id
        and request.broker_id in state.brokers
        and request.highest_controller_epoch > state.controller_epoch
        and too_far_ahead(state, request) is None
    )


def too_far_ahead(state: ControllerState, request: BrokerRegistrationRequest) -> str | None:
    """Return why a broker's registration with a very high epoch is refused, None if it is not.

    Compared are the highest controller epoch that the broker has obeyed, and the one in its broker
    epoch. Accepting a much higher one would exhaust the range of epochs.
    """
    # Both epochs are compared: a new broker has only the first, an old log directory also the
    # second.
    seen = max(request.highest_controller_epoch, request.previous_broker_epoch >> BROKER_EPOCH_BITS)
    if seen - state.controller_epoch <= AHEAD_MAX:
        return None
    return (
        f"it has seen controller epoch {seen}, but this Cluster is at "
        f"{state.controller_epoch}. Its log directory belongs to another "
        "history of the cluster. Use an empty directory (data that exists only "
        "there is lost)"
    )


def knows_more(state: ControllerState, request: BrokerRegistrationRequest) -> bool:
    """Return whether a broker that is not admitted yet knows of more than the takeover found.

    Then the takeover read older objects, restored from a backup.
    """
    return (request.highest_controller_epoch, request.highest_commit) > state.found


def left(epoch: int) -> int:
    """Return the number of takeovers that are still possible."""
    return EPOCH_MAX - epoch
