"""KIP-950's state machine: Enabled -> Disabling -> Disabled, and never backwards (invariant 7).

What follows what is :mod:`tidemark.tiering`'s; here it is driven. A Disabling is persisted before
the first ``DisableRemoteTopic`` goes out. Disabled needs, for every partition, an acknowledgement
of each present replica under its broker's present epoch, the leader's under the present leader
epoch. The only exits of Disabling are acknowledgements, removal of a Broker (its replicas leave the
set) and deletion of the Topic.

Acknowledgements live in memory: after a take-over every request is sent again, and brokers answer
again (KIP-950's failure modes).
"""

import dataclasses
import uuid
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_operator.controller.broker_calls import Disablement, DisablementAnswer
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.events import Event, normal
from tidemark_operator.controller.model import (
    NO_LEADER,
    ClusterInfo,
    PartitionRow,
    TieringSpec,
    TieringStatus,
    TopicInfo,
)

#: A disablement without any progress for this long is reported as stalled.
STALL_MS = 10 * 60 * 1000


def step_by_spec(
    status: TieringStatus, spec: TieringSpec, cluster: ClusterInfo, *, now_ms: int
) -> TieringStatus:
    """The state that the spec asks for next; the same object when there is nothing to do."""
    tiering = status.tiering.successor(
        enabled=spec.enabled, policy=spec.policy, default_policy=cluster.disable_policy
    )
    if tiering == status.tiering:
        return status
    return TieringStatus(tiering=tiering, since_ms=now_ms)


# ---------------------------------------------------------------- acknowledgements


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """One replica's part done, under these epochs."""

    broker_epoch: int
    tiered_epoch: int
    leader_epoch: int
    is_leader: bool

    def is_older_than(self, other: "Ack | None") -> bool:
        """It was overtaken: the same process has acknowledged under a later leader epoch."""
        if other is None:
            return False
        same = (self.broker_epoch, self.tiered_epoch) == (other.broker_epoch, other.tiered_epoch)
        return same and self.leader_epoch < other.leader_epoch


class DisablementProgress:
    """What brokers have acknowledged of every disablement under way, and when that last moved. Each
    disablement has a clock of its own, by tiered epoch, that begins with ``status.tiering.since``:
    so a new controller does not set it back, nor does what is acknowledged to it once more."""

    def __init__(self) -> None:
        self._acks: dict[uuid.UUID, dict[tuple[int, int], Ack]] = {}
        self._moved_ms: dict[uuid.UUID, tuple[int, int]] = {}
        self._remaining: dict[uuid.UUID, tuple[int, int]] = {}
        self.errors: dict[uuid.UUID, str] = {}

    def take(
        self,
        state: ControllerState,
        topic_id: uuid.UUID,
        node_id: int,
        answer: DisablementAnswer,
        *,
        now_ms: int,
    ) -> bool:
        """Record a broker's answer; whether anything new was acknowledged. An answer under another
        tiered epoch than the topic's, or of a former registration, counts for nothing."""
        topic, broker = state.topic_by_id(topic_id), state.brokers.get(node_id)
        if topic is None or broker is None:
            return False
        current = answer.tiered_epoch == topic.tiering.epoch
        if not current or answer.broker_epoch != broker.broker_epoch:
            return False
        acks = self._acks.setdefault(topic_id, {})
        before = dict(acks)
        for replica in answer.replicas:
            if replica.error_code == ErrorCode.none.value:
                ack = Ack(
                    broker_epoch=answer.broker_epoch,
                    tiered_epoch=answer.tiered_epoch,
                    leader_epoch=replica.leader_epoch,
                    is_leader=replica.is_leader,
                )
                key = replica.partition, node_id
                if not ack.is_older_than(acks.get(key)):
                    acks[key] = ack
        self._note_error(topic_id, node_id, answer)
        if acks != before and _is_awaited(topic, node_id):
            self._moved_ms[topic_id] = topic.tiering.epoch, now_ms
        return acks != before

    def _note_error(self, topic_id: uuid.UUID, node_id: int, answer: DisablementAnswer) -> None:
        waiting = (ErrorCode.none.value, ErrorCode.request_timed_out.value)
        failed = [part for part in answer.replicas if part.error_code not in waiting]
        if failed and failed[0].message:
            text = f"broker {node_id}, partition {failed[0].partition}: {failed[0].message}"
            self.errors[topic_id] = text
        else:
            self.errors.pop(topic_id, None)

    def note_remaining(self, topic: TopicInfo, remaining_segments: int, *, now_ms: int) -> None:
        """What is left in the tier, by the leaders' reports: falling counts as progress."""
        epoch = topic.tiering.epoch
        known_epoch, former = self._remaining.get(topic.id, (-1, 0))
        if known_epoch == epoch and remaining_segments < former:
            self._moved_ms[topic.id] = epoch, now_ms
        self._remaining[topic.id] = epoch, remaining_segments

    def forget(self, topic_id: uuid.UUID) -> None:
        """The disablement is over, or its topic is."""
        for table in (self._acks, self._moved_ms, self._remaining, self.errors):
            table.pop(topic_id, None)

    def forget_gone(self, state: ControllerState) -> None:
        """What is kept of topics that have no Topic any more."""
        known = {*self._acks, *self._moved_ms, *self._remaining, *self.errors}
        for topic_id in known:
            if state.topic_by_id(topic_id) is None:
                self.forget(topic_id)

    def ack(self, topic_id: uuid.UUID, partition: int, node_id: int) -> Ack | None:
        return self._acks.get(topic_id, {}).get((partition, node_id))

    def stalled(self, topic_id: uuid.UUID, status: TieringStatus, *, now_ms: int) -> bool:
        """Whether nothing of the present disablement moved for :data:`STALL_MS`."""
        epoch, moved_ms = self._moved_ms.get(topic_id, (-1, 0))
        since_ms = status.since_ms
        if epoch == status.tiering.epoch:
            since_ms = max(since_ms, moved_ms)
        return now_ms - since_ms >= STALL_MS


