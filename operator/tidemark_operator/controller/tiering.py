"""KIP-950's state machine: Enabled -> Disabling -> Disabled, and never backwards (invariant 7).

A topic that never was tiered becomes Enabled under epoch 0. Disabling raises the tiered epoch by
one and freezes the policy; that is persisted before the first ``DisableRemoteTopic`` goes out.
Disabled needs, for every partition, an acknowledgement of each present replica under its broker's
present epoch, the leader's under the present leader epoch. The only exits of Disabling are
acknowledgements, removal of a Broker (its replicas leave the set) and deletion of the Topic.
Disabled -> Enabled keeps the epoch and offers no policy. Disabled with Retain -> Disabling with
Delete (epoch + 1) is an addition to KIP-950.

Acknowledgements live in memory: after a take-over every request is sent again, and brokers answer
again (KIP-950's failure modes).
"""

import dataclasses
import uuid
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from tidemark.wire.control import DisablePolicy, TieringState
from tidemark_operator.controller.broker_calls import Disablement, DisablementAnswer
from tidemark_operator.controller.events import Event, normal
from tidemark_operator.controller.model import (
    NO_LEADER,
    ClusterView,
    PartitionRow,
    TieringSpec,
    TieringStatus,
    TopicView,
)
from tidemark_operator.controller.state import ControllerState

#: A disablement without any progress for this long is reported as stalled.
STALL_MS = 10 * 60 * 1000


def step_by_spec(
    status: TieringStatus | None, spec: TieringSpec, cluster: ClusterView, *, now_ms: int
) -> TieringStatus | None:
    """The state that the spec asks for next; the same object when there is nothing to do.
    While Disabling the spec has no say."""
    if status is None:
        if not spec.enabled:
            return None
        return TieringStatus(state=TieringState.ENABLED, epoch=0, policy=None, since_ms=now_ms)
    policy = cluster.disable_policy if spec.policy is None else spec.policy
    if status.state is TieringState.ENABLED and not spec.enabled:
        return _disabling(status, policy, now_ms)
    if status.state is TieringState.DISABLED and spec.enabled:
        return dataclasses.replace(
            status, state=TieringState.ENABLED, since_ms=now_ms, pending_brokers=()
        )
    if status.state is TieringState.DISABLED and _deletes_after_all(status, spec):
        return _disabling(status, DisablePolicy.DELETE, now_ms)
    return status


def _deletes_after_all(status: TieringStatus, spec: TieringSpec) -> bool:
    """Retained data is given up only where the Topic itself says Delete: a changed default of the
    Cluster must not delete what a finished disablement kept."""
    return status.policy is DisablePolicy.RETAIN and spec.policy is DisablePolicy.DELETE


def _disabling(status: TieringStatus, policy: DisablePolicy, now_ms: int) -> TieringStatus:
    return TieringStatus(
        state=TieringState.DISABLING, epoch=status.epoch + 1, policy=policy, since_ms=now_ms
    )


# ---------------------------------------------------------------- acknowledgements


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """One replica's part done, under these epochs."""

    broker_epoch: int
    tiered_epoch: int
    leader_epoch: int
    is_leader: bool


class Disablements:
    """What brokers have acknowledged of every disablement under way, and when that last moved."""

    def __init__(self) -> None:
        self._acks: dict[uuid.UUID, dict[tuple[int, int], Ack]] = {}
        self._moved_ms: dict[uuid.UUID, int] = {}
        self._remaining: dict[uuid.UUID, int] = {}
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
        if topic is None or topic.tiering_status is None or broker is None:
            return False
        current = answer.tiered_epoch == topic.tiering_status.epoch
        if not current or answer.broker_epoch != broker.broker_epoch:
            return False
        acks = self._acks.setdefault(topic_id, {})
        before = dict(acks)
        for replica in answer.replicas:
            if replica.error_code == ErrorCode.none.value:
                acks[replica.partition, node_id] = Ack(
                    broker_epoch=answer.broker_epoch,
                    tiered_epoch=answer.tiered_epoch,
                    leader_epoch=replica.leader_epoch,
                    is_leader=replica.is_leader,
                )
        self._note_error(topic_id, node_id, answer)
        if acks != before:
            self._moved_ms[topic_id] = now_ms
        return acks != before

    def _note_error(self, topic_id: uuid.UUID, node_id: int, answer: DisablementAnswer) -> None:
        waiting = (ErrorCode.none.value, ErrorCode.request_timed_out.value)
        failed = [part for part in answer.replicas if part.error_code not in waiting]
        if failed and failed[0].message:
            text = f"broker {node_id}, partition {failed[0].partition}: {failed[0].message}"
            self.errors[topic_id] = text
        else:
            self.errors.pop(topic_id, None)

    def note_remaining(self, topic_id: uuid.UUID, remaining_segments: int, *, now_ms: int) -> None:
        """What is left in the tier, by the leaders' reports: falling counts as progress."""
        if self._remaining.get(topic_id) != remaining_segments:
            self._remaining[topic_id] = remaining_segments
            self._moved_ms[topic_id] = now_ms

    def forget(self, topic_id: uuid.UUID) -> None:
        """The disablement is over, or its topic is."""
        for table in (self._acks, self._moved_ms, self._remaining, self.errors):
            table.pop(topic_id, None)

    def ack(self, topic_id: uuid.UUID, partition: int, node_id: int) -> Ack | None:
        return self._acks.get(topic_id, {}).get((partition, node_id))

    def stalled(self, topic_id: uuid.UUID, *, now_ms: int) -> bool:
        """Whether nothing moved for :data:`STALL_MS`; looked at from now on when first asked."""
        return now_ms - self._moved_ms.setdefault(topic_id, now_ms) >= STALL_MS


