"""Requests for transactions of thousands of partitions or ids: other tasks run meanwhile."""

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.longest_turn import TURN_MS, longest_turn
from tests.unit.api import api_requests as kafka
from tests.unit.api.test_many_topics import MANY
from tests.unit.transactions.transaction_broker import (
    ADD,
    COMMIT_OFFSETS,
    DATA,
    DESCRIBE,
    ID,
    LIST,
    MARKERS,
    frame,
    serving,
)

NUMBERS = tuple(range(MANY))


def add(partitions: tuple[int, ...]) -> dict[str, Any]:
    topic = kafka.nested(ADD, 3, "AddPartitionsToTxnTopic", name=DATA, partitions=partitions)
    return {
        "v3_and_below_transactional_id": ID, "v3_and_below_producer_id": 1000,
        "v3_and_below_producer_epoch": 0, "v3_and_below_topics": (topic,),
    }  # fmt: skip


def markers() -> dict[str, Any]:
    topic = kafka.nested(
        MARKERS, 1, "WritableTxnMarkerTopic", name=DATA, partition_indexes=(0,) * MANY
    )
    marker = kafka.nested(
        MARKERS, 1, "WritableTxnMarker", producer_id=7, producer_epoch=0, transaction_result=True,
        topics=(topic,), coordinator_epoch=0,
    )  # fmt: skip
    return {"markers": (marker,)}


def offsets() -> dict[str, Any]:
    parts = tuple(
        kafka.nested(
            COMMIT_OFFSETS, 3, "TxnOffsetCommitRequestPartition", partition_index=number,
            committed_offset=1, committed_leader_epoch=-1, committed_metadata="",
        )
        for number in NUMBERS
    )  # fmt: skip
    topic = kafka.nested(
        COMMIT_OFFSETS, 3, "TxnOffsetCommitRequestTopic", name=DATA, partitions=parts
    )
    return {
        "transactional_id": ID, "group_id": "g", "producer_id": 1000, "producer_epoch": 0,
        "generation_id": -1, "member_id": "", "group_instance_id": None, "topics": (topic,),
    }  # fmt: skip


REQUESTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "AddPartitionsToTxn": (ADD, 3, add(NUMBERS)),
    "WriteTxnMarkers": (MARKERS, 1, markers()),
    "TxnOffsetCommit": (COMMIT_OFFSETS, 3, offsets()),
    "DescribeTransactions": (DESCRIBE, 0, {"transactional_ids": (ID,) * MANY}),
    "ListTransactions": (LIST, 0, {"state_filters": (), "producer_id_filters": NUMBERS}),
}


@pytest.mark.parametrize("api", REQUESTS)
async def test_other_tasks_run_during_large_requests(tmp_path: Path, api: str) -> None:
    key, version, fields = REQUESTS[api]
    async with serving(tmp_path) as made:
        await made.init()
        await made.lead(partitions=MANY if api == "AddPartitionsToTxn" else 2, partition_epoch=2)
        request = frame(key, version, **fields)
        # The first request prepares what later ones reuse. Only the second one is measured.
        await made.serve(request)
        async with longest_turn() as longest:
            await made.serve(request)
        assert longest[0] < TURN_MS


async def test_a_transaction_has_a_limit_of_partitions(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        await made.init()
        await made.lead(partitions=5001, partition_epoch=2)
        errors = await made.add(1000, 0, *range(5001))
        assert set(errors) == {ErrorCode.policy_violation}
        async with longest_turn() as longest:
            errors = await made.add(1000, 0, *range(5000))
        assert set(errors) == {ErrorCode.none}
        assert longest[0] < 2 * TURN_MS  # One record contains all 5,000 partitions.
