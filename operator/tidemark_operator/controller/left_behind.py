"""``leftBehind`` of a Cluster's status: topics that ``deletionPolicy: Orphan`` released.

The list has a limit and two exits: a Topic that adopts an id removes its entry, and
``tidemark.dev/forget-left-behind`` names ids to remove. A named id that is not in the list changes
nothing, now or later, because an id is never used twice.
"""

import uuid
from collections.abc import Sequence

from tidemark.annotations import ADOPT_TOPIC_ID, FORGET_LEFT_BEHIND
from tidemark.ids import id_text
from tidemark.message_text import count, names
from tidemark_operator.controller.adoption import parse_topic_id
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event, normal
from tidemark_operator.controller.state.model import ClusterInfo, OrphanedTopic, TopicInfo

#: Maximum of the schema.
LEFT_BEHIND_MAX = 1024


def settle(state: ControllerState) -> tuple[tuple[OrphanedTopic, ...], tuple[Event, ...]]:
    """Return the list without adopted and forgotten topics, and the Events of forgotten ones."""
    cluster = state.cluster
    forgotten = _to_forget(cluster)
    kept = [left for left in cluster.orphans if not _adopted(state, left.topic_id)]
    stays = tuple(left for left in kept if left.topic_id not in forgotten)
    dropped = [left for left in kept if left.topic_id in forgotten]
    return stays, _forgotten_events(cluster, dropped)


def _adopted(state: ControllerState, topic_id: uuid.UUID) -> bool:
    """Return whether a Topic has the id.

    One that is being released has its entry before it is deleted.
    """
    topic = state.topics.by_id(topic_id)
    return topic is not None and topic.deletion_ms is None


def _to_forget(cluster: ClusterInfo) -> set[uuid.UUID]:
    named = cluster.annotations.get(FORGET_LEFT_BEHIND, "").split(",")
    return {topic_id for text in named if (topic_id := parse_topic_id(text)) is not None}


def _forgotten_events(cluster: ClusterInfo, dropped: Sequence[OrphanedTopic]) -> tuple[Event, ...]:
    if not dropped:
        return ()
    named = names([f"{left.name} ({id_text(left.topic_id)})" for left in dropped], shown=5)
    text = (
        f"{count(len(dropped), 'orphaned topic')} forgotten by "
        f"{FORGET_LEFT_BEHIND}: {named}. Their data is not deleted"
    )
    return (normal("Cluster", cluster.key, "LeftBehindForgotten", text),)


def orphan_of(topic: TopicInfo, *, now_ms: int) -> OrphanedTopic:
    """Return the entry of a Topic that is released while its topic stays."""
    return OrphanedTopic(
        topic_id=topic.id, name=topic.name, since_ms=now_ms, tiering_status=topic.tiering_status
    )


def added(cluster: ClusterInfo, orphan: OrphanedTopic) -> tuple[OrphanedTopic, ...] | None:
    """Return the list with one more entry; None if it is full."""
    # A repeated release, after a crash, must not add a second entry.
    if any(left.topic_id == orphan.topic_id for left in cluster.orphans):
        return cluster.orphans
    # A full list blocks the release: without its entry the topic's id would be lost.
    if len(cluster.orphans) >= LEFT_BEHIND_MAX:
        return None
    return (*cluster.orphans, orphan)


def full_message(cluster: ClusterInfo) -> str:
    """Return the message of a Topic that cannot be released, with both exits."""
    first = id_text(cluster.orphans[0].topic_id)
    return (
        f"status.leftBehind of Cluster {cluster.key} has reached its limit of "
        f"{LEFT_BEHIND_MAX} topics. Adopt one of them with a Topic of its name "
        f"and {ADOPT_TOPIC_ID}, or annotate the Cluster with "
        f"{FORGET_LEFT_BEHIND}: {first} (separate several ids with commas)"
    )
