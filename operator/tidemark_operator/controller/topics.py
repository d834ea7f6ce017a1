"""Decision about one Topic: what it lacks, which partitions are placed, its tiering's next step.

Level-based: called for a key whenever anything about it may have changed, it compares spec and
state and drafts the next step. A refusal (name, adoption, storage, room) becomes a message that
says what to do. A refused topic that does not exist yet is not created. For an existing one only
the refused part is ignored, and elections, growth and tiering continue.

A new or growing Topic is not Ready before its brokers have answered, a moment later. Under load
that moment is not shown. The placement is recorded together with others (:mod:`commit`), and a
status that would only say that it waits is delayed, by at most :data:`PUT_OFF_MS`. So each of a
thousand new Topics costs one write of its status.
"""

import dataclasses

from tidemark.configuration.broker_keys import TIERING_SYSTEM
from tidemark.ids import id_text
from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark_operator.controller import (
    accepted_losses,
    adoption,
    elections,
    protection,
    reassignment,
    rebuilding,
    replication_factor_changes,
    tiering_disablement,
    topic_deletion,
)
from tidemark_operator.controller.placement import BrokersMissing, place_topic, staying
from tidemark_operator.controller.replication_factor_changes import Resizing
from tidemark_operator.controller.state.commit import (
    Draft,
    SliceFull,
    counted_partitions,
    partitions_in_rows,
)
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event, normal, warning
from tidemark_operator.controller.state.model import (
    Acceptance,
    Blocker,
    PersistedTiering,
    TieringSpec,
    TopicInfo,
)
from tidemark_operator.controller.tiering_disablement import DisablementProgress
from tidemark_operator.controller.topic_deletion import Deletions, DeletionStep

_RECHECK_DISABLING_MS = 5_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicDecision:
    """Decision about a topic.

    - ``blocker``: the topic cannot be had, or not as a whole. For a ``paused`` topic: its lost rows
      cannot be rebuilt yet.
    - ``refused``: this part of the spec is ignored, the rest is not.
    - ``tiering_status``: the next ``status.tiering``, persisted by the status write.
    - ``resizing``: partitions have another number of replicas than the spec.
    - ``events``: emitted after the status write.
    - ``recheck_ms``: time until the next look, without any change.
    - ``adopted``: this status write takes over an existing topic; everything else follows it.
    - ``accepted``: consents of a person, to be recorded in the status.
    """

    tiering_status: PersistedTiering
    paused: bool = False
    adopted: adoption.Adoption | None = None
    accepted: tuple[Acceptance, ...] = ()
    blocker: Blocker | None = None
    refused: Blocker | None = None
    resizing: Resizing | None = None
    missing: BrokersMissing | None = None
    deletion: DeletionStep | None = None
    events: tuple[Event, ...] = ()
    recheck_ms: int | None = None


def decide(
    draft: Draft, key: str, disablements: DisablementProgress, deletions: Deletions, *, now_ms: int
) -> TopicDecision | None:
    """Draft the next step of one Topic and return the decision; None if there is no such Topic.

    ``key`` is the object key. Changes of partitions are in the draft; the decision has what the
    status shows.
    """
    topic = draft.state.topics.get(key)
    if topic is None:
        return None
    kept = topic.tiering_status
    # A pause comes first: a paused Topic is not even deleted.
    if topic.paused:
        return _pause(draft, topic)
    if topic.deletion_ms is not None:
        step = _delete(draft, topic, deletions, now_ms)
        return TopicDecision(deletion=step, tiering_status=kept, recheck_ms=_RECHECK_DISABLING_MS)
    # Settle the topic id before partitions are placed under it.
    past = name_taken(draft.state, topic) or adoption.adoption_of(draft.state, topic)
    if isinstance(past, adoption.Adoption):
        return _adopt(topic, past)
    # With lost or doubtful rows, no partitions are added.
    blocker = past or _rebuilding(draft, topic)
    if blocker is None:
        return _place_and_serve(draft, topic, disablements, now_ms)
    # Without rows there is nothing to serve. Otherwise the existing partitions are served.
    if not draft.rows_of(topic.id):
        return _blocked(topic, blocker, rebuilding.accepted(draft.state, topic))
    return _serve(draft, topic, disablements, now_ms, blocker=blocker)


