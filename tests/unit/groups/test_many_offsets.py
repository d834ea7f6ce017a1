"""Requests for tens of thousands of offsets: other tasks run meanwhile.

The tests measure the processor time of the loop's own thread between two turns of another task.
"""

from pathlib import Path
from typing import Any

from tests.answers import room
from tests.control_messages import partition_states, topic_state
from tests.longest_turn import TURN_MS, longest_turn
from tests.unit.api import api_requests as kafka
from tests.unit.groups.group_broker import LISTENER, NONE, TOPIC_ID, GroupBroker, broker, row
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.api.client import Client

MANY = 19_000


async def ask(made: GroupBroker, request: Any) -> tuple[Any, float]:
    """Return the answer, and the longest turn in milliseconds."""
    frame = encode_request(request, 5, "client")[4:]
    client = Client("10.0.0.1:1", LISTENER, None)
    async with longest_turn() as longest:
        pieces = await made.dispatcher.serve(memoryview(frame), room(), client)
    assert pieces is not None
    answer_type = kafka.answer_type(request.__api_key__, request.__version__)
    return decode_response(answer_type, b"".join(pieces)[4:])[1], longest[0]


async def test_no_client_waits_for_a_request_with_very_many_partitions(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        rows = tuple(row(1, leader=2, replicas=(2,), partition=number) for number in range(MANY))
        topic = topic_state(TOPIC_ID, "t", partitions=rows)
        made.node.context.metadata.apply(partition_states(topic))

        # One commit, one fetch and one deletion follow, each of all partitions.
        parts = tuple(
            kafka.nested(
                8, 9, "OffsetCommitRequestPartition", partition_index=number,
                committed_offset=number, committed_leader_epoch=3, committed_metadata="text",
            )
            for number in range(MANY)
        )  # fmt: skip
        named = kafka.nested(8, 9, "OffsetCommitRequestTopic", name="t", partitions=parts)
        answer, longest_ms = await ask(
            made,
            kafka.request(
                8, 9, group_id="g", generation_id_or_member_epoch=-1, member_id="",
                group_instance_id=None, topics=(named,),
            ),
        )  # fmt: skip
        assert {partition.error_code for partition in answer.topics[0].partitions} == {NONE}
        assert longest_ms < TURN_MS

        group = kafka.nested(9, 8, "OffsetFetchRequestGroup", group_id="g", topics=None)
        answer, longest_ms = await ask(
            made, kafka.request(9, 8, groups=(group,), require_stable=True)
        )
        found = [partition.committed_offset for partition in answer.groups[0].topics[0].partitions]
        assert found == list(range(MANY))
        assert longest_ms < TURN_MS

        answer, longest_ms = await ask(made, kafka.request(42, 2, groups_names=("g",)))
        assert answer.results[0].error_code is NONE
        assert longest_ms < TURN_MS
        assert made.groups.room.used_bytes == 0
