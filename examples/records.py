"""Send records to a topic or count them, with a stock client:
``records.py send|count TOPIC N [YEAR]``, ``records.py flights TOPIC N``.

The brokers' addresses are in BOOTSTRAP, as ``tidemark up`` printed them. Values are JSON with a
carrier and a delay. Timestamps are those of now; with YEAR the N records are spread over that year
(and retention by time takes them at once, unless the topic keeps records for ever). ``flights``
sends the first N of the demo's: real flights of 2013, at their time.
"""

import json
import os
import sys
import time
from datetime import UTC, datetime

from confluent_kafka import Consumer, Producer, TopicPartition

from tidemark_cli.demo.flights import load

TIMEOUT_S = 60


def send(topic: str, count: int, year: str = "") -> None:
    """Send ``count`` records and wait until each is acknowledged by all in-sync replicas."""
    producer = Producer({"bootstrap.servers": os.environ["BOOTSTRAP"], "enable.idempotence": True})
    stamps = times_ms(count, int(year)) if year else [int(time.time() * 1000)] * count
    for number, stamp in enumerate(stamps):
        value = {"carrier": ("AA", "DL", "UA")[number % 3], "delay": number % 60, "pad": "x" * 900}
        producer.produce(topic, json.dumps(value).encode(), str(number).encode(), timestamp=stamp)
        producer.poll(0)
    finish(producer)


def flights(topic: str, count: int) -> None:
    """Send the year's first ``count`` flights."""
    client = {"bootstrap.servers": os.environ["BOOTSTRAP"], "enable.idempotence": True}
    producer = Producer({**client, "queue.buffering.max.messages": 400_000})
    for flight in load(count):
        producer.produce(topic, flight.value, flight.key, timestamp=flight.timestamp_ms)
        producer.poll(0)
    finish(producer)


def finish(producer: Producer) -> None:
    """Wait until all is acknowledged."""
    if producer.flush(TIMEOUT_S):
        sys.exit(f"not all records were acknowledged in {TIMEOUT_S} s")


def times_ms(count: int, year: int) -> list[int]:
    """``count`` times from the first to the last day of a year, evenly, in ms since 1970."""
    first, end = (int(datetime(y, 1, 1, tzinfo=UTC).timestamp() * 1000) for y in (year, year + 1))
    return [first + number * (end - first) // count for number in range(count)]


def count(topic: str, expected: int) -> None:
    """Read the topic from its beginning until ``expected`` records have come."""
    # All of it, from the beginning, each time: no member of a group, and nothing is committed.
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BOOTSTRAP"],
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found, deadline = 0, time.monotonic() + TIMEOUT_S
    while found < expected and time.monotonic() < deadline:
        found += len(consumer.consume(expected, 1.0))
    consumer.close()
    if found != expected:
        sys.exit(f"{found} records of {expected}")
    print(f"{found} records")


if __name__ == "__main__":
    {"send": send, "count": count, "flights": flights}[sys.argv[1]](
        sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
    )
