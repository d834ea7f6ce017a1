"""Placements on record: for many new topics at once, what each of them would say in its status.

A broker is told of a partition only once it stands in another object than its slice that it was
placed: a slice that loses its rows is then never taken for one that had none (absence is not
evidence). That object is the Topic, by ``status.partitionsPlaced``. Where many topics are placed at
once the record goes into a slice first, one write for all of them, and each status is written once,
when the brokers have answered. A record is left out of its slice by the next write after the status
counts what it says, or after nothing is left of the topic.
"""

import uuid
from collections.abc import Mapping

from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import TopicInfo


def partitions_in_rows(state: ControllerState, topic: TopicInfo) -> int:
    """Partitions placed from 0 without a hole: only those are shown to brokers."""
    rows, count = state.rows_of(topic.id), max(topic.partitions, state.partitions_of(topic))
    return next((part for part in range(count) if part not in rows), count)


def kept(
    state: ControllerState, index: int, fresh: Mapping[uuid.UUID, int]
) -> dict[uuid.UUID, int]:
    """The records that a slice is written with."""
    found = {id_: number for id_, number in state.records[index].items() if _needed(state, id_)}
    found.update((id_, number) for id_, number in fresh.items() if state.record_home(id_) == index)
    return found


def counted(topic: TopicInfo) -> int:
    """The partitions that the status itself counts as placed."""
    number = topic.status.get("partitionsPlaced")
    return number if isinstance(number, int) else 0


def _needed(state: ControllerState, topic_id: uuid.UUID) -> bool:
    topic = state.topic_by_id(topic_id)
    if topic is None:
        return bool(state.rows_of(topic_id) or state.tombstones_of(topic_id))
    return counted(topic) < state.records[state.record_home(topic_id)][topic_id]
