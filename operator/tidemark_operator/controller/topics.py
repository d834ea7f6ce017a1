"""One Topic, one decision: what stands in its way, what is placed, where its tiering goes.

Level-based: called for a key whenever anything about it may have changed, it finds the present
distance between spec and state and drafts the next step. What the operator refuses (name taken,
adoption, storage, room) is told with a sentence that says what to do. Of a topic that is not there
yet nothing is created then; of one that is, the refused part alone is not acted on, and elections,
growth and tiering go on as if nobody had asked for it.
"""

import dataclasses

from tidemark.configuration.broker_keys import TIERING_SYSTEM
from tidemark.ids import id_text
from tidemark.reasons import Reason
from tidemark_operator.controller import (
    accepted_losses,
    adoption,
    disablement,
    elections,
    protection,
    reassignment,
    rebuilding,
    replication_factor_changes,
    topic_deletion,
)
from tidemark_operator.controller.commit import Draft, SliceFull
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.disablement import DisablementProgress
from tidemark_operator.controller.events import Event, count, normal, warning
from tidemark_operator.controller.model import (
    Acceptance,
    TieringSpec,
    TieringStatus,
    TopicInfo,
)
from tidemark_operator.controller.placement import BrokersMissing, place_topic, staying
from tidemark_operator.controller.replication_factor_changes import Resizing
from tidemark_operator.controller.topic_deletion import Deletions, DeletionStep

