"""First rows of a Topic whose records are only in the tier.

``tidemark restore`` creates the Topic with an annotation that names its origin
(:mod:`tidemark.tier.maintenance.topic_restore`). It takes over the id of its heads. Its partitions
are placed like new ones, but RECOVERING: the leader restores the log from the tier first. Once a
partition is placed the annotation has no effect any more.
"""

import dataclasses
import uuid

from tidemark.annotations import RESTORE_FROM_TIER
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.message_text import count
from tidemark.tier.maintenance.topic_restore import TierOrigin
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import NO_LEADER, PartitionRow, TopicInfo


class NotRestorable(Exception):
    """The Topic cannot start as its annotation says; the message says what to do."""


def requested_origin(topic: TopicInfo) -> TierOrigin | None:
    """Return the origin of a Topic to be restored; None for a new one.

    Raises :class:`NotRestorable`.
    """
    text = topic.annotations.get(RESTORE_FROM_TIER, "")
    if not text:
        return None
    try:
        return TierOrigin.parse(text)
    except ValueError as error:
        raise NotRestorable(
            f"{RESTORE_FROM_TIER}: {error}. Run tidemark restore again, or remove the annotation"
        ) from error


def unverified_origin(topic: TopicInfo) -> uuid.UUID | None:
    """Return the id of a Topic to be restored, whose deletion has to be checked in the tier.

    The tier has tombstones forever. The annotation may be in a manifest that is applied again.
    """
    try:
        origin = requested_origin(topic)
    except NotRestorable:
        return None
    return None if origin is None or topic.topic_id is not None else origin.topic_id


def checked_origin(state: ControllerState, topic: TopicInfo) -> TierOrigin | None:
    """Return the topic in the remote tier from which a Topic is to be restored, after all checks.

    None for a Topic without the annotation. Raises :class:`NotRestorable`.
    """
    origin = requested_origin(topic)
    if origin is None:
        return None
    if origin.topic_id in state.not_in_tier:
        raise NotRestorable(f"{RESTORE_FROM_TIER}: {state.not_in_tier[origin.topic_id]}")
    if state.tombstones_of(origin.topic_id):
        raise NotRestorable(
            f"{RESTORE_FROM_TIER} names a deleted topic. Remove the annotation "
            "to create a new topic"
        )
    # Two Topics with one id would write to the same tier.
    if state.rows_of(origin.topic_id) or state.topics.by_id(origin.topic_id) is not None:
        raise NotRestorable(
            f"{RESTORE_FROM_TIER} names an id that is in use, because this "
            "topic already exists. Delete this Topic"
        )
    # Partitions are never removed, so the spec must cover those in the tier.
    if topic.partitions < origin.partitions:
        raise NotRestorable(
            f"topic {topic.name} has {count(origin.partitions, 'partition')} in the "
            f"tier. Set spec.partitions to {origin.partitions} or more"
        )
    return origin


def first_row(topic: TopicInfo, row: PartitionRow) -> PartitionRow:
    """Return a new partition's row with the state that a restore from the tier requires.

    The row stays unchanged for a topic that is not restored.
    """
    try:
        origin = requested_origin(topic)
    except NotRestorable:
        return row
    if origin is None or origin.topic_id != topic.id:
        return row
    # The tier has no such partition: it is new, or was lost without a trace.
    if row.partition >= origin.partitions:
        return dataclasses.replace(row, leader_epoch=max(row.leader_epoch, origin.leader_epoch))
    # The epoch is above those in the tier. A RECOVERING leader reads the tier before it serves
    # (KIP-704).
    return dataclasses.replace(
        row,
        isr=() if row.leader == NO_LEADER else (row.leader,),
        leader_epoch=origin.leader_epoch,
        manifest=True,
        leader_recovery_state=LeaderRecoveryState.RECOVERING,
    )


def first_producer_id(state: ControllerState) -> int:
    """Return the first producer id above those of all restored topics."""
    found = 0
    for topic in state.topics.values():
        try:
            origin = requested_origin(topic)
        except NotRestorable:
            continue
        found = max(found, 0 if origin is None else origin.first_producer_id)
    return found
