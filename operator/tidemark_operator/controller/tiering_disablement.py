"""KIP-950's state machine: Enabled -> Disabling -> Disabled, where Disabling has no way back.

That is invariant 7. :mod:`tidemark.tiering` defines the transitions; this module drives them.
Disabling is persisted before the first ``DisableRemoteTopic`` is sent. Disabled needs, for every
partition, an acknowledgement of each present replica under its broker's present epoch, the
leader's under the present leader epoch. The only exits of Disabling are acknowledgements, removal
of a Broker (its replicas leave the set) and deletion of the Topic.

Acknowledgements are in memory: after a takeover every request is sent again, and brokers answer
again (KIP-950's failure modes).
"""

import dataclasses
import uuid
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire.control import DisableRemoteTopicRequest, DisableRemoteTopicResponse
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event, normal
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    ClusterInfo,
    PartitionRow,
    PersistedTiering,
    TieringSpec,
    TopicInfo,
)

#: Time without progress after which a disablement is reported as stalled.
STALL_MS = 10 * 60 * 1000
#: Time until a broker answers that it is still working; the request is then repeated.
REQUEST_TIMEOUT_MS = 30_000


def step_by_spec(
    status: PersistedTiering, spec: TieringSpec, cluster: ClusterInfo, *, now_ms: int
) -> PersistedTiering:
    """Return the state that the spec requires next; the same object if there is nothing to do."""
    tiering = status.tiering.successor(
        enabled=spec.enabled, policy=spec.policy, default_policy=cluster.disable_policy
    )
    if tiering == status.tiering:
        return status
    return PersistedTiering(tiering=tiering, since_ms=now_ms)