def _pause(draft: Draft, topic: TopicInfo) -> TopicDecision:
    """Decide about a paused Topic: its spec is not acted on, and its partitions are served.

    Leaders are elected, lost rows are rebuilt, and a person's consents to losses are acted on.
    """
    paused = TopicDecision(paused=True, tiering_status=topic.tiering_status)
    if name_taken(draft.state, topic) is not None:
        return paused
    own = adoption.own_adoption(draft.state, topic)
    if isinstance(own, adoption.Adoption):
        return dataclasses.replace(_adopt(topic, own), paused=True)
    blocker = own or _rebuilding(draft, topic)
    # A consent is recorded before it is acted on, so elections come after it.
    accepted = accepted_losses.settle(draft, topic) + rebuilding.accepted(draft.state, topic)
    elections.settle_topic(draft, topic)
    recheck_ms = 0 if accepted else None
    return dataclasses.replace(paused, blocker=blocker, accepted=accepted, recheck_ms=recheck_ms)


def _place_and_serve(
    draft: Draft, topic: TopicInfo, disablements: DisablementProgress, now_ms: int
) -> TopicDecision:
    """Place missing partitions as far as the spec allows, and decide about all partitions."""
    # A topic that does not exist yet is only created if its whole spec is accepted.
    refusals = _refusals(draft, topic)
    refused = joined(refusals)
    if refused is not None and not _has_partitions(draft.state, topic):
        return _blocked(topic, refused)
    acted_on, missing = _without_refused(draft.state, topic), None
    # A broker that has not reported may have these partitions; creating them would lose its data.
    unreported = _unreported(draft, topic)
    if unreported is not None and not draft.rows_of(topic.id):
        return _blocked(topic, unreported, rebuilding.accepted(draft.state, topic))
    try:
        if unreported is None:
            missing = _place(draft, _with_placement_factor(draft, acted_on))
        else:
            refusals.append(unreported)
    # All new partitions fit into their slices, or none is created.
    except SliceFull as full:
        refusals.append(Blocker(reason=Reason.SLICE_FULL, message=str(full)))
        if not _has_partitions(draft.state, topic):
            return _blocked(topic, refusals[0])
    return _serve(draft, acted_on, disablements, now_ms, missing=missing, refused=joined(refusals))


def _blocked(
    topic: TopicInfo, blocker: Blocker, accepted: tuple[Acceptance, ...] = ()
) -> TopicDecision:
    kept, events = topic.tiering_status, _refused(topic, blocker)
    return TopicDecision(
        blocker=blocker,
        tiering_status=kept,
        accepted=accepted,
        events=events,
        recheck_ms=0 if accepted else None,
    )


def _serve(
    draft: Draft,
    topic: TopicInfo,
    disablements: DisablementProgress,
    now_ms: int,
    *,
    missing: BrokersMissing | None = None,
    blocker: Blocker | None = None,
    refused: Blocker | None = None,
) -> TopicDecision:
    """Decide about the partitions that exist: elections, tiering and replication factor.

    ``missing``: brokers that the placement lacks. ``blocker``: reason why no partitions are added.
    ``refused``: part of the spec that is refused.
    """
    accepted = accepted_losses.settle(draft, topic) + rebuilding.accepted(draft.state, topic)
    elections.settle_topic(draft, topic)
    next_status, event = tiering_disablement.step(draft.state, topic, disablements, now_ms=now_ms)
    # The tiering state stays while rows are placed or rebuilt: the brokers that have to acknowledge
    # a disablement are not known yet.
    nothing_yet = rebuilding.is_under_way(draft, topic) or (
        topic.partitions_placed == 0 and (missing is not None or topic.tiering.is_disabling)
    )
    # The replication factor is not changed while a blocker exists.
    resized = None if blocker is not None else replication_factor_changes.outlook(draft, topic)
    waits = resizing_waits(topic, resized)
    refused = joined([refusal for refusal in (refused, waits) if refusal is not None])
    shown = blocker or refused
    return TopicDecision(
        missing=missing,
        blocker=blocker,
        resizing=resized,
        refused=refused,
        accepted=accepted,
        tiering_status=topic.tiering_status if nothing_yet else next_status,
        events=(
            *(() if event is None or nothing_yet else (event,)),
            *(() if shown is None else _refused(topic, shown)),
        ),
        recheck_ms=_recheck_ms(next_status, accepted),
    )


