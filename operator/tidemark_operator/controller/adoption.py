"""Adoption of an existing topic that has no Topic object: rule *Identity*.

A name that is known under an id without a Topic is not created again. A new Topic of that name
either takes over the id, which ``tidemark.dev/adopt-topic-id`` names, or waits. An id can be
adopted while slices or brokers still have its partitions. An id that is only listed in
``leftBehind`` (its partitions were being deleted when it was released) can be forgotten. The claim
is the write of ``status.topicId``: nothing is decided about the rows before it is stored. A Topic
whose status was lost, and whose own uid is the id that brokers report, is that topic.
"""

import dataclasses
import uuid

from tidemark.annotations import ADOPT_TOPIC_ID, FORGET_LEFT_BEHIND, RESTORE_FROM_TIER
from tidemark.ids import id_text, parse_id
from tidemark.message_text import count, quoted
from tidemark.reasons import Reason
from tidemark_operator.controller import topic_restore
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import Blocker, PersistedTiering, TopicInfo

_LISTED_MAX = 5
#: Advice for a name in use, because topicName is immutable.
_ANOTHER_NAME = "delete this Topic and create it with another topicName"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """Decision that a Topic takes over an existing topic, with the recorded facts about it."""

    topic_id: uuid.UUID
    partitions: int
    tiering_status: PersistedTiering
    annotation: str = ADOPT_TOPIC_ID


def adoption_of(state: ControllerState, topic: TopicInfo) -> Adoption | Blocker | None:
    """Decide whether a Topic without a topic id takes over an existing topic instead of a new one.

    Partitions of that name may remain of a Topic that was deleted, orphaned or lost. Returns the
    adoption, or why the Topic is refused; None if nothing of that name exists and the topic is
    created.
    """
    if topic.topic_id is not None:
        return None
    # Partitions under the object's own uid prove the identity without an annotation.
    if (found := own_adoption(state, topic)) is not None:
        return found
    if state.rows_of(topic.id):
        return None
    value = topic.annotations.get(ADOPT_TOPIC_ID, "")
    unclaimed = _unclaimed_ids(state, topic.name)
    # A person's annotation decides, if there is one.
    if value:
        return _requested(state, topic, value, unclaimed)
    # Brokers create the internal topics (offsets, transactions) themselves, so no person could
    # annotate them in time.
    if topic.is_internal and (found := _sole_unclaimed(state, unclaimed)) is not None:
        return found
    return _required(state, topic, unclaimed) if unclaimed else _restored(state, topic)


def _sole_unclaimed(state: ControllerState, unclaimed: list[uuid.UUID]) -> Adoption | None:
    """Return the adoption of an internal topic whose Topic object was lost in a restore.

    Brokers have the Topic created again, and without the adoption no group and no transaction is
    served. Returns None if several topics match, or if one was orphaned on purpose; then a person
    decides.
    """
    if len(unclaimed) != 1 or unclaimed != _with_rows(state, unclaimed):
        return None
    (topic_id,) = unclaimed
    # A listed orphan was released on purpose, so a person decides about it.
    if any(orphan.topic_id == topic_id for orphan in state.cluster.orphans):
        return None
    return Adoption(
        topic_id=topic_id,
        partitions=_partitions(state, topic_id),
        tiering_status=_tiering_on_record(state, topic_id),
        annotation="",
    )


def own_adoption(state: ControllerState, topic: TopicInfo) -> Adoption | Blocker | None:
    """Return the adoption of partitions that belong to this very object, but not to its status.

    The object's uid is the topic id; the status was lost or restored from an old backup. Returns
    None if brokers report no partitions beyond the recorded ones.
    """
    rows = state.rows_of(topic.id)
    # Rows under the uid prove that the topic was placed for this very object.
    if topic.topic_id is not None or all(
        part in rows for part in state.replica_reports.numbers(topic.id)
    ):
        return None
    partitions = max(_partitions(state, topic.id), topic.partitions)
    # The restored spec may have fewer partitions than exist; all of them are served.
    known = dataclasses.replace(topic, partitions=partitions)
    return _adopt_existing(state, known, topic.id, partitions, annotation="")


