"""Records in topics of Apache Kafka, and segments that are closed, by a stock client."""

import asyncio
import time

from confluent_kafka import Producer

from tidemark.kafka_client import offsets
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.values import Offset

#: Configuration of a topic whose segments close soon after they were begun.
SMALL = {"segment.ms": "200", "segment.bytes": "1048576"}


async def produce(bootstrap: tuple[str, ...], topic: str, partition: int, *values: bytes) -> None:
    """Produce with a pause after each record, so that small segments have one record each."""

    def send() -> None:
        producer = Producer({"bootstrap.servers": ",".join(bootstrap), "linger.ms": 0})
        for value in values:
            producer.produce(topic, value, partition=partition)
            assert producer.flush(30) == 0
            # Longer than segment.ms, so the next record begins a new segment.
            time.sleep(0.3)

    await asyncio.to_thread(send)


async def offset(admin: Admin, topic: str, partition: int, special: int) -> int:
    """Return an offset of ListOffsets; -2 while its leader does not know it."""
    found = (await admin.topics([topic])).get(topic)
    if found is None or found.partitions[partition].leader < 0:
        return -2
    await admin.describe_cluster()
    leader = found.partitions[partition].leader
    answers = await offsets.list_offsets(admin.client, leader, {(topic, partition): special})
    answer = answers[topic, partition]
    return answer.offset if isinstance(answer, Offset) else -2