def _without_refused(state: ControllerState, topic: TopicInfo) -> TopicInfo:
    """Return the Topic without the parts of its spec that are refused."""
    if not _has_partitions(state, topic):
        return topic
    if _storage(state, topic) is not None:
        topic = dataclasses.replace(topic, tiering_spec=TieringSpec())
    return topic


def _with_placement_factor(draft: Draft, topic: TopicInfo) -> TopicInfo:
    """Return the Topic with the replication factor that added partitions get.

    While too few brokers are live for a changed factor, they get as many replicas as the others.
    """
    factor = reassignment.common_factor(draft.rows_of(topic.id).values())
    if factor is None or len(staying(draft)) >= topic.replication_factor:
        return topic
    return dataclasses.replace(topic, replication_factor=factor)


def joined(refusals: list[Blocker]) -> Blocker | None:
    """Join all refusals into one message, under the first reason.

    Refusals that need a person come before those that resolve by themselves.
    """
    if len(refusals) < 2:
        return refusals[0] if refusals else None
    ordered = sorted(refusals, key=lambda refusal: refusal.goes_on)
    text = "; ".join(f"{refusal.reason}: {refusal.message}" for refusal in ordered)
    return dataclasses.replace(ordered[0], message=text)


def _recheck_ms(status: PersistedTiering, accepted: tuple[Acceptance, ...]) -> int | None:
    if accepted:
        return 0  # recorded by this status write, acted on by the next decision
    return _RECHECK_DISABLING_MS if status.tiering.is_disabling else None


def _delete(draft: Draft, topic: TopicInfo, deletions: Deletions, now_ms: int) -> DeletionStep:
    # Another Topic serves the name, so this one has no data to delete.
    if owner_of(draft.state, topic.name) is not topic and not _has_partitions(draft.state, topic):
        return DeletionStep(release=True, message="another Topic has the topic's name")
    return topic_deletion.step(draft, topic, deletions, now_ms=now_ms)


def _place(draft: Draft, topic: TopicInfo) -> BrokersMissing | None:
    before = set(draft.rows_of(topic.id))
    placed = place_topic(draft, topic)
    if isinstance(placed, BrokersMissing):
        return placed
    # The rows are drafted before their size is known, so a full slice takes all of them back.
    try:
        draft.check_room([(topic.id, partition) for partition in placed])
    except SliceFull:
        for partition in set(placed) - before:
            draft.remove_row((topic.id, partition))
        draft.retract(topic.key, "PartitionsPlaced")
        raise
    return None


# ---------------------------------------------------------------- what the operator refuses


def _adopt(topic: TopicInfo, adopted: adoption.Adoption) -> TopicDecision:
    """Return the decision to adopt existing partitions under their topic id.

    The status records it, and the next reconciliation continues with the adopted id.
    """
    origin = (
        f"with {count(adopted.partitions, 'partition')}" if adopted.partitions else "in the tier"
    )
    text = f"topic {topic.name} {origin} is adopted under id {id_text(adopted.topic_id)}"
    # The annotation that allowed the adoption is recorded as accepted.
    return TopicDecision(
        tiering_status=adopted.tiering_status,
        adopted=adopted,
        accepted=(
            (Acceptance(adopted.annotation, topic.annotations[adopted.annotation], text),)
            if adopted.annotation
            else ()
        ),
        events=(normal("Topic", topic.key, "TopicAdopted", text),),
        recheck_ms=0,
    )


