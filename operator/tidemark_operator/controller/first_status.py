"""When the first status of new partitions is written: at once, or with their brokers' answers.

A Topic that is made, or grows, is not Ready before its brokers have answered, which takes them a
moment. Where much is to be done that moment is not told: the placement goes on record with those of
others (:mod:`placement_records`), and a status that would say nothing but that it waits is put off,
no longer than :data:`PUT_OFF_MS`. So one of a thousand new Topics costs one write of its status.
"""

from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import TopicInfo
from tidemark_operator.controller.placement_records import counted, partitions_in_rows
from tidemark_operator.controller.topics import TopicDecision

PUT_OFF_MS = 2_000
#: So many may be on record; the others' status is written first.
RECORDS_MAX = 2_000


def says_nothing_yet(state: ControllerState, topic: TopicInfo, decision: TopicDecision) -> bool:
    """Whether all that could be told of a Topic is that partitions of it are placed, and that
    their brokers have not answered."""
    return (
        decision == TopicDecision(tiering_status=topic.tiering_status)
        and counted(topic) < topic.partitions == partitions_in_rows(state, topic)
        and state.acknowledgements.awaits_anything(topic.id)
    )


def put_on_record(draft: Draft, key: str) -> bool:
    """Record what is placed of a Topic and stored by now; False: there is no room."""
    topic, state = draft.state.topics.get(key), draft.state
    if topic is None or sum(map(len, state.records)) + len(draft.records) >= RECORDS_MAX:
        return False
    placed = partitions_in_rows(state, topic)
    if placed > topic.partitions_placed:
        draft.put_record(topic.id, placed)
    return True


class FirstStatuses:
    """Since when each status is put off, by object key; no more than there are Topics."""

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}

    def put_off_ms(self, key: str, *, now_ms: int) -> int:
        """How much longer a status waits that says nothing yet; 0: it is written now."""
        since_ms = self._since_ms.setdefault(key, now_ms)
        return max(0, since_ms + PUT_OFF_MS - now_ms)

    def forget(self, key: str) -> None:
        """Something can be told, or the Topic is gone."""
        self._since_ms.pop(key, None)
