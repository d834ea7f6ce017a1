"""The four stock clients behind two functions each: produce values, consume values.

No consumer groups, and producers that number nothing (:mod:`test_idempotence` has those that do).
"""

import asyncio
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

#: Called with the number of values that have been handed over, before each one.
Hook = Callable[[int], None]


def produce_confluent(
    bootstrap: str, topic: str, values: Sequence[bytes], hook: Hook
) -> list[bytes]:
    """The acknowledged values (acks=all), in the order of their acknowledgement."""
    acknowledged: list[bytes] = []
    producer = Producer(
        # Without idempotence a retried batch may appear twice or later than its successors: the
        # tests of such producers check presence, not order.
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": False, "linger.ms": 5}
    )
    for count, value in enumerate(values):
        hook(count)
        producer.produce(
            topic,
            value,
            on_delivery=lambda error, message: error or acknowledged.append(message.value()),
        )
        producer.poll(0)
    assert producer.flush(120) == 0
    return acknowledged


def consume_confluent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(30)
        assert message is not None, f"{len(values)} of {count} came back"
        assert message.error() is None, message.error()
        values.append(message.value())
    consumer.close()
    return values


def produce_kafka_python(
    bootstrap: str, topic: str, values: Sequence[bytes], hook: Hook
) -> list[bytes]:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","), acks="all", enable_idempotence=False, retries=50
    )
    # The hook runs between two sends, so that a kill hits records in flight.
    futures = []
    for count, value in enumerate(values):
        hook(count)
        futures.append((producer.send(topic, value), value))
    producer.flush(120)
    acknowledged = [value for future, value in futures if future.succeeded()]
    producer.close()
    return acknowledged


def consume_kafka_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), group_id=None, consumer_timeout_ms=30_000
    )
    place = PythonTopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    values: list[bytes] = []
    for message in consumer:
        values.append(message.value)
        if len(values) == count:
            break
    consumer.close()
    return values


def produce_aiokafka(
    bootstrap: str, topic: str, values: Sequence[bytes], hook: Hook
) -> list[bytes]:
    async def run() -> list[bytes]:
        # Awaiting every record alone would keep one record in flight. Batches of 20 keep the run
        # short, and the hook runs before each batch.
        acknowledged: list[bytes] = []
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", request_timeout_ms=60_000
        )
        await producer.start()
        try:
            for begin in range(0, len(values), 20):
                hook(begin)
                batch = values[begin : begin + 20]
                futures = [await producer.send(topic, value) for value in batch]
                # A failed send is a record without acknowledgement, which the cluster may lose.
                results = await asyncio.gather(*futures, return_exceptions=True)
                acknowledged += [
                    value
                    for value, result in zip(batch, results, strict=True)
                    if not isinstance(result, BaseException)
                ]
        finally:
            await producer.stop()
        return acknowledged

    return asyncio.run(run())


def consume_aiokafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    async def run() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        place = AioTopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        values: list[bytes] = []
        try:
            while len(values) < count:
                message = await asyncio.wait_for(consumer.getone(), 30)
                values.append(message.value)
        finally:
            await consumer.stop()
        return values

    return asyncio.run(run())


PYTHON_CLIENTS = {
    "confluent-kafka": (produce_confluent, consume_confluent),
    "kafka-python": (produce_kafka_python, consume_kafka_python),
    "aiokafka": (produce_aiokafka, consume_aiokafka),
}
