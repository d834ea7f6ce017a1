"""The numbers that fence controllers: how far they reach, and whose word raises them.

A controller epoch is 32 bits wide and never goes back, so whoever could name a number to be raised
above could use them all up with one message. A broker's word counts if it has proven to be a broker
of this cluster and is one of its Brokers, and only so far: a Cluster that was restored from a
backup is behind by the take-overs since then, which are never many.
"""

from tidemark.wire.control import BrokerRegistrationRequest
from tidemark_operator.controller.controller_state import ControllerState

EPOCH_MAX = 2**31 - 1
#: A broker that is further ahead has another history.
AHEAD_MAX = 1_000_000
#: A broker epoch has that of the controller which gave it above so many bits of its own.
BROKER_EPOCH_BITS = 24
#: Fewer than these left: the Cluster says so, years before it cannot be taken over any more.
RUNNING_OUT = 2**24


def is_ahead(state: ControllerState, request: BrokerRegistrationRequest) -> bool:
    """Has this broker of ours obeyed a later controller than us?"""
    return (
        request.cluster_id == state.cluster.cluster_id
        and request.broker_id in state.brokers
        and request.highest_controller_epoch > state.controller_epoch
        and too_far_ahead(state, request) is None
    )


def too_far_ahead(state: ControllerState, request: BrokerRegistrationRequest) -> str | None:
    """Why a broker's numbers are not believed: neither the epoch that it has obeyed, nor that of
    the controller which must have given it its own."""
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
    """Whether a broker, which this controller has not admitted yet, was told of more than the
    take-over found: then that was older (it was restored from a backup)."""
    return (request.highest_controller_epoch, request.highest_commit) > state.found


def left(epoch: int) -> int:
    """How many take-overs there can still be."""
    return EPOCH_MAX - epoch
