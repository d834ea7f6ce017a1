"""Deletion that the operator requests of a leader after an unclean election, when the leader
has records of an *older* epoch in place of the resolved ones.
"""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import ApiBroker
from tests.unit.api import api_requests as kafka
from tidemark.wire import deletions
from tidemark_broker.control.record_deletions import delete_topic_records


async def append(broker: ApiBroker, batches: int) -> None:
    for _ in range(batches):
        answer: Any = await broker.ask(
            kafka.produce(9, "t", kafka.batch(b"x", b"y"), acks=1), kafka.answer_type(0, 9)
        )
        assert int(answer.responses[0].partition_responses[0].error_code) == 0


@pytest.mark.parametrize("batches_since", [0, 1], ids=["nothing written since", "written since"])
async def test_deletion_refuses_records_of_an_older_epoch(
    broker: ApiBroker, batches_since: int
) -> None:
    """Broker 1 leads in epoch 4 and is cut off from the operator, not from clients. Another one is
    elected in epoch 5 and writes offsets 6 to 9; a RecordDeletion is resolved there, below 10. Then
    broker 1 takes records with acks=1, and is elected uncleanly in epoch 6."""
    topic_id = await broker.create("t", leader_epoch=4, replicas=(1, 3))
    # Fourteen records of epoch 4, in place of the offsets that were resolved in epoch 5.
    await append(broker, 7)
    # The unclean election of this broker, with epoch 6.
    await broker.create("t", leader_epoch=6, replicas=(1,), topic_id=topic_id)
    await append(broker, batches_since)
    # Resolved: below offset 10, whose last record is of epoch 5.
    below = deletions.PartitionDeletion(partition=0, leader_epoch=6, offset=10, last_epoch=5)
    request = deletions.DeleteTopicRecordsRequest(
        controller_epoch=1, topic_id=topic_id, timeout_ms=1000, partitions=(below,)
    )
    (result,) = await delete_topic_records(broker.manager, request, who="controller")
    assert ErrorCode(result.error_code) is ErrorCode.offset_out_of_range
    partition = broker.manager.get("t", 0)
    assert partition is not None
    # Nothing was deleted: these are other records at the same offsets.
    assert partition.log_start_offset == 0
