"""One Topic, one decision: what stands in its way, what is placed, where its tiering goes.

Level-based: called for a key whenever anything about it may have changed, it finds the present
distance between spec and state and drafts the next step. What the operator refuses (name taken,
adoption, storage, room) is a blocker with a sentence that says what to do; nothing is created then.
"""

import dataclasses

from tidemark.configuration.broker_keys import TIERING_SYSTEM
from tidemark.ids import id_text
from tidemark_operator.controller import disablement, elections, moving, topic_deletion
from tidemark_operator.controller.commit import Draft, SliceFull
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.disablement import DisablementProgress
from tidemark_operator.controller.events import Event, count, warning
from tidemark_operator.controller.model import TieringStatus, TopicInfo
from tidemark_operator.controller.placement import BrokersMissing, place_topic
from tidemark_operator.controller.topic_deletion import Deletions, DeletionStep

REPLICATION_FACTOR_FIXED = "ReplicationFactorFixed"
_RECHECK_DISABLING_MS = 5_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Why the operator refuses; the condition ``Stalled`` shows it."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicDecision:
    """What was decided about a topic. ``blocker``: nothing goes on; ``refused``: part of the spec
    is not acted on, the rest is. ``tiering_status`` is the next ``status.tiering``, to be persisted
    by the status write; ``events`` are to be emitted after that write. ``recheck_ms``: look again
    then, though nothing happened."""

    tiering_status: TieringStatus
    paused: bool = False
    blocker: Blocker | None = None
    refused: Blocker | None = None
    missing: BrokersMissing | None = None
    deletion: DeletionStep | None = None
    events: tuple[Event, ...] = ()
    recheck_ms: int | None = None


def decide(
    draft: Draft, key: str, disablements: DisablementProgress, deletions: Deletions, *, now_ms: int
) -> TopicDecision | None:
    """The next step of one Topic; None when no such Topic is known."""
    topic = draft.state.topics.get(key)
    if topic is None:
        return None
    kept = topic.tiering_status
    if topic.paused:
        return TopicDecision(paused=True, tiering_status=kept)
    if topic.deletion_ms is not None:
        step = _delete(draft, topic, deletions, now_ms)
        return TopicDecision(deletion=step, tiering_status=kept, recheck_ms=_RECHECK_DISABLING_MS)
    blocker = _blocker(draft, topic)
    if blocker is not None:
        return TopicDecision(blocker=blocker, tiering_status=kept, events=_refused(topic, blocker))
    return _go_on(draft, topic, disablements, now_ms)


def _go_on(
    draft: Draft, topic: TopicInfo, disablements: DisablementProgress, now_ms: int
) -> TopicDecision:
    try:
        placed = _place(draft, topic)
    except SliceFull as full:
        blocker = Blocker(reason="SliceFull", message=str(full))
        kept = topic.tiering_status
        return TopicDecision(blocker=blocker, tiering_status=kept, events=_refused(topic, blocker))
    elections.settle_topic(draft, topic)
    next_status, event = disablement.step(draft.state, topic, disablements, now_ms=now_ms)
    nothing_yet = placed is not None and topic.partitions_placed == 0
    refused = _config_refused(topic)
    return TopicDecision(
        missing=placed,
        refused=refused,
        tiering_status=topic.tiering_status if nothing_yet else next_status,
        events=(
            *(() if event is None or nothing_yet else (event,)),
            *(() if refused is None else _refused(topic, refused)),
        ),
        recheck_ms=_RECHECK_DISABLING_MS if next_status.tiering.is_disabling else None,
    )


def _delete(draft: Draft, topic: TopicInfo, deletions: Deletions, now_ms: int) -> DeletionStep:
    if owner_of(draft.state, topic.name) is not topic and not _has_partitions(draft.state, topic):
        return DeletionStep(release=True, message="the topic's name belongs to another Topic")
    return topic_deletion.step(draft, topic, deletions, now_ms=now_ms)


def _place(draft: Draft, topic: TopicInfo) -> BrokersMissing | None:
    before = set(draft.rows_of(topic.id))
    placed = place_topic(draft, topic)
    if isinstance(placed, BrokersMissing):
        return placed
    try:
        draft.check_room([(topic.id, partition) for partition in placed.created])
    except SliceFull:
        for partition in set(placed.created) - before:
            draft.remove_row((topic.id, partition))
        draft.retract(topic.key, "PartitionsPlaced")
        raise
    return None


