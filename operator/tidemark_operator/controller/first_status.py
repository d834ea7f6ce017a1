"""First status of new partitions: written at once, or later with their brokers' answers.

A new or growing Topic is not Ready before its brokers have answered, a moment later. Under load
that moment is not shown. The placement is recorded together with others (:mod:`placement_records`),
and a status that would only say that it waits is delayed, by at most :data:`PUT_OFF_MS`. So each of
a thousand new Topics costs one write of its status.
"""

from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import TopicInfo
from tidemark_operator.controller.placement_records import counted, partitions_in_rows
from tidemark_operator.controller.topics import TopicDecision

PUT_OFF_MS = 2_000
#: Records in all slices; for further topics the status is written at once.
RECORDS_MAX = 2_000


def is_placement_only(state: ControllerState, topic: TopicInfo, decision: TopicDecision) -> bool:
    """Return whether a status could only say that partitions are placed and brokers have not
    answered.
    """
    # Any other fact in the decision, such as an event or a refusal, is written at once.
    return (
        decision == TopicDecision(tiering_status=topic.tiering_status)
        and counted(topic) < topic.partitions == partitions_in_rows(state, topic)
        and state.acknowledgements.awaits_anything(topic.id)
    )


def record_placement(draft: Draft, key: str) -> bool:
    """Record the placement of a Topic that is stored by now; False if there is no room."""
    topic, state = draft.state.topics.get(key), draft.state
    # The bound keeps the records small: they are part of a slice, which has a limit.
    if topic is None or sum(map(len, state.records)) + len(draft.records) >= RECORDS_MAX:
        return False
    placed = partitions_in_rows(state, topic)
    # Only stored rows count, because the record is the evidence for them.
    if placed > topic.partitions_placed:
        draft.put_record(topic.id, placed)
    return True


class FirstStatuses:
    """Start of each delayed status by object key; at most one per Topic."""

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}

    def delay_ms(self, key: str, *, now_ms: int) -> int:
        """Return how much longer a status is delayed; 0: write it now."""
        since_ms = self._since_ms.setdefault(key, now_ms)
        return max(0, since_ms + PUT_OFF_MS - now_ms)

    def forget(self, key: str) -> None:
        """Forget a Topic whose status is written, or that is deleted."""
        self._since_ms.pop(key, None)