def _partitions(state: ControllerState, topic_id: uuid.UUID) -> int:
    """Return the number of partitions that slices and brokers report together."""
    # Slices may have lost the highest partitions, and brokers may be down: the larger number
    # counts.
    in_slices = max(state.rows_of(topic_id), default=-1) + 1
    return max(in_slices, state.replica_reports.partitions(topic_id))


def _restored(state: ControllerState, topic: TopicInfo) -> Adoption | Blocker | None:
    """Return the adoption of the topic id of a topic to be restored from the remote tier.

    Returns None without the annotation, and a refusal if the restore is not possible.
    """
    try:
        origin = topic_restore.checked_origin(state, topic)
    except topic_restore.NotRestorable as error:
        return Blocker(reason=Reason.ADOPTION_REFUSED, message=str(error))
    if origin is None:
        return None
    tiering_status = PersistedTiering(tiering=origin.tiering, since_ms=topic.created_ms)
    # Its partitions are not placed yet.
    return Adoption(
        topic_id=origin.topic_id,
        partitions=0,
        tiering_status=tiering_status,
        annotation=RESTORE_FROM_TIER,
    )


def parse_topic_id(text: str) -> uuid.UUID | None:
    """Parse an id in Kafka's form or as a Kubernetes UID; None if it is neither."""
    text = text.strip()
    try:
        return parse_id(text) if len(text) == 22 else uuid.UUID(text)
    except ValueError:
        return None


def _unclaimed_ids(state: ControllerState, name: str) -> list[uuid.UUID]:
    """Return the ids without a Topic under which slices, brokers or ``leftBehind`` have a name."""
    known = {*state.partitions.ids_named(name), *state.replica_reports.ids_named(name)}
    # A name in leftBehind is taken as well, though nothing else may know it any more.
    known.update(orphan.topic_id for orphan in state.cluster.orphans if orphan.name == name)
    return sorted(id_ for id_ in known if state.topics.by_id(id_) is None)


def late_refusal(topic: TopicInfo) -> Blocker | None:
    """Return the refusal of an adoption annotation for a Topic that already has another id."""
    value = topic.annotations.get(ADOPT_TOPIC_ID, "")
    if not value or parse_topic_id(value) == topic.id:
        return None
    text = (
        f"{ADOPT_TOPIC_ID} names {quoted(value)}, but topic {topic.name} has "
        f"the id {id_text(topic.id)}, which never changes. Remove the "
        "annotation"
    )
    return Blocker(reason=Reason.ADOPTION_REFUSED, message=text)


def _requested(
    state: ControllerState, topic: TopicInfo, value: str, unclaimed: list[uuid.UUID]
) -> Adoption | Blocker:
    """Return the adoption of the topic id in the annotation (``value``), or its refusal."""
    topic_id = parse_topic_id(value)
    # An id without partitions cannot be adopted, because nothing of it is left.
    if topic_id is None or topic_id not in _with_rows(state, unclaimed):
        return Blocker(
            reason=Reason.ADOPTION_REFUSED, message=_wrong(state, topic, value, unclaimed)
        )
    partitions = _partitions(state, topic_id)
    return _adopt_existing(state, topic, topic_id, partitions, annotation=ADOPT_TOPIC_ID)


def _adopt_existing(
    state: ControllerState,
    topic: TopicInfo,
    topic_id: uuid.UUID,
    partitions: int,
    *,
    annotation: str,
) -> Adoption | Blocker:
    """Return the adoption of an existing topic id, or its refusal.

    Refused if ``spec.partitions`` is too low, or if the tiering epoch of tiered partitions is
    unknown. ``annotation``: the annotation that names the id, "" for none.
    """
    if partitions > topic.partitions:
        text = (
            f"topic {topic.name} ({id_text(topic_id)}) has "
            f"{count(partitions, 'partition')}, more than spec.partitions. Set "
            f"spec.partitions to {partitions} or more to adopt it"
        )
        return Blocker(reason=Reason.ADOPTION_REFUSED, message=text)
    recorded = _tiering_on_record(state, topic_id)
    # Rows show data in the remote tier; without the tiering epoch its manifests cannot be written.
    tiered = any(row.manifest for row in state.rows_of(topic_id).values())
    if tiered and not recorded.tiering.ever_tiered:
        return _tiering_unknown(state, topic, topic_id)
    return Adoption(
        topic_id=topic_id,
        partitions=partitions,
        tiering_status=recorded,
        annotation=annotation,
    )


