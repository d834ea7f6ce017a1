"""DeleteRecords: invariants 12 to 14 on one replica, and the wait for a follower on two."""

import asyncio
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.integration.api.api_broker import NODE, ApiBroker
from tests.unit.api import api_requests as kafka
from tidemark.tls.identity import TlsIdentity
from tidemark_broker.replication.following.wire import (
    ReplicaFetchPartition,
    ReplicaFetchRequest,
)


async def _fill(broker: ApiBroker, **topic: Any) -> uuid.UUID:
    topic_id = await broker.create("t", **topic)
    # Ten records in five batches.
    for _ in range(5):
        records = kafka.batch(b"x", b"y")
        await broker.ask(kafka.produce(9, "t", records, acks=1), kafka.answer_type(0, 9))
    return topic_id


async def _delete(broker: ApiBroker, version: int, topic: str, offset: int, **values: int) -> Any:
    answer: Any = await broker.ask(
        kafka.delete_records(version, topic, offset, **values), kafka.answer_type(21, version)
    )
    return answer.topics[0].partitions[0]


async def _start(broker: ApiBroker) -> int:
    answer: Any = await broker.ask(kafka.list_offsets(5, "t", -2), kafka.answer_type(2, 5))
    return int(answer.topics[0].partitions[0].offset)


@pytest.mark.parametrize("version", range(3))
async def test_log_start_is_exactly_the_requested_offset(broker: ApiBroker, version: int) -> None:
    await _fill(broker)
    result = await _delete(broker, version, "t", 3)
    assert (result.error_code, result.low_watermark) == (ErrorCode.none, 3)
    assert await _start(broker) == 3
    # Repeated and lower requests succeed and change nothing.
    again = await _delete(broker, version, "t", 3)
    below = await _delete(broker, version, "t", 1)
    assert (again.error_code, again.low_watermark) == (ErrorCode.none, 3)
    assert (below.error_code, below.low_watermark) == (ErrorCode.none, 3)
    # -1 means the high watermark.
    everything = await _delete(broker, version, "t", -1)
    assert (everything.error_code, everything.low_watermark) == (ErrorCode.none, 10)


async def test_delete_records_errors(broker: ApiBroker) -> None:
    await _fill(broker)
    # Compacted topics refuse DeleteRecords, as in Kafka (KIP-107).
    await broker.create("compacted", config={"cleanup.policy": "compact"})
    await broker.create("away", replicas=(2,), leader=2)
    await broker.create("__consumer_offsets")
    for topic, offset, error in (
        ("nope", 0, ErrorCode.unknown_topic_or_partition),
        ("__consumer_offsets", 0, ErrorCode.invalid_topic_exception),
        ("away", 0, ErrorCode.not_leader_or_follower),
        ("compacted", 0, ErrorCode.policy_violation),
        ("t", 11, ErrorCode.offset_out_of_range),
        ("t", -2, ErrorCode.offset_out_of_range),
    ):
        result = await _delete(broker, 2, topic, offset)
        assert (result.error_code, result.low_watermark) == (error, -1), (topic, offset)
    assert await _start(broker) == 0


class FetchingFollower:
    """Node 2, as its leader sees it: it fetches and reports its log start."""

    def __init__(self, broker: ApiBroker, topic_id: uuid.UUID) -> None:
        self.broker = broker
        self.topic_id = topic_id

    async def fetch(self, log_start_offset: int, offset: int = 10) -> int:
        """Report a log start; return the leader's."""
        part = ReplicaFetchPartition(
            topic_id=self.topic_id,
            partition=0,
            current_leader_epoch=0,
            fetch_offset=offset,
            last_fetched_epoch=0,
            log_start_offset=log_start_offset,
            local_log_start_offset=log_start_offset,
            tiered_epoch=0,
            max_bytes=1 << 20,
        )
        # No wait and no minimum, so the leader responds at once.
        request = ReplicaFetchRequest(
            replica_id=2,
            broker_epoch=1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            partitions=(part,),
        )
        answer = await self.broker.broker.fetch_service.handle(request, TlsIdentity("c", 2), room())
        (result,) = answer.partitions
        assert result.error_code == 0
        return result.log_start_offset


async def test_delete_records_waits_two_fetch_rounds_for_the_follower(broker: ApiBroker) -> None:
    follower = FetchingFollower(broker, await _fill(broker, replicas=(NODE, 2)))
    # The first fetch makes the follower alive for the low watermark.
    await follower.fetch(0)
    waiting = asyncio.create_task(_delete(broker, 2, "t", 4, timeout_ms=30_000))
    partition = broker.manager.get("t", 0)
    assert partition is not None
    while partition.log_start_offset != 4:  # noqa: ASYNC110 - until it is durable on the leader
        await asyncio.sleep(0.001)
    assert await follower.fetch(0) == 4  # first round: the follower receives it
    assert not waiting.done()
    await follower.fetch(4)  # second round: the leader sees that it is done
    result = await asyncio.wait_for(waiting, 5)
    assert (result.error_code, result.low_watermark) == (ErrorCode.none, 4)


async def test_timeout_answers_with_the_initial_low_watermark(broker: ApiBroker) -> None:
    follower = FetchingFollower(broker, await _fill(broker, replicas=(NODE, 2)))
    await follower.fetch(1)
    result = await _delete(broker, 2, "t", 4, timeout_ms=50)
    assert result.error_code is ErrorCode.request_timed_out
    # Whether the follower's start was already counted is a matter of timing.
    assert result.low_watermark in (0, 1)
    while await _start(broker) != 4:  # noqa: ASYNC110 - the leader's log start moves all the same
        await asyncio.sleep(0.001)


async def test_delete_records_fails_when_leadership_is_lost(broker: ApiBroker) -> None:
    topic_id = await _fill(broker, replicas=(NODE, 2))
    follower = FetchingFollower(broker, topic_id)
    await follower.fetch(0)
    waiting = asyncio.create_task(_delete(broker, 2, "t", 4, timeout_ms=30_000))
    while not broker.purgatory.size:  # noqa: ASYNC110 - until the request has arrived
        await asyncio.sleep(0.001)
    # A new leader in the middle of the wait.
    await broker.create("t", replicas=(NODE, 2), leader=2, topic_id=topic_id, leader_epoch=1)
    result = await asyncio.wait_for(waiting, 5)
    assert (result.error_code, result.low_watermark) == (ErrorCode.not_leader_or_follower, -1)
