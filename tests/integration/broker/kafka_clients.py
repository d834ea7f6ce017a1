"""Stock clients for tests, run in threads: they block."""

import asyncio
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition


def produce(bootstrap: str, topic: str, values: list[bytes], partition: int = 0) -> list[int]:
    """Produce with acks=all; the offsets that were acknowledged, in order."""
    acknowledged: list[int] = []
    failures: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error)
        else:
            acknowledged.append(message.offset())

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 20000, "linger.ms": 5}
    )
    for value in values:
        producer.produce(topic, value=value, partition=partition, on_delivery=delivered)
        producer.poll(0)
    producer.flush(25)
    assert not failures, failures[0]
    return acknowledged


def consume(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> Any:
    """(offset, value) of ``count`` records from ``offset``."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    records: list[tuple[Any, Any]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        silent = 0
        while len(records) < count and silent < 100:
            message = consumer.poll(0.2)
            if message is None:
                silent += 1
                continue
            if message.error():
                raise RuntimeError(message.error())
            records.append((message.offset(), message.value()))
    finally:
        consumer.close()
    return records


async def produce_async(*args: Any, **kwargs: Any) -> list[int]:
    return await asyncio.to_thread(produce, *args, **kwargs)


async def consume_async(*args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(consume, *args, **kwargs)