# ---------------------------------------------------------------- what the operator refuses


def _blocker(draft: Draft, topic: TopicInfo) -> Blocker | None:
    for check in (_name_taken, _adoption, _rows_missing, _replication_factor, _storage):
        blocker = check(draft.state, topic)
        if blocker is not None:
            return blocker
    return None if _has_partitions(draft.state, topic) else _config_refused(topic)


def owner_of(state: ControllerState, name: str) -> TopicInfo | None:
    """Of the Topics that claim a name, the one whose id has partitions, else the oldest."""
    claims = state.topics_named(name)
    return min(
        claims,
        key=lambda other: (not _has_partitions(state, other), other.created_ms, other.key),
        default=None,
    )


def _has_partitions(state: ControllerState, topic: TopicInfo) -> bool:
    return topic.partitions_placed > 0 or bool(state.rows_of(topic.id))


def _name_taken(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    owner = owner_of(state, topic.name)
    if owner is None or owner is topic:
        return None
    text = (
        f"topic {topic.name} belongs to Topic {owner.key}: delete one of them, or use another "
        "topicName"
    )
    return Blocker(reason="NameTaken", message=text)


def _adoption(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    """Identity: a name that is known under an id which no Topic has is not made again."""
    known = set(state.row_ids_named(topic.name))
    known.update(orphan.topic_id for orphan in state.cluster.orphans if orphan.name == topic.name)
    stray = sorted(id_ for id_ in known if state.topic_by_id(id_) is None)
    if not stray or _has_partitions(state, topic):
        return None
    text = (
        f"topic {topic.name} exists under id {id_text(stray[0])}, which no Topic has: choose "
        "another topicName"
    )
    return Blocker(reason="AdoptionRequired", message=text)


def _rows_missing(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    """Absence is not evidence: what was placed and is in no slice is not made again."""
    rows = state.rows_of(topic.id)
    lost = sum(partition not in rows for partition in range(topic.partitions_placed))
    if not lost:
        return None
    text = (
        f"{count(lost, 'partition')} of topic {topic.name} were placed and are in no "
        "PartitionSlice: restore the slices from a backup; nothing is created in their place"
    )
    return Blocker(reason="PartitionsLost", message=text)


def _replication_factor(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    rows = state.rows_of(topic.id).values()
    other = next(
        (
            row
            for row in rows
            if not moving.is_moving(row) and len(row.replicas) != topic.replication_factor
        ),
        None,
    )
    if other is None:
        return None
    text = (
        f"replicationFactor {topic.replication_factor} differs from the {len(other.replicas)} "
        "replicas that were placed: set it back, and have it changed by a reassignment of all "
        "partitions through Kafka's API"
    )
    return Blocker(reason=REPLICATION_FACTOR_FIXED, message=text)


def _storage(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    """Tiering that never began, or was off, needs a store to begin (a store that fails later is no
    refusal: the topic goes on locally and TieringSettled says so)."""
    if not (topic.tiering_spec.enabled and topic.tiering.is_off):
        return None
    problem = state.cluster.storage_problem
    if state.cluster.tiering_available and not problem:
        return None
    why = problem or _not_configured(state)
    return Blocker(reason="StorageUnavailable", message=f"tiering cannot begin: {why}")


def _not_configured(state: ControllerState) -> str:
    cluster = state.cluster
    if not cluster.flag(TIERING_SYSTEM):
        return f"set {TIERING_SYSTEM} to true in the config of Cluster {cluster.key}"
    return f"give Cluster {cluster.key} a remoteStorage"


def _config_refused(topic: TopicInfo) -> Blocker | None:
    """Local retention above a total that comes from a default: what admission cannot see. A new
    topic is not created with it; one that is served goes on, and expires by the total."""
    if not topic.config_problem:
        return None
    return Blocker(reason="LocalRetentionTooLong", message=topic.config_problem)


def _refused(topic: TopicInfo, blocker: Blocker) -> tuple[Event, ...]:
    """One Event when a refusal begins or its reason changes, not one with every later status."""
    conditions = topic.status.get("conditions")
    listed = conditions if isinstance(conditions, list | tuple) else ()
    stalled = next((c for c in listed if isinstance(c, dict) and c.get("type") == "Stalled"), {})
    if (stalled.get("reason"), stalled.get("message")) == (blocker.reason, blocker.message):
        return ()
    return (warning("Topic", topic.key, blocker.reason, blocker.message),)
