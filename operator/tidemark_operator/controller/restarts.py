"""Which broker in a pod may be restarted now.

A changed pod is a restart, and the brokers of a cluster are changed at once. So each waits for its
turn: nobody else is on its way up, and every partition that it has a replica of is fully in sync,
by which each of them has another member of the ISR as far as it has more than one replica. The
broker itself moves its leaders away before it ends (controlled shutdown), and is in no ISR until it
has caught up: the next one's turn comes after that. A broker that is not live loses nothing by a
restart, and is how what does not start is mended.
"""

from collections.abc import Collection

from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import RowKey
from tidemark_operator.controller.pod_state import Hold


def hold(
    state: ControllerState, node_id: int, others: Collection[int], starting: Collection[int]
) -> Hold | None:
    """Why a broker may not be restarted now; None when it may. ``others``: the other brokers in
    pods; ``starting``: those of them whose pods are being replaced, or not ready."""
    if state.unreached:
        return Hold(unreached=True)
    if not state.is_live(node_id):
        return None
    away = (other for other in others if _is_away(state, other))
    found = Hold(
        starting=tuple(sorted(starting)),
        away=tuple(sorted(away)),
        behind=tuple(sorted(key for key in state.keys_on(node_id) if _is_behind(state, key))),
    )
    return None if found == Hold() else found


def _is_away(state: ControllerState, node_id: int) -> bool:
    """One that has never been there has nothing that could be missed."""
    broker = state.brokers.get(node_id)
    return broker is not None and broker.registered and not broker.live


def _is_behind(state: ControllerState, key: RowKey) -> bool:
    """What is being deleted need not be waited for."""
    row, topic = state.row(key), state.topic_by_id(key[0])
    if row is None or (topic is not None and topic.deletion_ms is not None):
        return False
    return row.recovering or not set(row.hosts) <= set(state.in_sync(row))
