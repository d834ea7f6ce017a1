"""Progress of a Broker that is drained or deleted: its condition Draining, and the figures."""

from collections.abc import Iterable, Sequence

from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark_operator.controller import accepted_losses, draining, registration
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import NO_LEADER, BrokerInfo, RowKey
from tidemark_operator.controller.status.conditions import ConditionValue, condition

#: Partitions that a condition names; the rest are counted.
NAMED_MAX = 3


def drain_status(
    state: ControllerState, broker: BrokerInfo
) -> tuple[ConditionValue, dict[str, object]] | None:
    """Return the condition and the figures; None for a broker that stays."""
    # A Reader has nothing to drain.
    if not (broker.deleting or broker.drain):
        return None
    found = draining.progress(Draft(state), broker.node_id)
    figures: dict[str, object] = {
        "remaining": found.remaining,
        "moving": found.moving,
        "stuck": sum(map(len, found.stuck.values())),
    }
    return _condition(state, broker, found), figures


def _condition(
    state: ControllerState, broker: BrokerInfo, found: draining.DrainProgress
) -> ConditionValue:
    """Return the condition Draining of a Broker that is drained or deleted.

    ``found``: progress of the drain.
    """
    # In this order: complete, blocked, in progress, stuck.
    if not found.remaining:
        text = f"broker {broker.node_id} has no replicas. It can be stopped and deleted"
        return condition("Draining", False, Reason.DRAINED, text)
    blockers = registration.removal_blockers(Draft(state), broker.node_id)
    if broker.deleting and blockers and not found.goes_on:
        text = _in_use(state, broker, blockers) + accepted_losses.give_up_text(broker)
        return condition("Draining", True, Reason.REPLICAS_IN_USE, text)
    if found.goes_on:
        text = (
            f"{count(found.remaining, 'replica')} left: {found.moving} moving, "
            f"{found.waiting} waiting for the limit tidemark.catch.up.replicas"
        )
        return condition("Draining", True, Reason.MOVING_REPLICAS, f"{text}{_stuck(state, found)}")
    text = f"{count(found.remaining, 'replica')} left{_stuck(state, found)}"
    if draining.Obstacle.REBUILDING in found.stuck:
        text += accepted_losses.give_up_text(broker) if broker.deleting else ""
    elif broker.deleting:
        text += ". Alternatively, stop the broker: its replicas then become placeholders"
    return condition("Draining", True, Reason.REPLICAS_CANNOT_MOVE, text)


def _stuck(state: ControllerState, found: draining.DrainProgress) -> str:
    """Return each obstacle with its partitions."""
    return "".join(
        f"; {named(state, keys)} cannot move: {obstacle.value}"
        for obstacle, keys in sorted(found.stuck.items(), key=lambda item: item[0].name)
    )


def _in_use(state: ControllerState, broker: BrokerInfo, blockers: Sequence[RowKey]) -> str:
    """Return why a Broker cannot be removed yet, with all remedies.

    ``blockers``: partitions that would lose too many copies.
    """
    draft = Draft(state)
    rows = [row for key in blockers if (row := state.row(key)) is not None]
    led = [row for row in rows if row.leader != NO_LEADER]
    # Offer only remedies that apply: nothing catches up if all hosts are in sync already.
    behind = any(set(row.hosts).difference(row.isr, row.elr, (broker.node_id,)) for row in rows)
    topics = (
        ""
        if len(led) == len(rows)
        else " (for partitions without a leader, see the condition Ready of the Topic)"
    )
    remedies = [
        *(["start the other replicas and let them catch up"] if behind else []),
        *(["start another broker that can take them"] if led else []),
        f"delete the topics{topics}",
    ]
    alone = [
        row.key
        for row in rows
        if not registration.has_live_copy(draft, row.key, without=broker.node_id)
    ]
    risk = "have fewer complete copies than min.insync.replicas"
    # Partitions with a single live copy are the urgent ones, so only those are named.
    if alone:
        blockers, risk = alone, "lose the last live copy"
    serves = (
        ". Until then the broker keeps serving, and receives no new replicas" if broker.live else ""
    )
    return (
        f"{named(state, blockers)} would {risk}. To remove the broker, "
        f"{', or '.join(remedies)}{serves}"
    )


def named(state: ControllerState, keys: Iterable[RowKey]) -> str:
    """Return the names of partitions; the first few, then a count."""
    known = list(keys)
    texts = []
    for topic_id, partition in known[:NAMED_MAX]:
        topic = state.topics.by_id(topic_id)
        texts.append(f"{'(no Topic)' if topic is None else topic.name}-{partition}")
    more = f" and {len(known) - NAMED_MAX} more" if len(known) > NAMED_MAX else ""
    return f"{count(len(known), 'partition')} ({', '.join(texts)}{more})"