def _is_awaited(topic: TopicInfo, node_id: int) -> bool:
    """Whether a broker's acknowledgement is news by what the status says: it may have been given
    to an earlier controller."""
    waiting = topic.tiering_status.pending_brokers
    return not waiting or node_id in waiting


def pending(
    state: ControllerState, topic: TopicInfo, disablements: DisablementProgress
) -> dict[int, tuple[int, ...]]:
    """Partitions that each broker still has to acknowledge, by node id; empty: all have."""
    waiting: dict[int, list[int]] = {}
    for row in state.rows_of(topic.id).values():
        for node_id in _missing(state, topic, row, disablements):
            waiting.setdefault(node_id, []).append(row.partition)
    return {node_id: tuple(sorted(waiting[node_id])) for node_id in sorted(waiting)}


def _missing(
    state: ControllerState, topic: TopicInfo, row: PartitionRow, disablements: DisablementProgress
) -> Iterable[int]:
    """Brokers whose part of one partition is not done. Without a leader the leader's part is not
    done: those who may lead are waited for."""
    late = {host for host in row.hosts if not _done(state, topic, row, host, disablements)}
    if row.leader == NO_LEADER:
        late.update(row.isr or row.hosts)
    return late


def _done(
    state: ControllerState,
    topic: TopicInfo,
    row: PartitionRow,
    node_id: int,
    disablements: DisablementProgress,
) -> bool:
    ack, broker = disablements.ack(topic.id, row.partition, node_id), state.brokers.get(node_id)
    if ack is None or broker is None:
        return False
    if ack.broker_epoch != broker.broker_epoch or ack.tiered_epoch != topic.tiering.epoch:
        return False
    if node_id != row.leader:
        return True
    return ack.is_leader and ack.leader_epoch == row.leader_epoch


def requests(
    state: ControllerState, topic: TopicInfo, disablements: DisablementProgress
) -> dict[int, Disablement]:
    """What to send now, by node id, for a topic whose Disabling is persisted. Level-based: call
    again after each answer; skip brokers that have no command connection."""
    if not topic.tiering.is_disabling or topic.deletion_ms is not None:
        return {}
    return {
        node_id: Disablement(
            topic_id=topic.id,
            tiered_epoch=topic.tiering.epoch,
            policy=topic.tiering.disable_policy,
            partitions=partitions,
        )
        for node_id, partitions in pending(state, topic, disablements).items()
    }


def step(
    state: ControllerState, topic: TopicInfo, disablements: DisablementProgress, *, now_ms: int
) -> tuple[TieringStatus, Event | None]:
    """The next ``status.tiering`` of a topic, to be persisted, and what to tell about it."""
    old = topic.tiering_status
    if topic.paused or topic.deletion_ms is not None:
        return old, None
    if not old.tiering.is_disabling:
        new = step_by_spec(old, topic.tiering_spec, state.cluster, now_ms=now_ms)
        return new, _event_of(topic, new.tiering)
    waiting = tuple(pending(state, topic, disablements))
    complete = len(state.rows_of(topic.id)) >= state.partitions_of(topic)
    if waiting or not complete:
        return dataclasses.replace(old, pending_brokers=waiting), None
    new = TieringStatus(tiering=old.tiering.acknowledged, since_ms=now_ms)
    return new, _event_of(topic, new.tiering)


def _event_of(topic: TopicInfo, new: Tiering) -> Event | None:
    if new.state is topic.tiering.state:
        return None
    policy = policy_name(new.disable_policy)
    text, reason = {
        TieringState.ENABLED: (f"tiering is enabled (tiered epoch {new.epoch})", "TieringEnabled"),
        TieringState.DISABLING: (
            f"tiering is being disabled with policy {policy} (tiered epoch {new.epoch})",
            "TieringDisabling",
        ),
        TieringState.DISABLED: (f"tiering is disabled, policy {policy}", "TieringDisabled"),
    }[new.state]
    return normal("Topic", topic.key, reason, text)


def policy_name(policy: DisablePolicy) -> str:
    """``Retain`` or ``Delete`` as the resources spell it."""
    return policy.name.capitalize()


def state_name(state: TieringState) -> str:
    """``Enabled``, ``Disabling`` or ``Disabled``; ``None`` is in no resource, but in the
    metrics."""
    return state.name.capitalize()


def changed_while_disabling(topic: TopicInfo) -> bool:
    """A change that slipped past admission (tiering switched on again while Disabling): it is not
    acted on until Disabled, and the condition says so."""
    return topic.tiering.is_disabling and topic.tiering_spec.enabled