def _tiering_unknown(state: ControllerState, topic: TopicInfo, topic_id: uuid.UUID) -> Blocker:
    """Return the refusal of a tiered topic whose epoch is unknown.

    Every head of the tier would reject an epoch that is too low.
    """
    text = (
        f"topic {topic.name} ({id_text(topic_id)}) has data in the tier, but "
        "its tiered epoch is not recorded. To adopt it, add its entry with "
        f"tiering to status.leftBehind of Cluster {state.cluster.key}"
    )
    return Blocker(reason=Reason.ADOPTION_REFUSED, message=text)


def _wrong(state: ControllerState, topic: TopicInfo, value: str, unclaimed: list[uuid.UUID]) -> str:
    adoptable = _with_rows(state, unclaimed)
    others = f"set it to {_listed(adoptable)}" if adoptable else "there is no topic to adopt"
    creation = "" if unclaimed else ", or remove the annotation to create a new topic"
    forget = _forget(state, [id_ for id_ in unclaimed if id_ not in adoptable])
    return (
        f"{ADOPT_TOPIC_ID} names {quoted(value)}, but topic {topic.name} is not "
        f"known under that id: {others}{creation}{forget}"
    )


def _required(state: ControllerState, topic: TopicInfo, unclaimed: list[uuid.UUID]) -> Blocker:
    """Return the refusal of a new Topic because topics of its name exist, with all remedies."""
    adoptable = _with_rows(state, unclaimed)
    remedies = []
    if adoptable:
        remedies.append(
            f"annotate this Topic with {ADOPT_TOPIC_ID}: {_listed(adoptable)} to adopt it"
        )
    forget = _forget(state, [id_ for id_ in unclaimed if id_ not in adoptable])
    text = (
        f"topic {topic.name} exists under id {_listed(unclaimed)}, which belongs "
        "to no Topic. To resolve this, "
        f"{', or '.join([*remedies, _ANOTHER_NAME])}{forget}"
    )
    return Blocker(reason=Reason.ADOPTION_REQUIRED, message=text)


def _forget(state: ControllerState, ids: list[uuid.UUID]) -> str:
    if not ids:
        return ""
    named = ",".join(map(id_text, ids[:_LISTED_MAX]))
    return (
        ". To forget topics without partitions, annotate Cluster "
        f"{state.cluster.key} with {FORGET_LEFT_BEHIND}: {named}"
    )


def _with_rows(state: ControllerState, ids: list[uuid.UUID]) -> list[uuid.UUID]:
    """Return the ids whose partitions are in slices or on brokers and are not being deleted."""
    known = [id_ for id_ in ids if state.rows_of(id_) or state.replica_reports.numbers(id_)]
    # A topic that is being deleted is on its way out, whatever brokers still have.
    return [id_ for id_ in known if not state.tombstones_of(id_)]


def _tiering_on_record(state: ControllerState, topic_id: uuid.UUID) -> PersistedTiering:
    """Return the tiering with the highest epoch in the Cluster's status and brokers' reports."""
    entries = [left.tiering_status for left in state.cluster.orphans if left.topic_id == topic_id]
    entries.append(PersistedTiering(tiering=state.replica_reports.tiering(topic_id)))
    # A tiered epoch never decreases, so the highest one is the latest.
    return max(entries, key=lambda status: status.tiering.epoch)


def _listed(ids: list[uuid.UUID]) -> str:
    shown = " or ".join(map(id_text, ids[:_LISTED_MAX]))
    rest = len(ids) - _LISTED_MAX
    return f"{shown} (and {rest} more)" if rest > 0 else shown
