"""Deletion of a topic (invariant 23).

Rows become tombstones, live brokers confirm, the tier is emptied, the finalizer is removed.

A broker that is down deletes its replicas when it returns, because of the tombstone. The tombstone
stays until every broker that hosted a replica, or was down, has confirmed or its ``Broker`` object
is deleted. One live broker, named by the controller, deletes the remote data after the live ones
have stopped. ``deletionPolicy: Orphan`` releases the Topic at any time; the remaining data is first
listed in the Cluster's status.
"""

import dataclasses
import uuid
from collections.abc import Collection, Iterable

from kio.schema.errors import ErrorCode

from tidemark.message_text import numbered
from tidemark.wire.control import (
    DeleteRemoteTopicRequest,
    DeleteRemoteTopicResponse,
    PartitionStatesRequest,
    PartitionStatesResponse,
)
from tidemark_operator.controller import left_behind
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import (
    BrokerInfo,
    DeletionPolicy,
    OrphanedTopic,
    PartitionRow,
    Tombstone,
    TopicInfo,
)

_WHOLE_TOPIC = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionStep:
    """Next step of a Topic that is being deleted.

    ``release``: its finalizer may be removed, once the draft is committed and ``orphan`` (if any)
    is in the Cluster's status. ``remote``: the broker that empties the tier, and its request.
    ``problem`` is not empty if a person may have to act.
    """

    release: bool = False
    orphan: OrphanedTopic | None = None
    remote: tuple[int, DeleteRemoteTopicRequest] | None = None
    waiting_for: tuple[int, ...] = ()
    message: str = ""
    problem: str = ""


class Deletions:
    """Confirmations of topics' deletions.

    In memory, because a takeover sends the requests again.
    """

    def __init__(self) -> None:
        self._confirmed: dict[uuid.UUID, dict[int, uuid.UUID | None]] = {}
        self._emptied: set[uuid.UUID] = set()
        self._failures: dict[uuid.UUID, int] = {}
        self.problems: dict[uuid.UUID, str] = {}

    def take(
        self,
        state: ControllerState,
        node_id: int,
        request: PartitionStatesRequest,
        response: PartitionStatesResponse,
    ) -> tuple[uuid.UUID, ...]:
        """Record that a broker has deleted its replicas of topics; return the topics with news.

        Every removal of a whole topic in the request that has no error in the response is
        confirmed.
        """
        broker = state.brokers.get(node_id)
        if (
            response.error_code != 0
            or broker is None
            or response.broker_epoch != broker.broker_epoch
        ):
            return ()
        requested = {item.topic_id for item in request.removals if item.partition == _WHOLE_TOPIC}
        failed = {error.topic_id for error in response.errors}
        fresh = [
            id_ for id_ in sorted(requested - failed) if not self.confirmed(state, id_, node_id)
        ]
        # The log directory is part of the confirmation: another one may still have the replica.
        for topic_id in fresh:
            self._confirmed.setdefault(topic_id, {})[node_id] = broker.directory_id
        return tuple(fresh)

    def take_remote(
        self, topic_id: uuid.UUID, node_id: int, answer: DeleteRemoteTopicResponse
    ) -> bool:
        """Take the named broker's answer.

        Return whether the tier has nothing of the topic any more.
        """
        if answer.error_code == ErrorCode.none.value:
            self._emptied.add(topic_id)
            self.problems.pop(topic_id, None)
        elif answer.error_code != ErrorCode.request_timed_out.value:
            self.failed(topic_id, f"broker {node_id}: {answer.message or answer.error_code}")
        return topic_id in self._emptied

    def failed(self, topic_id: uuid.UUID, problem: str) -> None:
        """Count a failure of the named broker, so that the next live one is named."""
        self._failures[topic_id] = self._failures.get(topic_id, 0) + 1
        self.problems[topic_id] = problem

    def confirmed(self, state: ControllerState, topic_id: uuid.UUID, node_id: int) -> bool:
        """Return whether a broker has confirmed.

        With another log directory it has to confirm again.
        """
        broker, by = state.brokers.get(node_id), self._confirmed.get(topic_id, {})
        return broker is not None and node_id in by and by[node_id] == broker.directory_id

    def emptied(self, topic_id: uuid.UUID) -> bool:
        return topic_id in self._emptied

    def failures(self, topic_id: uuid.UUID) -> int:
        return self._failures.get(topic_id, 0)

    def forget_gone(self, state: ControllerState) -> None:
        """Forget topics of which neither Topic nor tombstone is left."""
        waiting = set(state.tombstones)
        for table in (self._confirmed, self._failures, self.problems):
            for topic_id in _gone(state, table, waiting):
                del table[topic_id]
        self._emptied.difference_update(_gone(state, self._emptied, waiting))


