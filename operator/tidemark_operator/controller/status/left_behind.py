"""Entries of ``leftBehind`` in a Cluster's status
(:mod:`tidemark_operator.controller.left_behind`).
"""

from collections.abc import Sequence

from tidemark.ids import id_text
from tidemark_operator.controller.disablement import policy_name, state_name
from tidemark_operator.controller.model import OrphanedTopic
from tidemark_operator.controller.status.conditions import time_text


def rendered(orphans: Sequence[OrphanedTopic]) -> list[dict[str, object]]:
    """Return the entries for a status."""
    return [_entry(left) for left in orphans]


def _entry(left: OrphanedTopic) -> dict[str, object]:
    """Return the entry of one orphaned topic in ``status.leftBehind``."""
    entry: dict[str, object] = {
        "topicName": left.name,
        "topicId": id_text(left.topic_id),
        "since": time_text(left.since_ms),
    }
    tiering = left.tiering_status.tiering
    if tiering.ever_tiered:
        policy = {} if tiering.policy is None else {"policy": policy_name(tiering.policy)}
        entry["tiering"] = {
            "state": state_name(tiering.state),
            "epoch": tiering.epoch,
            **policy,
        }
    return entry
