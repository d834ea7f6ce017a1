"""Rebuilding in the Cluster's status, with topics that only brokers report."""

from tidemark.ids import id_text
from tidemark.message_text import count, names, numbered, them
from tidemark.reasons import RebuildingReason
from tidemark_operator.controller import rebuilding as rebuilding_core
from tidemark_operator.controller.rebuilding import is_done, lost
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import ClusterRebuilding
from tidemark_operator.controller.status.conditions import time_text

#: Maximum of the schema; further ones are listed once these are adopted.
STRAY_TOPICS_MAX = 64
#: Topics in a message; the rest are counted.
NAMED_MAX = 5
#: Status fields that are absent without a value.
FIELDS = ("rebuilding", "strayTopics")


def rendered(state: ControllerState, *, now_ms: int) -> dict[str, object]:
    """Return the status fields of a rebuilding."""
    return {"rebuilding": _rebuilding(state, now_ms), "strayTopics": _stray_topics(state)}


def entry(rebuilding: ClusterRebuilding) -> dict[str, object]:
    """Return the entry of one rebuilding."""
    reason = (
        RebuildingReason.SLICES_BEHIND if rebuilding.behind else RebuildingReason.SLICES_MISSING
    )
    return {"since": rebuilding.since, "reason": reason}


def _rebuilding(state: ControllerState, now_ms: int) -> dict[str, object] | None:
    """Return the rebuilding's entry, None if there is none.

    It is recorded before anything is done because of it, and removed when nothing is left to do.
    """
    known = state.cluster.rebuilding
    if known is not None:
        return None if is_done(state) else entry(known)
    # A loss that no sign revealed at the takeover is recorded here before its rows are rebuilt.
    if any(lost(state, topic) for topic in state.topics.values() if topic.deletion_ms is None):
        return entry(ClusterRebuilding(since=time_text(now_ms), behind=False))
    return None


def _stray_topics(state: ControllerState) -> list[dict[str, str]]:
    """Return topics that brokers have but no Topic object describes, for the Cluster's status.

    Their data stays, and a Topic can adopt one by its id.
    """
    left = {orphan.topic_id for orphan in state.cluster.orphans}
    # A tombstoned topic is being deleted on its brokers, so it cannot be adopted.
    found = sorted(
        (state.replica_reports.name(topic_id), id_text(topic_id))
        for topic_id in state.replica_reports.topic_ids()
        if topic_id not in left
        and state.topics.by_id(topic_id) is None
        and not state.tombstones_of(topic_id)
    )
    return [{"topicName": name, "topicId": text} for name, text in found[:STRAY_TOPICS_MAX]]


def sentence(state: ControllerState) -> str:
    """Return the Cluster's condition message while rows are rebuilt from brokers' reports."""
    rebuilding = state.cluster.rebuilding
    why = "outdated" if rebuilding and rebuilding.behind else "lost"
    text = f"PartitionSlices are {why}. Partitions are rebuilt from broker reports"
    silent = rebuilding_core.silent(state)
    if silent:
        text += (
            f". {numbered('Broker', silent, 'has')} not reported. Start {them(silent)}, or delete "
            "each Broker that never returns"
        )
    waiting = rebuilding_core.waiting_topics(state)
    if not waiting:
        return text
    named = names(waiting, shown=NAMED_MAX)
    return f"{text}. {count(len(waiting), 'topic')} not rebuilt yet: {named}"