def _gone(
    state: ControllerState, ids: Iterable[uuid.UUID], waiting: Collection[uuid.UUID]
) -> list[uuid.UUID]:
    return [id_ for id_ in ids if id_ not in waiting and state.topics.by_id(id_) is None]


def step(draft: Draft, topic: TopicInfo, deletions: Deletions, *, now_ms: int) -> DeletionStep:
    """Return the next step of deleting a topic; call it again after each change.

    The order is: tombstones instead of rows, confirmation of the brokers, remote data, release of
    the Topic. A tombstone is the persisted record of a deletion, so that a broker that was down
    also deletes its replicas.
    """
    if topic.deletion_policy is DeletionPolicy.ORPHAN:
        return _released(draft, topic, now_ms)
    # First replace the rows by tombstones: from then on no broker serves the partitions.
    rows = draft.rows_of(topic.id)
    if rows:
        _write_tombstones(draft, topic, list(rows.values()))
        return DeletionStep(message="deleting the partitions on the brokers")
    # Neither rows nor tombstones: slices may be lost, so every broker has to confirm.
    tombstones = draft.state.tombstones_of(topic.id)
    if not tombstones:
        if topic.partitions_placed == 0 and not draft.state.replica_reports.numbers(topic.id):
            return DeletionStep(release=True, message="nothing was placed")
        _write_tombstone_for_all(draft, topic)
        return DeletionStep(message="deleting the partitions on the brokers")
    # Wait for the live brokers before the remote data is deleted: a leader might still upload.
    hosts = {node_id for tomb in tombstones.values() for node_id in tomb.pending}
    waiting = _unconfirmed(draft.state, topic.id, hosts, deletions)
    if waiting:
        text = f"waiting for {numbered('broker', waiting)} to delete their replicas"
        return DeletionStep(waiting_for=waiting, message=text)
    # Remote data is last.
    if not topic.tiering.ever_tiered or deletions.emptied(topic.id):
        return DeletionStep(release=True, message="deleted on every live broker")
    return _empty_tier(draft.state, topic, tombstones.values(), deletions)


def _released(draft: Draft, topic: TopicInfo, now_ms: int) -> DeletionStep:
    """Return the release of a Topic with deletionPolicy Orphan; its data stays.

    The Cluster's status has to list the topic first, which is refused if the list is full.
    """
    known = draft.rows_of(topic.id) or draft.state.tombstones_of(topic.id)
    if not known and topic.partitions_placed == 0:
        return DeletionStep(release=True, message="nothing was placed")
    orphan = left_behind.orphan_of(topic, now_ms=now_ms)
    # The list of orphaned topics has a maximum size.
    if left_behind.added(draft.state.cluster, orphan) is None:
        text = left_behind.full_message(draft.state.cluster)
        return DeletionStep(message=text, problem=text)
    return DeletionStep(
        release=True, orphan=orphan, message="the topic is orphaned (deletionPolicy Orphan)"
    )


