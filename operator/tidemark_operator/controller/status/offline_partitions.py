"""Causes and remedies of partitions without a leader, or with one that cannot serve.

An elected leader that has not acknowledged its leadership does not count yet. Otherwise there are
three causes. Either no replica with all committed records is live (start one). Or all live ones
returned without proof that they lost nothing, and enough of them must report their log ends before
the longest leads (KIP-966). Or the storage of the only possible leader fails. An unclean election
ends the first two as well, and is offered only if another replica could lead. In the second case a
person may instead accept a copy (:mod:`accepted_losses`).
"""

from collections.abc import Iterable, Sequence

from tidemark.message_text import numbered
from tidemark.reasons import Reason
from tidemark_operator.controller import accepted_losses
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import PartitionRow, TopicInfo, unclean_election
from tidemark_operator.controller.status.conditions import ConditionValue, summary

_UNCLEAN = (
    "set unclean.leader.election.enable to true on the Topic, which may lose acknowledged records"
)


def no_leader(
    state: ControllerState, topic: TopicInfo, rows: Sequence[PartitionRow]
) -> list[ConditionValue]:
    """Return Ready, Reconciling and Stalled of a topic whose partitions ``rows`` have no leader.

    The message names the brokers to start and the other remedies.
    """
    # Replicas that may have lost the end of their log wait for reports, which has other remedies.
    waiting = [row for row in rows if row.last_known_elr]
    if waiting:
        return _election_waits(state, topic, waiting)
    holders = {replica for row in rows for replica in row.holders}
    remedies = [f"start {_brokers(_down(state, holders) or holders)} (the last with all records)"]
    if _down(state, holders) == holders:
        remedies.append("delete its Broker if it never returns")
    # An unclean election is only a remedy if a replica without all records exists.
    others = any(set(row.hosts).difference(row.holders) for row in rows)
    reasons = _join_remedies(state, topic, remedies) if others else ", or ".join(remedies)
    text = f"{_partitions(rows, 'has')} no leader: {reasons}"
    return summary(ready=False, reason=Reason.PARTITIONS_OFFLINE, message=text, reconciling=True)


def _election_waits(
    state: ControllerState, topic: TopicInfo, rows: Sequence[PartitionRow]
) -> list[ConditionValue]:
    """Return the conditions of partitions that wait for reports of log ends (KIP-966)."""
    unproven = {replica for row in rows for replica in row.last_known_elr}
    down = _down(state, {replica for row in rows for replica in row.holders})
    # A live replica either has not answered yet, or answered that its storage fails.
    refusing: set[int] = set()
    silent: set[int] = set()
    for row in rows:
        logs = state.logs_of(row)
        live = [replica for replica in row.last_known_elr if state.is_live(replica)]
        refusing.update(replica for replica in live if logs.get(replica, 0) is None)
        silent.update(replica for replica in live if replica not in logs)
    remedies = []
    if down:
        remedies.append(f"start {_brokers(down)}")
    if refusing:
        remedies.append(
            f"repair the log directory of {_brokers(refusing)} (see the condition "
            "Ready of its Broker)"
        )
    if silent:
        remedies.append(f"wait for the log reports of {_brokers(silent)}")
    text = (
        f"{_partitions(rows, 'has')} no leader. "
        f"{_brokers(unproven)} may have lost the latest records in a crash, and "
        "too few have reported their log ends to elect the longest. To resolve "
        f"this, {_join_remedies(state, topic, remedies)}"
    )
    text += accepted_losses.offer_text(state, topic, rows)
    return summary(ready=False, reason=Reason.ELECTION_PENDING, message=text, reconciling=True)


def storage_refuses(state: ControllerState, rows: Sequence[PartitionRow]) -> list[ConditionValue]:
    """Return the conditions of a topic whose leaders of ``rows`` have failed storage.

    No other live replica has all committed records, so none can take over.
    """
    leaders = _brokers(row.leader for row in rows)
    down = _down(state, {replica for row in rows for replica in row.holders})
    others = f" or start {_brokers(down)}" if down else ""
    text = (
        f"{_partitions(rows)}: storage of "
        f"{leaders} has failed, and no other live replica has all records. "
        f"Repair the log directory of {leaders} (see the condition Ready of its "
        f"Broker){others}"
    )
    return summary(ready=False, reason=Reason.STORAGE_FAILED, message=text, reconciling=True)


def leaders_starting(
    state: ControllerState, topic: TopicInfo, rows: Sequence[PartitionRow]
) -> list[ConditionValue]:
    """Return the conditions of a topic whose leaders of ``rows`` have not acknowledged yet.

    Producers cannot write to these partitions.
    """
    known = state.acknowledgements
    # Leaders without a snapshot of this term are named at once, others only when overdue.
    late = {row.leader for row in rows if not known.has_snapshot(state.brokers.get(row.leader))}
    if known.is_overdue(topic.id):
        late.update(row.leader for row in rows)
    text = f"waiting for the leaders of {_partitions(rows)} to acknowledge"
    if late:
        text = (
            f"{_partitions(rows)} cannot be written, because "
            f"{_brokers(late)} did not acknowledge leadership. Check that they "
            "run and can reach the operator, and look at their logs"
        )
    # If a broker has refused, its reason is more exact than a missing acknowledgement.
    refusals = (known.refusal(row, row.leader) for row in rows)
    refused = next((refusal for refusal in refusals if refusal is not None), None)
    if refused is not None:
        text += f". Partition {refused.partition} was refused: {refused.message}"
    return summary(ready=False, reason=Reason.LEADERS_STARTING, message=text, reconciling=True)


def _join_remedies(state: ControllerState, topic: TopicInfo, remedies: Sequence[str]) -> str:
    allowed = unclean_election(topic, state.cluster)
    return ", or ".join(remedies if allowed and remedies else [*remedies, _UNCLEAN])


def _down(state: ControllerState, node_ids: Iterable[int]) -> set[int]:
    return {node_id for node_id in node_ids if not state.is_live(node_id)}


def _brokers(node_ids: Iterable[int]) -> str:
    return numbered("broker", node_ids)


def _partitions(rows: Iterable[PartitionRow], verb: str = "") -> str:
    return numbered("partition", (row.partition for row in rows), verb)
