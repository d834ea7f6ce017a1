"""What runs in the client's pod: records with numbers are produced, or read and compared.

Arguments: produce or consume, bootstrap server, topic, first number, count. The client is
kafka-python, as its project publishes it; nothing of Tidemark is in that image.
"""

import sys
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

TIMEOUT_S = 200
VALUE_BYTES = 1000


def produce(bootstrap: str, topic: str, first: int, count: int) -> None:
    """``acks=all``, each record acknowledged."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", request_timeout_ms=20_000)
    sent = [
        producer.send(topic, b"%08d" % number + bytes(VALUE_BYTES), key=b"%08d" % number)
        for number in range(first, first + count)
    ]
    for future in sent:
        future.get(timeout=TIMEOUT_S)
    producer.close()


def consume(bootstrap: str, topic: str, first: int, count: int) -> None:
    """From the beginning until every number from ``first`` on was seen."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    parts = [TopicPartition(topic, part) for part in consumer.partitions_for_topic(topic)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    missing = set(range(first, first + count))
    deadline_s = time.monotonic() + TIMEOUT_S
    while missing:
        if time.monotonic() > deadline_s:
            sys.exit(f"{len(missing)} of {count} records are missing, {min(missing)} among them")
        for records in consumer.poll(timeout_ms=500).values():
            missing.difference_update(int(record.value[:8]) for record in records)
    consumer.close()


if __name__ == "__main__":
    _, what, server, name, begin, number = sys.argv
    {"produce": produce, "consume": consume}[what](server, name, int(begin), int(number))
    print(f"{what}d {number}")
