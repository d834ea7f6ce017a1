"""``python_defaults.py CLIENT ADDRESS TOPIC GROUP NAME COUNT``: a Python client with its defaults.

A member of a group, and beside it a producer that says ``probe`` until the member hears something,
then ``NAME 0``, ``NAME 1``, … Each value that the member hears is printed on a line of its own; it
leaves once it has heard the last.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

PROBE_S = 0.3


def confluent_kafka(address: str, topic: str, group: str, name: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    producer = Producer({"bootstrap.servers": address})
    consumer.subscribe([topic])

    def send(value: str) -> None:
        producer.produce(topic, value)
        assert producer.flush(60) == 0

    def heard() -> Iterator[bytes]:
        while True:
            message = consumer.poll(60)
            assert message is not None, "nothing came"
            assert message.error() is None, message.error()
            yield message.value()

    _talk(send, heard(), name, count)
    consumer.close()


def kafka_python(address: str, topic: str, group: str, name: str, count: int) -> None:
    consumer = KafkaConsumer(topic, bootstrap_servers=address.split(","), group_id=group)
    producer = KafkaProducer(bootstrap_servers=address.split(","))
    _talk(
        lambda value: producer.send(topic, value.encode()).get(60),
        (message.value for message in consumer),
        name,
        count,
    )
    consumer.close()
    producer.close()


def _talk(send: Callable[[str], object], heard: Iterator[bytes], name: str, count: int) -> None:
    """The producer is in a thread of its own."""
    # Records that a producer writes before the member has its partitions are behind its start
    # offset ("latest"), so probes run until the first one arrives.
    hears = threading.Event()

    def produce() -> None:
        while not hears.wait(PROBE_S):
            send("probe")
        # From here every value counts: the member has a position and no value may be missing.
        for number in range(count):
            send(f"{name} {number}")

    thread = threading.Thread(target=produce)
    thread.start()
    for value in heard:
        hears.set()
        print(value.decode(), flush=True)
        if value == f"{name} {count - 1}".encode():
            break
    thread.join()


def aiokafka(address: str, topic: str, group: str, name: str, count: int) -> None:
    async def run() -> None:
        # No option except the address and the group: this program shows what the defaults do.
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=address.split(","), group_id=group)
        producer = AIOKafkaProducer(bootstrap_servers=address.split(","))
        hears = asyncio.Event()

        # Probe until the member has a position, because "latest" skips earlier records.
        async def produce() -> None:
            while not hears.is_set():
                await producer.send_and_wait(topic, b"probe")
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_S):
                        await hears.wait()
            for number in range(count):
                await producer.send_and_wait(topic, f"{name} {number}".encode())

        # The member reads up to its last value. Leaving the group commits its offsets.
        async with consumer, producer, asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            async for message in consumer:
                hears.set()
                print(message.value.decode(), flush=True)
                if message.value == f"{name} {count - 1}".encode():
                    break

    asyncio.run(run())


CLIENTS: dict[str, Callable[..., None]] = {
    "confluent-kafka": confluent_kafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}

if __name__ == "__main__":
    client, *rest, values = sys.argv[1:]
    began = time.monotonic()
    CLIENTS[client](*rest, int(values))
    print(f"{client}: {time.monotonic() - began:.1f} s", file=sys.stderr)
