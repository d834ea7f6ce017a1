"""Send records to a topic, or count them, with a stock client: ``records.py send|count TOPIC N``.

The brokers' addresses are in BOOTSTRAP, as ``tidemark up`` printed them. Values are JSON with a
carrier and a delay; the timestamps of N records are spread over the year 2013.
"""

import json
import os
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

JANUARY_MS, YEAR_MS = 1_356_998_400_000, 365 * 86_400_000
TIMEOUT_S = 60


def send(topic: str, count: int) -> None:
    """Send ``count`` records and wait until each is acknowledged by all in-sync replicas."""
    # There are no producer ids yet, so no idempotence.
    producer = Producer(
        {"bootstrap.servers": os.environ["BOOTSTRAP"], "acks": "all", "enable.idempotence": False}
    )
    for number in range(count):
        value = {"carrier": ("AA", "DL", "UA")[number % 3], "delay": number % 60, "pad": "x" * 900}
        stamp = JANUARY_MS + number * YEAR_MS // count
        producer.produce(topic, json.dumps(value).encode(), str(number).encode(), timestamp=stamp)
        producer.poll(0)
    if producer.flush(TIMEOUT_S):
        sys.exit(f"not all records were acknowledged in {TIMEOUT_S} s")


def count(topic: str, expected: int) -> None:
    """Read the topic from its beginning until ``expected`` records have come."""
    # There are no consumer groups yet: partitions are assigned here, offsets are not committed.
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
    {"send": send, "count": count}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