def _write_tombstones(draft: Draft, topic: TopicInfo, rows: list[PartitionRow]) -> None:
    """Replace a topic's rows by one tombstone per slice, in the same write.

    A tombstone lists the brokers that have to confirm. The first one also lists brokers that may
    have a replica which no row names: those that report one, and those that are down and may have
    missed a move.
    """
    hosts: dict[int, set[int]] = {}
    away = {node_id for node_id, broker in draft.state.brokers.items() if _is_down(broker)}
    if others := away.union(draft.state.replica_reports.brokers_of(topic.id)):
        hosts[draft.state.slice_index((topic.id, 0))] = others
    for row in rows:
        hosts.setdefault(draft.state.slice_index(row.key), set()).update(row.hosts)
        draft.remove_row(row.key)
    for index, node_ids in hosts.items():
        former = draft.state.tombstones_of(topic.id).get(index)
        pending = node_ids | set(former.pending if former else ())
        draft.put_tombstone(index, _tombstone(draft.state, topic, pending))


def _is_down(broker: BrokerInfo) -> bool:
    return broker.registered and not broker.live and not broker.is_reader


def _write_tombstone_for_all(draft: Draft, topic: TopicInfo) -> None:
    """Write a tombstone for every broker, because no row names the hosts."""
    index = draft.state.slice_index((topic.id, 0))
    draft.put_tombstone(index, _tombstone(draft.state, topic, set(draft.state.brokers)))


def _tombstone(state: ControllerState, topic: TopicInfo, pending: set[int]) -> Tombstone:
    return Tombstone(
        topic_id=topic.id,
        name=topic.name,
        partitions=max(topic.partitions, state.partitions_of(topic)),
        tiered_epoch=topic.tiering.epoch,
        pending=tuple(sorted(pending)),
    )


def _unconfirmed(
    state: ControllerState, topic_id: uuid.UUID, hosts: set[int], deletions: Deletions
) -> tuple[int, ...]:
    """Return the live brokers that may still have a replica.

    Brokers that are down have their tombstone; so have all while none has reached this controller.
    """
    if state.unreached:
        return ()
    late = (node for node in sorted(hosts) if not deletions.confirmed(state, topic_id, node))
    return tuple(node for node in late if state.is_live(node))


def _empty_tier(
    state: ControllerState,
    topic: TopicInfo,
    tombstones: Iterable[Tombstone],
    deletions: Deletions,
) -> DeletionStep:
    """Return the step in which one broker deletes the topic's remote data.

    A failure is retried on another broker.
    """
    problem = deletions.problems.get(topic.id, "")
    if problem:
        problem += (
            ". To release the Topic and keep its data in the tier, set deletionPolicy: Orphan"
        )
    live = [broker.node_id for broker in state.live_brokers()]
    if not live:
        text = "waiting for a live broker that can delete the topic in the remote tier"
        return DeletionStep(message=text, problem=problem)
    # The id spreads the work over brokers, and each failure moves it to the next one.
    start = int.from_bytes(topic.id.bytes[-4:], "big") + deletions.failures(topic.id)
    node_id = live[start % len(live)]
    request = DeleteRemoteTopicRequest(
        controller_epoch=state.controller_epoch,
        topic_id=topic.id,
        name=topic.name,
        tiered_epoch=topic.tiering.epoch,
        partitions=max([topic.partitions, *(tomb.partitions for tomb in tombstones)]),
    )
    text = f"broker {node_id} deletes the topic in the remote tier"
    return DeletionStep(remote=(node_id, request), message=text, problem=problem)


def collect(draft: Draft, deletions: Deletions) -> int:
    """Remove tombstones of deleted Topics that wait for no broker; return how many."""
    dropped = 0
    for topic_id in sorted(draft.state.tombstones):
        if draft.state.topics.by_id(topic_id) is None:
            dropped += _collect(draft, topic_id, deletions)
    return dropped


def _collect(draft: Draft, topic_id: uuid.UUID, deletions: Deletions) -> int:
    state, dropped = draft.state, 0
    for index, tomb in state.tombstones_of(topic_id).items():
        present = [node_id for node_id in tomb.pending if node_id in state.brokers]
        left = tuple(node for node in present if not deletions.confirmed(state, topic_id, node))
        if not left:
            draft.drop_tombstone(index, topic_id)
            dropped += 1
        elif left != tomb.pending:
            draft.put_tombstone(index, dataclasses.replace(tomb, pending=left))
    return dropped
