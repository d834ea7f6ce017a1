"""Members of KIP-848's protocol that subscribe to thousands of topics, on a real log: others have
the loop meanwhile (measured as in :mod:`.test_many_entries`)."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.answers import room
from tests.control_messages import partition_states, topic_state
from tests.longest_turn import TURN_MS, longest_turn
from tests.unit.api import api_requests as kafka
from tests.unit.groups.group_broker import LISTENER, NONE, GroupBroker, broker, row
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.api.client import Client

HEARTBEAT = 68
BARE: dict[str, Any] = {
    "group_id": "g",
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": kafka.duration(-1),
    "subscribed_topic_names": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": None,
}


class KipMember:
    """Its requests and answers are encoded in a thread, because they are not the broker's work."""

    def __init__(self, made: GroupBroker, member_id: str, names: tuple[str, ...]) -> None:
        self.made, self.member_id, self.names = made, member_id, names
        self.epoch, self.count, self.confirmed = 0, 0, 0
        self.owned: Any = ()

    async def beat(self) -> None:
        fields: dict[str, Any] = {"member_id": self.member_id, "member_epoch": self.epoch}
        # The first heartbeat joins the group with its subscription (KIP-848).
        if self.epoch == 0:
            fields["rebalance_timeout"] = kafka.duration(60_000)
            fields["subscribed_topic_names"] = self.names
            fields["topic_partitions"] = ()
        elif self.confirmed != self.count:
            # Confirm the assignment, as a client does after its callbacks.
            fields["topic_partitions"] = self.owned
        frame = await asyncio.to_thread(self._frame, fields)
        client = Client("10.0.0.1:1", LISTENER, None)
        pieces = await self.made.dispatcher.serve(
            memoryview(frame), room(self.made.answer_bytes), client
        )
        assert pieces is not None
        answer = await asyncio.to_thread(self._answer, pieces)
        assert answer.error_code is NONE
        self.epoch, self.confirmed = answer.member_epoch, self.count
        if answer.assignment is not None:
            self.owned, self.count = await asyncio.to_thread(_owned, answer)

    def _frame(self, fields: dict[str, Any]) -> bytes:
        return encode_request(kafka.request(HEARTBEAT, 1, **BARE | fields), 5, "client")[4:]

    def _answer(self, pieces: Any) -> Any:
        return decode_response(kafka.answer_type(HEARTBEAT, 1), b"".join(pieces)[4:])[1]


def _owned(answer: Any) -> tuple[Any, int]:
    owned = tuple(
        kafka.nested(
            HEARTBEAT,
            1,
            "TopicPartitions",
            topic_id=topic_partition.topic_id,
            partitions=topic_partition.partitions,
        )
        for topic_partition in answer.assignment.topic_partitions
    )
    return owned, sum(len(item.partitions) for item in owned)


@pytest.mark.parametrize(("topics", "partitions"), [(2_000, 8), (9_000, 1)])
async def test_subscription_to_many_topics_does_not_block_the_loop(
    tmp_path: Path, topics: int, partitions: int
) -> None:
    """Two members share the topics: the second joins, the first releases half, then both leave."""
    names = tuple(f"a-topic-{number}" for number in range(topics))
    rows = tuple(row(0, leader=2, replicas=(2,), partition=index) for index in range(partitions))
    async with broker(tmp_path, consumer_assignment_interval_ms=0) as made:
        made.node.context.metadata.apply(
            partition_states(
                *(
                    topic_state(uuid.UUID(int=1000 + number), name, partitions=rows)
                    for number, name in enumerate(names)
                ),
                full=False,
            )
        )
        # Both subscribe to the same topics.
        members = [KipMember(made, name, names) for name in "ab"]
        async with longest_turn() as longest:
            for _ in range(100):
                for member in members:
                    await member.beat()
                await asyncio.sleep(0.02)
                made.node.now_s += 0.1
                # Done once each member has half of the partitions.
                if [member.count for member in members] == [topics * partitions // 2] * 2:
                    break
            for member in members:
                # Epoch -1 leaves the group.
                member.epoch, member.confirmed = -1, member.count
                await member.beat()
    assert [member.count for member in members] == [topics * partitions // 2] * 2
    assert longest[0] < TURN_MS