def _refusals(draft: Draft, topic: TopicInfo) -> list[Blocker]:
    """Return the parts of the spec that are refused; a new topic is not created with any."""
    found = (
        _deletion_blocked(topic),
        _storage(draft.state, topic),
        _config_refused(topic),
        adoption.late_refusal(topic),
        _beyond_spec(draft.state, topic),
    )
    return [refusal for refusal in found if refusal is not None]


def owner_of(state: ControllerState, name: str) -> TopicInfo | None:
    """Return the owner of a name: the Topic whose id has partitions, else the oldest."""
    claims = state.topics.named(name)
    return min(
        claims,
        key=lambda other: (not _has_partitions(state, other), other.created_ms, other.key),
        default=None,
    )


def _has_partitions(state: ControllerState, topic: TopicInfo) -> bool:
    return topic.partitions_placed > 0 or bool(state.rows_of(topic.id))


def name_taken(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    """Return the blocker if another Topic has the name."""
    owner = owner_of(state, topic.name)
    if owner is None or owner.key == topic.key:
        return None
    text = (
        f"the topic name {topic.name} belongs to Topic {owner.key}. topicName "
        "is immutable: delete this Topic, and create it with another topicName "
        "if you need both"
    )
    return Blocker(reason=Reason.NAME_TAKEN, message=text)


def _rebuilding(draft: Draft, topic: TopicInfo) -> Blocker | None:
    """Rebuild lost and doubtful rows; return the blocker while some have to wait.

    Absence is not evidence: partitions that were placed and are in no slice are not created again.
    """
    waiting = rebuilding.settle(draft, topic)
    if waiting is None:
        return None
    return Blocker(
        reason=Reason.REBUILDING,
        message=rebuilding.text(draft.state, topic, waiting),
        goes_on=True,
    )


def _unreported(draft: Draft, topic: TopicInfo) -> Blocker | None:
    """Return the blocker of new partitions that a broker without a report may already have."""
    brokers = rebuilding.unreported_brokers(draft.state, topic)
    rows = draft.rows_of(topic.id) if brokers else {}
    if not brokers or all(partition in rows for partition in range(topic.partitions)):
        return None
    return Blocker(
        reason=Reason.REBUILDING,
        message=rebuilding.unreported_text(draft.state, topic, brokers),
        goes_on=True,
    )


def _storage(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    """Return the refusal of tiering that cannot start without a store.

    A store that fails later is no refusal: the topic continues locally and TieringSettled says so.
    """
    if not (topic.tiering_spec.enabled and topic.tiering.is_off):
        return None
    problem = state.cluster.storage_problem
    if state.cluster.tiering_available and not problem:
        return None
    why = problem or _not_configured(state)
    return Blocker(reason=Reason.STORAGE_UNAVAILABLE, message=f"tiering cannot start: {why}")


def _not_configured(state: ControllerState) -> str:
    cluster = state.cluster
    if not cluster.flag(TIERING_SYSTEM):
        return f"set {TIERING_SYSTEM} to true in spec.config of Cluster {cluster.key}"
    return f"set spec.remoteStorage of Cluster {cluster.key}"


def _config_refused(topic: TopicInfo) -> Blocker | None:
    """Return the refusal of a configuration that conflicts with a default of the Cluster.

    Admission cannot see these: local retention above the total, compaction of a tiered topic. A new
    topic is not created with them. An existing one is served, expires by its total retention, and
    stays tiered or compacted as it is.
    """
    if not topic.config_problem:
        return None
    return Blocker(reason=topic.config_reason, message=topic.config_problem)


def resizing_waits(topic: TopicInfo, resized: Resizing | None) -> Blocker | None:
    """Return why the replication factor cannot be reached at present, None if it can."""
    if resized is None or not (resized.without_broker or resized.without_leader):
        return None
    text = f"replicationFactor {topic.replication_factor} is not applied to "
    if resized.without_broker:
        text += (
            f"{count(resized.without_broker, 'partition')}, because too few "
            "live brokers accept replicas. Start more brokers, or set the "
            "previous replicationFactor"
        )
    else:
        text += (
            f"{count(resized.without_leader, 'partition')} without a leader to "
            "catch up from. See the condition Ready"
        )
    return Blocker(reason=Reason.REPLICATION_FACTOR_PENDING, message=text)


def _deletion_blocked(topic: TopicInfo) -> Blocker | None:
    if not topic.deletion_blocked:
        return None
    return Blocker(reason=Reason.DELETION_PROTECTED, message=protection.blocked_text("Topic"))


def _beyond_spec(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    """Return the refusal for brokers that have more partitions than the spec.

    That happens after a restored backup. They are served: partitions are never removed.
    """
    present = state.partitions_of(topic)
    if present <= topic.partitions:
        return None
    text = (
        f"topic {topic.name} has {count(present, 'partition')} and spec.partitions is "
        f"{topic.partitions}. All of them are served. Set spec.partitions to {present} or more"
    )
    return Blocker(reason=Reason.PARTITIONS_BEYOND_SPEC, message=text)


def _refused(topic: TopicInfo, blocker: Blocker) -> tuple[Event, ...]:
    """Return one Event when a refusal starts or changes, none with each later status."""
    conditions = topic.status.get("conditions")
    listed = conditions if isinstance(conditions, list | tuple) else ()
    shown_by = "Reconciling" if blocker.goes_on else "Stalled"
    shown = next((c for c in listed if isinstance(c, dict) and c.get("type") == shown_by), {})
    if (shown.get("reason"), shown.get("message")) == (blocker.reason, blocker.message):
        return ()
    return (warning("Topic", topic.key, blocker.reason, blocker.message),)


PUT_OFF_MS = 2_000
#: Records in all slices; for further topics the status is written at once.
RECORDS_MAX = 2_000


def is_placement_only(state: ControllerState, topic: TopicInfo, decision: TopicDecision) -> bool:
    """Return whether a status could only say that partitions are placed and brokers have not
    answered.
    """
    # Any other fact in the decision, such as an event or a refusal, is written at once.
    return (
        decision == TopicDecision(tiering_status=topic.tiering_status)
        and counted_partitions(topic) < topic.partitions == partitions_in_rows(state, topic)
        and state.acknowledgements.awaits_anything(topic.id)
    )


def record_placement(draft: Draft, key: str) -> bool:
    """Record the placement of a Topic that is stored by now; False if there is no room."""
    topic, state = draft.state.topics.get(key), draft.state
    # The bound keeps the records small: they are part of a slice, which has a limit.
    recorded = len(draft.records) + sum(len(content.records) for content in state.slices)
    if topic is None or recorded >= RECORDS_MAX:
        return False
    placed = partitions_in_rows(state, topic)
    # Only stored rows count, because the record is the evidence for them.
    if placed > topic.partitions_placed:
        draft.put_record(topic.id, placed)
    return True


class FirstStatuses:
    """Start of each delayed status by object key; at most one per Topic."""

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}

    def delay_ms(self, key: str, *, now_ms: int) -> int:
        """Return how much longer a status is delayed; 0: write it now."""
        since_ms = self._since_ms.setdefault(key, now_ms)
        return max(0, since_ms + PUT_OFF_MS - now_ms)

    def forget(self, key: str) -> None:
        """Forget a Topic whose status is written, or that is deleted."""
        self._since_ms.pop(key, None)