_RECHECK_DISABLING_MS = 5_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Why the operator refuses; the condition ``Stalled`` shows it, or ``Reconciling`` what
    ``goes_on`` by itself once others have done their part."""

    reason: Reason
    message: str
    goes_on: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicDecision:
    """What was decided about a topic. ``blocker``: it cannot be had, or not as a whole; of one that
    is ``paused``: what was lost of it cannot be rebuilt yet;
    ``refused``: part of the spec is not acted on, the rest is. ``tiering_status`` is the next
    ``status.tiering``, to be persisted by the status write; ``resizing``: partitions have not as
    many replicas as the manifest says; ``events`` are to be emitted after that write.
    ``recheck_ms``: look again then, though nothing happened. ``adopted``: this status write makes
    the Topic that topic; all else comes after it. ``accepted``: what a person has accepted, to
    stand in the status."""

    tiering_status: TieringStatus
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
    """The next step of one Topic; None when no such Topic is known."""
    topic = draft.state.topics.get(key)
    if topic is None:
        return None
    kept = topic.tiering_status
    if topic.paused:
        return _pause(draft, topic)
    if topic.deletion_ms is not None:
        step = _delete(draft, topic, deletions, now_ms)
        return TopicDecision(deletion=step, tiering_status=kept, recheck_ms=_RECHECK_DISABLING_MS)
    past = _past(draft.state, topic)
    if isinstance(past, adoption.Adoption):
        return _adopt(topic, past)
    blocker = past or _rebuilding(draft, topic)
    if blocker is None:
        return _go_on(draft, topic, disablements, now_ms)
    if not draft.rows_of(topic.id):
        return _nothing(topic, blocker, rebuilding.accepted(draft.state, topic))
    return _serve(draft, topic, disablements, now_ms, blocker=blocker)


def _pause(draft: Draft, topic: TopicInfo) -> TopicDecision:
    """Its spec is not carried out. What it is stays: what was lost of it is rebuilt, it is led, and
    what a person accepts counts."""
    paused = TopicDecision(paused=True, tiering_status=topic.tiering_status)
    if _name_taken(draft.state, topic) is not None:
        return paused
    own = adoption.its_own(draft.state, topic)
    if isinstance(own, adoption.Adoption):
        return dataclasses.replace(_adopt(topic, own), paused=True)
    blocker = _as_blocker(own) if own is not None else _rebuilding(draft, topic)
    accepted = accepted_losses.settle(draft, topic) + rebuilding.accepted(draft.state, topic)
    elections.settle_topic(draft, topic)
    recheck_ms = 0 if accepted else None
    return dataclasses.replace(paused, blocker=blocker, accepted=accepted, recheck_ms=recheck_ms)


def _go_on(
    draft: Draft, topic: TopicInfo, disablements: DisablementProgress, now_ms: int
) -> TopicDecision:
    refusals = _refusals(draft, topic)
    refused = _joined(refusals)
    if refused is not None and not _has_partitions(draft.state, topic):
        return _nothing(topic, refused)
    wanted, placed = _acted_on(draft.state, topic), None
    unheard = _unheard(draft, topic)
    if unheard is not None and not draft.rows_of(topic.id):
        return _nothing(topic, unheard, rebuilding.accepted(draft.state, topic))
    try:
        if unheard is None:
            placed = _place(draft, _as_placed(draft, wanted))
        else:
            refusals.append(unheard)
    except SliceFull as full:
        refusals.append(Blocker(reason=Reason.SLICE_FULL, message=str(full)))
        if not _has_partitions(draft.state, topic):
            return _nothing(topic, refusals[0])
    return _serve(draft, wanted, disablements, now_ms, missing=placed, refused=_joined(refusals))


def _nothing(
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
    """Elections and tiering of the partitions that there are."""
    accepted = accepted_losses.settle(draft, topic) + rebuilding.accepted(draft.state, topic)
    elections.settle_topic(draft, topic)
    next_status, event = disablement.step(draft.state, topic, disablements, now_ms=now_ms)
    # A disablement that is restored has nobody to acknowledge it until its rows stand.
    # Nor while rows are rebuilt: who hosts a replica is not known.
    nothing_yet = rebuilding.is_under_way(draft, topic) or (
        topic.partitions_placed == 0 and (missing is not None or topic.tiering.is_disabling)
    )
    resized = None if blocker is not None else replication_factor_changes.outlook(draft, topic)
    waits = _resizing_waits(topic, resized)
    refused = _joined([each for each in (refused, waits) if each is not None])
    told = blocker or refused
    return TopicDecision(
        missing=missing,
        blocker=blocker,
        resizing=resized,
        refused=refused,
        accepted=accepted,
        tiering_status=topic.tiering_status if nothing_yet else next_status,
        events=(
            *(() if event is None or nothing_yet else (event,)),
            *(() if told is None else _refused(topic, told)),
        ),
        recheck_ms=_recheck_ms(next_status, accepted),
    )


def _acted_on(state: ControllerState, topic: TopicInfo) -> TopicInfo:
    """The Topic as it is acted on: without the parts of its spec that are refused."""
    if not _has_partitions(state, topic):
        return topic
    if _storage(state, topic) is not None:
        topic = dataclasses.replace(topic, tiering_spec=TieringSpec())
    return topic


def _as_placed(draft: Draft, topic: TopicInfo) -> TopicInfo:
    """Where brokers are missing for another number of replicas, partitions that are added have as
    many as the others."""
    factor = reassignment.common_factor(draft.rows_of(topic.id).values())
    if factor is None or len(staying(draft)) >= topic.replication_factor:
        return topic
    return dataclasses.replace(topic, replication_factor=factor)


def _joined(refusals: list[Blocker]) -> Blocker | None:
    """One sentence of all that is refused, under the first of the reasons; what needs a person goes
    before what goes on."""
    if len(refusals) < 2:
        return refusals[0] if refusals else None
    ordered = sorted(refusals, key=lambda each: each.goes_on)
    text = "; ".join(f"{each.reason}: {each.message}" for each in ordered)
    return dataclasses.replace(ordered[0], message=text)


def _recheck_ms(status: TieringStatus, accepted: tuple[Acceptance, ...]) -> int | None:
    if accepted:
        return 0  # it is recorded now, and acted upon next
    return _RECHECK_DISABLING_MS if status.tiering.is_disabling else None


def _delete(draft: Draft, topic: TopicInfo, deletions: Deletions, now_ms: int) -> DeletionStep:
    if owner_of(draft.state, topic.name) is not topic and not _has_partitions(draft.state, topic):
        return DeletionStep(release=True, message="another Topic has the topic's name")
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


def _past(state: ControllerState, topic: TopicInfo) -> Blocker | adoption.Adoption | None:
    """What stands in its way, or is to be taken over, because its name is known already."""
    taken = _name_taken(state, topic)
    if taken is not None:
        return taken
    past = adoption.look(state, topic)
    return _as_blocker(past) if isinstance(past, adoption.Refusal) else past


def _as_blocker(refusal: adoption.Refusal) -> Blocker:
    return Blocker(reason=refusal.reason, message=refusal.message)


def _adopt(topic: TopicInfo, adopted: adoption.Adoption) -> TopicDecision:
    what = f"with {count(adopted.partitions, 'partition')}" if adopted.partitions else "in the tier"
    text = f"topic {topic.name} {what} is adopted under id {id_text(adopted.topic_id)}"
    return TopicDecision(
        tiering_status=adopted.tiering_status,
        adopted=adopted,
        accepted=(
            (Acceptance(adopted.annotation, topic.asked[adopted.annotation], text),)
            if adopted.annotation
            else ()
        ),
        events=(normal("Topic", topic.key, "TopicAdopted", text),),
        recheck_ms=0,
    )


def _refusals(draft: Draft, topic: TopicInfo) -> list[Blocker]:
    """What of the spec is not acted on; a topic that is not there yet is not created with it."""
    checks = (_deletion_held, _storage, _config_refused, _adoption_refused, _beyond_spec)
    found = (check(draft.state, topic) for check in checks)
    return [each for each in found if each is not None]


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
        f"the topic name {topic.name} belongs to Topic {owner.key}. topicName "
        "is immutable: delete this Topic, and create it with another topicName "
        "if you need both"
    )
    return Blocker(reason=Reason.NAME_TAKEN, message=text)


def _rebuilding(draft: Draft, topic: TopicInfo) -> Blocker | None:
    """Absence is not evidence: what was placed and is in no slice is not made again, and what may
    be older than what brokers were told is not acted on."""
    waiting = rebuilding.settle(draft, topic)
    if waiting is None:
        return None
    return Blocker(
        reason=Reason.REBUILDING,
        message=rebuilding.text(draft.state, topic, waiting),
        goes_on=True,
    )


def _unheard(draft: Draft, topic: TopicInfo) -> Blocker | None:
    """Partitions that may be on a broker which has not reported are not made as new ones."""
    brokers = rebuilding.unheard(draft.state, topic)
    rows = draft.rows_of(topic.id) if brokers else {}
    if not brokers or all(partition in rows for partition in range(topic.partitions)):
        return None
    return Blocker(
        reason=Reason.REBUILDING,
        message=rebuilding.unheard_text(draft.state, topic, brokers),
        goes_on=True,
    )


def _storage(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    """Tiering that never began, or was off, needs a store to begin (a store that fails later is no
    refusal: the topic goes on locally and TieringSettled says so)."""
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


def _config_refused(_: ControllerState, topic: TopicInfo) -> Blocker | None:
    """What admission cannot see, since a default of the Cluster makes it: local retention above the
    total, compaction of a tiered topic. A new topic is not created with it; one that is served goes
    on, expires by the total, and stays what it is, tiered or compacted."""
    if not topic.config_problem:
        return None
    return Blocker(reason=topic.config_reason, message=topic.config_problem)


def _resizing_waits(topic: TopicInfo, resized: Resizing | None) -> Blocker | None:
    """Another number of replicas that cannot be had at present."""
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


def _deletion_held(_: ControllerState, topic: TopicInfo) -> Blocker | None:
    if not topic.deletion_held:
        return None
    return Blocker(reason=Reason.DELETION_PROTECTED, message=protection.held_text("Topic"))


def _beyond_spec(state: ControllerState, topic: TopicInfo) -> Blocker | None:
    """Return the blocker of a Topic whose brokers have more partitions than its spec, for example
    after a restored backup. They are served: partitions are never removed."""
    present = state.partitions_of(topic)
    if present <= topic.partitions:
        return None
    text = (
        f"topic {topic.name} has {count(present, 'partition')} and spec.partitions is "
        f"{topic.partitions}. All of them are served. Set spec.partitions to {present} or more"
    )
    return Blocker(reason=Reason.PARTITIONS_BEYOND_SPEC, message=text)


def _adoption_refused(_: ControllerState, topic: TopicInfo) -> Blocker | None:
    """An annotation that asks a topic for another id than it has."""
    refusal = adoption.too_late(topic)
    return None if refusal is None else _as_blocker(refusal)


def _refused(topic: TopicInfo, blocker: Blocker) -> tuple[Event, ...]:
    """One Event when a refusal begins or its reason changes, not one with every later status."""
    conditions = topic.status.get("conditions")
    listed = conditions if isinstance(conditions, list | tuple) else ()
    shown_by = "Reconciling" if blocker.goes_on else "Stalled"
    shown = next((c for c in listed if isinstance(c, dict) and c.get("type") == shown_by), {})
    if (shown.get("reason"), shown.get("message")) == (blocker.reason, blocker.message):
        return ()
    return (warning("Topic", topic.key, blocker.reason, blocker.message),)
