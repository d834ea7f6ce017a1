"""A Topic whose records lie in the tier and nowhere else: its first rows.

``tidemark restore`` makes the Topic with an annotation that says from where it begins
(:mod:`tidemark.tier.topic_restore`). It takes the id over that its heads have, and its partitions
are placed like new ones, but RECOVERING: whoever leads asks the tier first and takes the log over
from there. Once a partition is placed the annotation means nothing any more.
"""

import dataclasses
import uuid

from tidemark.annotations import RESTORE_FROM_TIER
from tidemark.tier.topic_restore import TierOrigin
from tidemark.wire.control import LeaderRecoveryState
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import (
    NO_LEADER,
    PartitionRow,
    TopicInfo,
)


class NotRestorable(Exception):
    """The Topic cannot begin as its annotation says; the message says what to do."""


def asked(topic: TopicInfo) -> TierOrigin | None:
    """From where the Topic is to begin; None: it is new. Raises :class:`NotRestorable`."""
    text = topic.asked.get(RESTORE_FROM_TIER, "")
    if not text:
        return None
    try:
        return TierOrigin.parse(text)
    except ValueError as error:
        raise NotRestorable(
            f"{RESTORE_FROM_TIER}: {error}. Run tidemark restore again, or remove the annotation"
        ) from error


def doubtful(topic: TopicInfo) -> uuid.UUID | None:
    """The topic that a Topic is to begin with: whether it was deleted is asked of the tier, which
    keeps tombstones for ever. The annotation may stand in a manifest that is applied again."""
    try:
        origin = asked(topic)
    except NotRestorable:
        return None
    return None if origin is None or topic.topic_id is not None else origin.topic_id


def checked(state: ControllerState, topic: TopicInfo) -> TierOrigin | None:
    """The same, where nothing speaks against it."""
    origin = asked(topic)
    if origin is None:
        return None
    if origin.topic_id in state.not_in_tier:
        raise NotRestorable(f"{RESTORE_FROM_TIER}: {state.not_in_tier[origin.topic_id]}")
    if state.tombstones_of(origin.topic_id):
        raise NotRestorable(
            f"{RESTORE_FROM_TIER} names a deleted topic. Remove the annotation "
            "to create a new topic"
        )
    if state.rows_of(origin.topic_id) or state.topic_by_id(origin.topic_id) is not None:
        raise NotRestorable(
            f"{RESTORE_FROM_TIER} names an id that is in use, because this "
            "topic already exists. Delete this Topic"
        )
    if topic.partitions < origin.partitions:
        raise NotRestorable(
            f"topic {topic.name} has {origin.partitions} partitions in the "
            f"tier. Set spec.partitions to {origin.partitions} or more"
        )
    return origin


def first_row(topic: TopicInfo, row: PartitionRow) -> PartitionRow:
    """A row that is about to be placed, as the tier wants it."""
    try:
        origin = asked(topic)
    except NotRestorable:
        return row
    if origin is None or origin.topic_id != topic.id:
        return row
    if row.partition >= origin.partitions:  # new, or lost without a trace in the tier
        return dataclasses.replace(row, leader_epoch=max(row.leader_epoch, origin.leader_epoch))
    return dataclasses.replace(
        row,
        isr=() if row.leader == NO_LEADER else (row.leader,),
        leader_epoch=origin.leader_epoch,
        manifest=True,
        leader_recovery_state=LeaderRecoveryState.RECOVERING,
    )


def first_producer_id(state: ControllerState) -> int:
    """The first that no restored topic has seen."""
    found = 0
    for topic in state.topics.values():
        try:
            origin = asked(topic)
        except NotRestorable:
            continue
        found = max(found, 0 if origin is None else origin.first_producer_id)
    return found