# ---------------------------------------------------------------- acknowledgements


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Acknowledgement of one replica, under these epochs."""

    broker_epoch: int
    tiered_epoch: int
    leader_epoch: int
    is_leader: bool

    def is_older_than(self, other: "Ack | None") -> bool:
        """Return whether the same process has acknowledged under a later leader epoch."""
        if other is None:
            return False
        same = (self.broker_epoch, self.tiered_epoch) == (other.broker_epoch, other.tiered_epoch)
        return same and self.leader_epoch < other.leader_epoch


class DisablementProgress:
    """Acknowledgements of all disablements in progress, with the time of the last one.

    The clock of each disablement, by tiered epoch, starts with ``status.tiering.since``. A new
    controller does not reset it, and neither do acknowledgements that are repeated to it.
    """

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
        answer: DisableRemoteTopicResponse,
        *,
        now_ms: int,
    ) -> bool:
        """Record a broker's response to a disablement request; return whether it acknowledged more.

        Ignored is a response for another tiering epoch than the topic's, or of a former
        registration of the broker.
        """
        topic, broker = state.topics.by_id(topic_id), state.brokers.get(node_id)
        if topic is None or broker is None:
            return False
        current = answer.tiered_epoch == topic.tiering.epoch
        if not current or answer.broker_epoch != broker.broker_epoch:
            return False
        acks = self._acks.setdefault(topic_id, {})
        before = dict(acks)
        # Answers may be delivered out of order, so an older leader epoch never replaces a later
        # one.
        for replica in answer.results:
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
        # A repeated acknowledgement after a takeover is not progress.
        if acks != before and _is_awaited(topic, node_id):
            self._moved_ms[topic_id] = topic.tiering.epoch, now_ms
        return acks != before

    def _note_error(
        self, topic_id: uuid.UUID, node_id: int, answer: DisableRemoteTopicResponse
    ) -> None:
        waiting = (ErrorCode.none.value, ErrorCode.request_timed_out.value)
        failed = [part for part in answer.results if part.error_code not in waiting]
        if failed and failed[0].message:
            text = f"broker {node_id}, partition {failed[0].partition}: {failed[0].message}"
            self.errors[topic_id] = text
        else:
            self.errors.pop(topic_id, None)

    def note_remaining(self, topic: TopicInfo, remaining_segments: int, *, now_ms: int) -> None:
        """Take the number of segments left in the tier by the leaders' reports.

        A decrease is progress.
        """
        epoch = topic.tiering.epoch
        known_epoch, former = self._remaining.get(topic.id, (-1, 0))
        if known_epoch == epoch and remaining_segments < former:
            self._moved_ms[topic.id] = epoch, now_ms
        self._remaining[topic.id] = epoch, remaining_segments

    def forget(self, topic_id: uuid.UUID) -> None:
        """Forget a disablement that is done, or whose topic is deleted."""
        for table in (self._acks, self._moved_ms, self._remaining, self.errors):
            table.pop(topic_id, None)

    def forget_gone(self, state: ControllerState) -> None:
        """Forget topics that have no Topic any more."""
        known = {*self._acks, *self._moved_ms, *self._remaining, *self.errors}
        for topic_id in known:
            if state.topics.by_id(topic_id) is None:
                self.forget(topic_id)

    def ack(self, topic_id: uuid.UUID, partition: int, node_id: int) -> Ack | None:
        return self._acks.get(topic_id, {}).get((partition, node_id))

    def stalled(self, topic_id: uuid.UUID, status: PersistedTiering, *, now_ms: int) -> bool:
        """Return whether the present disablement had no progress for :data:`STALL_MS`."""
        epoch, moved_ms = self._moved_ms.get(topic_id, (-1, 0))
        since_ms = status.since_ms
        if epoch == status.tiering.epoch:
            since_ms = max(since_ms, moved_ms)
        return now_ms - since_ms >= STALL_MS


def _is_awaited(topic: TopicInfo, node_id: int) -> bool:
    """Return whether the status still waits for a broker's acknowledgement.

    An earlier controller may have received it already.
    """
    waiting = topic.tiering_status.pending_brokers
    return not waiting or node_id in waiting


def pending(
    state: ControllerState, topic: TopicInfo, disablements: DisablementProgress
) -> dict[int, tuple[int, ...]]:
    """Return the partitions that each broker still has to acknowledge, by node id."""
    waiting: dict[int, list[int]] = {}
    for row in state.rows_of(topic.id).values():
        for node_id in _missing(state, topic, row, disablements):
            waiting.setdefault(node_id, []).append(row.partition)
    return {node_id: tuple(sorted(waiting[node_id])) for node_id in sorted(waiting)}


def _missing(
    state: ControllerState, topic: TopicInfo, row: PartitionRow, disablements: DisablementProgress
) -> Iterable[int]:
    """Return the brokers that have not acknowledged one partition.

    Without a leader, the brokers that may lead count as well: the leader's part is not done.
    """
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
    """Return whether a replica's broker has acknowledged the disablement of this partition.

    The acknowledgement must be for the present tiering epoch and broker registration.
    """
    ack, broker = disablements.ack(topic.id, row.partition, node_id), state.brokers.get(node_id)
    if ack is None or broker is None:
        return False
    if ack.broker_epoch != broker.broker_epoch or ack.tiered_epoch != topic.tiering.epoch:
        return False
    # A follower's acknowledgement is independent of the leader epoch. The leader also stops
    # uploads, which it does in one leader epoch only.
    if node_id != row.leader:
        return True
    return ack.is_leader and ack.leader_epoch == row.leader_epoch


def requests(
    state: ControllerState, topic: TopicInfo, disablements: DisablementProgress
) -> dict[int, DisableRemoteTopicRequest]:
    """Return the disablement requests (KIP-950) to send now, by node id.

    Only for a topic whose state Disabling is persisted. Stateless: call it again after each
    response, and skip brokers without a command connection.
    """
    if not topic.tiering.is_disabling or topic.deletion_ms is not None:
        return {}
    # One request per broker, with the partitions that it has not acknowledged yet.
    return {
        node_id: DisableRemoteTopicRequest(
            controller_epoch=state.controller_epoch,
            topic_id=topic.id,
            tiered_epoch=topic.tiering.epoch,
            disable_policy=int(topic.tiering.disable_policy),
            partitions=partitions,
            timeout_ms=REQUEST_TIMEOUT_MS,
        )
        for node_id, partitions in pending(state, topic, disablements).items()
    }


def step(
    state: ControllerState, topic: TopicInfo, disablements: DisablementProgress, *, now_ms: int
) -> tuple[PersistedTiering, Event | None]:
    """Return a topic's next ``status.tiering``, to be persisted, and the Event of a change.

    Disabling ends when the brokers of all replicas have acknowledged.
    """
    old = topic.tiering_status
    if topic.paused or topic.deletion_ms is not None:
        return old, None
    # No disablement in progress: the spec decides.
    if not old.tiering.is_disabling:
        new = step_by_spec(old, topic.tiering_spec, state.cluster, now_ms=now_ms)
        return new, _event_of(topic, new.tiering)
    # During a disablement the spec is ignored until all replicas have acknowledged (KIP-950).
    waiting = tuple(pending(state, topic, disablements))
    # A missing row has replicas that were not even sent the request.
    complete = len(state.rows_of(topic.id)) >= state.partitions_of(topic)
    if waiting or not complete:
        return dataclasses.replace(old, pending_brokers=waiting), None
    new = PersistedTiering(tiering=old.tiering.acknowledged, since_ms=now_ms)
    return new, _event_of(topic, new.tiering)


def _event_of(topic: TopicInfo, new: Tiering) -> Event | None:
    """Return the Event for a change of a topic's tiering state, None if it is unchanged."""
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
    """Return ``Retain`` or ``Delete`` as in the resources."""
    return policy.name.capitalize()


def state_name(state: TieringState) -> str:
    """Return ``Enabled``, ``Disabling`` or ``Disabled``; ``None`` appears only in metrics."""
    return state.name.capitalize()


def changed_while_disabling(topic: TopicInfo) -> bool:
    """Return whether tiering was switched on again while Disabling, past admission.

    It is not acted on until Disabled, and the condition says so.
    """
    return topic.tiering.is_disabling and topic.tiering_spec.enabled
