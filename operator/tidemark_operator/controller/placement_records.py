"""Placement records: one write for the placements of many new topics, ahead of their statuses.

A broker receives a partition only after its placement is stored in another object than its slice. A
slice that loses its rows then never counts as one that had none (absence is not evidence). Usually
that object is the Topic, by ``status.partitionsPlaced``. When many topics are placed at once, a
slice stores the records of all of them in one write, and each status is written once, when the
brokers have answered. The next write of the slice drops a record that the status counts, or of
whose topic nothing is left.
"""

import uuid
from collections.abc import Mapping

from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import TopicInfo


def partitions_in_rows(state: ControllerState, topic: TopicInfo) -> int:
    """Return the number of partitions placed from 0 without a gap, which are sent to brokers."""
    rows, count = state.rows_of(topic.id), max(topic.partitions, state.partitions_of(topic))
    return next((part for part in range(count) if part not in rows), count)


def kept(
    state: ControllerState, index: int, fresh: Mapping[uuid.UUID, int]
) -> dict[uuid.UUID, int]:
    """Return the records with which a slice is written."""
    # A record that the status counts is dropped by this write.
    found = {id_: number for id_, number in state.records[index].items() if _needed(state, id_)}
    found.update((id_, number) for id_, number in fresh.items() if state.record_home(id_) == index)
    return found


def counted(topic: TopicInfo) -> int:
    """Return the number of partitions that the status itself counts as placed."""
    number = topic.status.get("partitionsPlaced")
    return number if isinstance(number, int) else 0


def _needed(state: ControllerState, topic_id: uuid.UUID) -> bool:
    topic = state.topic_by_id(topic_id)
    if topic is None:
        # Without a Topic the record is still the evidence that the rows were placed.
        return bool(state.rows_of(topic_id) or state.tombstones_of(topic_id))
    return counted(topic) < state.records[state.record_home(topic_id)][topic_id]
