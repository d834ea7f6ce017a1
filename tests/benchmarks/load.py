"""The client of the comparison, in a process of its own: ``python -m tests.benchmarks.load``.

Produces or fetches a fixed number of 1 KiB records with librdkafka and prints one JSON line.
"""

import json
import os
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

RECORD_BYTES = 1024


def _security(trusted: str) -> dict[str, object]:
    """TLS where there is a certificate to trust."""
    return {"security.protocol": "SSL", "ssl.ca.location": trusted} if trusted else {}


def produce(bootstrap: str, topic: str, records: int, trusted: str = "") -> float:
    """Seconds from the first record to the last acknowledgement (acks=all)."""
    failures: list[str] = []
    producer = Producer(
        _security(trusted)
        | {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": False,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "error_cb": lambda error: failures.append(str(error)),
        }
    )
    payloads = [os.urandom(RECORD_BYTES) for _ in range(64)]
    began = time.monotonic()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, payloads[number & 63], partition=0)
            except BufferError:
                producer.poll(0.01)
            else:
                break
        if number & 1023 == 0:
            producer.poll(0)
    left = producer.flush(120)
    seconds = time.monotonic() - began
    if left or failures:
        raise SystemExit(f"{left} records not acknowledged; {failures[:3]}")
    return seconds


def fetch(bootstrap: str, topic: str, records: int, trusted: str = "") -> float:
    """Seconds to read all records from the start of the partition."""
    consumer = Consumer(
        _security(trusted)
        | {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8_000_000,
            "queued.max.messages.kbytes": 512_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = 0
    began = time.monotonic()
    while seen < records and time.monotonic() - began < 300:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                raise SystemExit(str(message.error()))
            seen += 1
    seconds = time.monotonic() - began
    consumer.close()
    if seen < records:
        raise SystemExit(f"only {seen} of {records} records came back")
    return seconds


if __name__ == "__main__":
    kind, address, name, count, *trusted = sys.argv[1:]
    run = {"produce": produce, "fetch": fetch}[kind]
    print(json.dumps({"seconds": run(address, name, int(count), *trusted)}))
