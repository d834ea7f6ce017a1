"""Stock clients for tests, run in threads: they block."""

import asyncio
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition


def produce(bootstrap: str, topic: str, values: list[bytes], partition: int = 0) -> list[int]:
    """Produce with acks=all; return the acknowledged offsets in order."""
    return [offset for offset, _ in acknowledged(bootstrap, topic, values, partition)]


def acknowledged(
    bootstrap: str,
    topic: str,
    values: list[bytes],
    partition: int = 0,
    *,
    timeout_s: int = 20,
    linger_ms: int = 5,
    batch_bytes: int = 1_000_000,
) -> list[tuple[int, bytes]]:
    """Produce with acks=all; return (offset, value) of every acknowledgement."""
    delivered: list[tuple[int, bytes]] = []
    failures: list[Any] = []

    # Delivery reports are called from poll and flush, in this thread.
    def settled(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error)
        else:
            delivered.append((message.offset(), message.value()))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "message.timeout.ms": timeout_s * 1000,
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
        }
    )
    for value in values:
        producer.produce(topic, value=value, partition=partition, on_delivery=settled)
        # Serve callbacks, and keep the producer's queue from filling.
        producer.poll(0)
    producer.flush(timeout_s + 5)
    assert not failures, failures[0]
    return delivered


def consume(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> Any:
    """Return (offset, value) of ``count`` records from ``offset``."""
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
        # 100 silent polls of 0.2 s: 20 s without a record end the wait.
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
