"""Consumer groups of stock clients, with their defaults, on one broker in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import ApiBroker, running
from tests.unit.api import api_requests as kafka
from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC

VALUES = [f"value {number}".encode() for number in range(50)]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ApiBroker]:
    """Broker that coordinates all groups; the topic ``t`` has two partitions with values."""
    # A short delay of the first rebalance: members join within 100 ms.
    async with running(tmp_path, {"group.initial.rebalance.delay.ms": "100"}) as made:
        task = asyncio.create_task(made.broker.groups.run())
        await made.create(GROUP_OFFSETS_TOPIC, partitions=3, config={"cleanup.policy": "compact"})
        await made.create("t", partitions=2)
        batch = kafka.batch(*VALUES)
        answer = await made.ask(kafka.produce(9, "t", batch, batch), kafka.answer_type(0, 9))
        for part in answer.responses[0].partition_responses:
            assert part.error_code is ErrorCode.none
        yield made
        await made.broker.groups.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def consume(port: int, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "confluent",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["t"])
    values: list[bytes] = []
    try:
        while len(values) < count:
            message = consumer.poll(20)
            assert message is not None, f"{len(values)} of {count} came"
            assert message.error() is None, message.error()
            values.append(message.value())
    finally:
        consumer.close()
    return values


async def test_librdkafka_resumes_where_it_stopped(broker: ApiBroker) -> None:
    """The next leader epoch loads all group state from the log again."""
    first = await asyncio.to_thread(consume, broker.port, 60)
    topic_id = broker.broker.metadata.topics[GROUP_OFFSETS_TOPIC].topic_id
    # A new leader epoch of the offsets topic: the coordinator resigns and loads again.
    await broker.create(GROUP_OFFSETS_TOPIC, partitions=3, leader_epoch=1, topic_id=topic_id)
    second = await asyncio.to_thread(consume, broker.port, 40)
    # The second consumer continues at the committed offsets: each value arrives once.
    assert sorted(first + second) == sorted(VALUES * 2)


async def test_aiokafka_members_share_the_partitions(broker: ApiBroker) -> None:
    members = [
        AIOKafkaConsumer(
            "t",
            bootstrap_servers=f"127.0.0.1:{broker.port}",
            group_id="aio",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
        )
        for _ in range(2)
    ]
    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*(item.start() for item in members))
            # Each member reads one partition of 50 values.
            values = [(await item.getone()).value for item in members for _ in range(50)]
            assert sorted(values) == sorted(VALUES * 2)
            await members[1].stop()
            # The remaining member takes over the partition of the member that left.
            while len(members[0].assignment()) < 2:  # noqa: ASYNC110 - the client has no event
                await asyncio.sleep(0.05)
    finally:
        for member in members:
            await member.stop()
