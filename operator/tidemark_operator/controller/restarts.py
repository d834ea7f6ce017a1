"""Order of restarts of brokers in pods.

A changed pod is a restart, and a new version changes all pods at once. Each broker waits until no
other is starting and every partition that it hosts is fully in sync, so that each has another ISR
member if it has more than one replica. The broker itself moves its leaders away before it ends
(controlled shutdown), and is in no ISR until it has caught up, so the next restart comes after
that. A broker that is not live loses nothing by a restart, and a restart is how a broken one is
fixed.
"""

from collections.abc import Collection

from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import Hold, RowKey


def hold(
    state: ControllerState, node_id: int, others: Collection[int], starting: Collection[int]
) -> Hold | None:
    """Return why a broker's pod may not be restarted now, None if it may.

    ``others``: node ids of the other brokers in pods. ``starting``: those whose pods are being
    replaced or are not ready.
    """
    if state.unreached:
        return Hold(unreached=True)
    # A broker that is down has nothing to lose.
    if not state.is_live(node_id):
        return None
    # A broker that is down, for whatever reason, may be the only other copy of a partition.
    away = (other for other in others if _is_down(state, other))
    found = Hold(
        starting=tuple(sorted(starting)),
        away=tuple(sorted(away)),
        # Partitions that would lose their leader or go below min.insync.replicas.
        behind=tuple(
            sorted(key for key in state.partitions.keys_on(node_id) if _is_behind(state, key))
        ),
    )
    return None if found == Hold() else found


def _is_down(state: ControllerState, node_id: int) -> bool:
    """Return whether a registered broker is down; one that never registered has no replicas."""
    broker = state.brokers.get(node_id)
    # Readers have none either.
    return broker is not None and broker.registered and not broker.live and not broker.is_reader


def _is_behind(state: ControllerState, key: RowKey) -> bool:
    """Return whether a partition is not fully in sync, unless it is being deleted."""
    row, topic = state.row(key), state.topics.by_id(key[0])
    if row is None or (topic is not None and topic.deletion_ms is not None):
        return False
    return row.recovering or not set(row.hosts) <= set(state.in_sync(row))