def pending(
    state: ControllerState, topic: TopicView, disablements: Disablements
) -> dict[int, tuple[int, ...]]:
    """Partitions that each broker still has to acknowledge, by node id; empty: all have."""
    waiting: dict[int, list[int]] = {}
    for row in state.rows_of(topic.id).values():
        for node_id in _missing(state, topic, row, disablements):
            waiting.setdefault(node_id, []).append(row.partition)
    return {node_id: tuple(sorted(waiting[node_id])) for node_id in sorted(waiting)}


def _missing(
    state: ControllerState, topic: TopicView, row: PartitionRow, disablements: Disablements
) -> Iterable[int]:
    """Brokers whose part of one partition is not done. Without a leader the leader's part is not
    done: those who may lead are waited for."""
    late = {host for host in row.hosts if not _done(state, topic, row, host, disablements)}
    if row.leader == NO_LEADER:
        late.update(row.isr or row.hosts)
    return late


def _done(
    state: ControllerState,
    topic: TopicView,
    row: PartitionRow,
    node_id: int,
    disablements: Disablements,
) -> bool:
    ack, broker = disablements.ack(topic.id, row.partition, node_id), state.brokers.get(node_id)
    if ack is None or broker is None or topic.tiering_status is None:
        return False
    if ack.broker_epoch != broker.broker_epoch or ack.tiered_epoch != topic.tiering_status.epoch:
        return False
    if node_id != row.leader:
        return True
    return ack.is_leader and ack.leader_epoch == row.leader_epoch


def requests(
    state: ControllerState, topic: TopicView, disablements: Disablements
) -> dict[int, Disablement]:
    """What to send now, by node id, for a topic whose Disabling is persisted. Level-based: call
    again after each answer; skip brokers that have no command connection."""
    status = topic.tiering_status
    if (
        status is None
        or status.state is not TieringState.DISABLING
        or topic.deletion_ms is not None
    ):
        return {}
    policy = DisablePolicy.RETAIN if status.policy is None else status.policy
    return {
        node_id: Disablement(
            topic_id=topic.id,
            tiered_epoch=status.epoch,
            policy=policy,
            partitions=partitions,
        )
        for node_id, partitions in pending(state, topic, disablements).items()
    }


def step(
    state: ControllerState, topic: TopicView, disablements: Disablements, *, now_ms: int
) -> tuple[TieringStatus | None, Event | None]:
    """The next ``status.tiering`` of a topic, to be persisted, and what to tell about it."""
    old = topic.tiering_status
    if topic.paused or topic.deletion_ms is not None:
        return old, None
    if old is None or old.state is not TieringState.DISABLING:
        new = step_by_spec(old, topic.tiering, state.cluster, now_ms=now_ms)
        return new, _told(topic, old, new)
    waiting = tuple(pending(state, topic, disablements))
    complete = len(state.rows_of(topic.id)) >= topic.partitions_placed
    if waiting or not complete:
        return dataclasses.replace(old, pending_brokers=waiting), None
    new = dataclasses.replace(old, state=TieringState.DISABLED, since_ms=now_ms, pending_brokers=())
    return new, _told(topic, old, new)


def _told(topic: TopicView, old: TieringStatus | None, new: TieringStatus | None) -> Event | None:
    if new is None or (old is not None and old.state is new.state):
        return None
    policy = policy_name(new.policy)
    text, reason = {
        TieringState.ENABLED: (f"tiering is on (tiered epoch {new.epoch})", "TieringEnabled"),
        TieringState.DISABLING: (
            f"turning tiering off with policy {policy} (tiered epoch {new.epoch})",
            "TieringDisabling",
        ),
        TieringState.DISABLED: (f"tiering is off, policy {policy}", "TieringDisabled"),
    }[new.state]
    return normal("Topic", topic.key, reason, text)


def policy_name(policy: DisablePolicy | None) -> str:
    """``Retain`` or ``Delete`` as the resources spell it."""
    return "Delete" if policy is DisablePolicy.DELETE else "Retain"


def state_name(state: TieringState) -> str:
    """``Enabled``, ``Disabling`` or ``Disabled``."""
    return state.name.capitalize()


def changed_while_disabling(topic: TopicView) -> bool:
    """A change that slipped past admission (tiering switched on again while Disabling): it is not
    acted on until Disabled, and the condition says so."""
    status = topic.tiering_status
    return status is not None and status.state is TieringState.DISABLING and topic.tiering.enabled
