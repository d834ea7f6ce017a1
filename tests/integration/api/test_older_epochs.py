"""What the operator asks before it deletes, where an unclean leader has records of an *older* epoch
in the place of the resolved ones. The real broker answers; the controller's core decides."""

import uuid
from typing import Any

import pytest
from kio.schema.list_offsets.v8.response import ListOffsetsResponse
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse

from tests.integration.api.api_broker import ApiBroker
from tests.unit.api import api_requests as kafka
from tidemark_operator.controller import deletion
from tidemark_operator.controller.deletion_values import (
    EARLIEST,
    DeleteCommand,
    DeletionInfo,
    DeletionTarget,
    ResolvedOffset,
)
from tidemark_operator.engines import kafka_calls


async def append(broker: ApiBroker, batches: int) -> None:
    for _ in range(batches):
        answer: Any = await broker.ask(
            kafka.produce(9, "t", kafka.batch(b"x", b"y"), acks=1), kafka.answer_type(0, 9)
        )
        assert int(answer.responses[0].partition_responses[0].error_code) == 0


@pytest.mark.parametrize("batches_since", [0, 1], ids=["nothing written since", "written since"])
async def test_records_of_an_older_epoch_are_not_what_was_meant(
    broker: ApiBroker, batches_since: int
) -> None:
    """Broker 1 leads in epoch 4 and is cut off from the operator, not from clients. Another one is
    elected in epoch 5 and writes offsets 6 to 9; a RecordDeletion is resolved there, below 10. Then
    broker 1 takes records with acks=1, and is elected uncleanly in epoch 6."""
    topic_id = await broker.create("t", leader_epoch=4, replicas=(1, 3))
    await append(broker, 7)
    await broker.create("t", leader_epoch=6, replicas=(1,), topic_id=topic_id)
    await append(broker, batches_since)
    view = DeletionInfo(
        key="ns/d",
        uid=uuid.uuid4(),
        generation=1,
        topic_key="ns/t",
        targets=(DeletionTarget(partition=0, before_offset=-1),),
        created_ms=0,
        topic_id=topic_id,
        resolved={0: ResolvedOffset(offset=10, leader_epoch=5)},
    )
    command = DeleteCommand(
        node_id=1,
        topic_id=topic_id,
        topic_name="t",
        offsets={0: 10},
        leader_epochs={0: 6},
        epochs={0: 5},
    )
    starts = await broker.ask(kafka_calls.list_offsets("t", {0: EARLIEST}), ListOffsetsResponse)
    ends = await broker.ask(kafka_calls.epoch_ends("t", {0: 5}), OffsetForLeaderEpochResponse)
    after, offsets = deletion.check_ends(
        view, command, kafka_calls.offsets_of(starts), kafka_calls.ends_of(ends)
    )
    assert offsets == {}
    assert after.progress[0].fatal
