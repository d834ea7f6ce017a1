"""Elections on request (Kafka's ElectLeaders, KIP-460).

A request elects the preferred leader, or an unclean one if no other replica can lead.
"""

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from tidemark_operator.controller import elections
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.model import NO_LEADER, PartitionRow, TopicInfo

_NOT_NEEDED = "Leader election not needed for topic partition."


def elect(
    draft: Draft, topic: TopicInfo, partitions: Iterable[int], *, unclean: bool
) -> dict[int, tuple[ErrorCode, str | None]]:
    """Draft elections; return Kafka's code and message for each partition."""
    rows = draft.rows_of(topic.id)
    return {
        partition: _elect(draft, topic, rows.get(partition), unclean) for partition in partitions
    }


def _elect(
    draft: Draft, topic: TopicInfo, row: PartitionRow | None, unclean: bool
) -> tuple[ErrorCode, str | None]:
    """Decide one partition of Kafka's ElectLeaders (KIP-460); return Kafka's error and message."""
    if row is None:
        return ErrorCode.unknown_topic_or_partition, "This server does not host this partition."
    if topic.paused:
        return ErrorCode.policy_violation, f"Topic {topic.key} is paused"
    if unclean:
        return _elect_uncleanly(draft, row)
    # Kafka answers a request without effect with an error of its own.
    if row.hosts and row.leader == row.hosts[0]:
        return ErrorCode.election_not_needed, _NOT_NEEDED
    if elections.prefer(draft, row):
        return ErrorCode.none, None
    text = f"the preferred leader of partition {row.partition} is not live, or not in sync"
    return ErrorCode.preferred_leader_not_available, text


def _elect_uncleanly(draft: Draft, row: PartitionRow) -> tuple[ErrorCode, str | None]:
    # An unclean election is only for offline partitions, as in Kafka.
    if row.leader != NO_LEADER:
        return ErrorCode.election_not_needed, _NOT_NEEDED
    if elections.lead_uncleanly(draft, row):
        return ErrorCode.none, None
    text = f"partition {row.partition} has no live replica that can lead"
    return ErrorCode.eligible_leaders_not_available, text
