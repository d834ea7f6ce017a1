"""Program in the client's pod that produces numbered records, or reads and compares them.

Arguments: action (:data:`PROGRAMS`), bootstrap server, topic, and the action's arguments. The
client is kafka-python as published; that image contains nothing of Tidemark.
"""

import json
import sys
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

TIMEOUT_S = 200
VALUE_BYTES = 1000


def produce(bootstrap: str, topic: str, first: int, count: int) -> None:
    """``acks=all``, each record acknowledged."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", request_timeout_ms=20_000)
    # Sent in bulk and awaited one by one, so that every acknowledgement is checked.
    sent = [
        producer.send(topic, b"%08d" % number + bytes(VALUE_BYTES), key=b"%08d" % number)
        for number in range(first, first + count)
    ]
    for future in sent:
        future.get(timeout=TIMEOUT_S)
    producer.close()


def consume(bootstrap: str, *topics_and_counts: str | int) -> None:
    """Topics, each followed by a count: from their beginnings until each number below that was
    seen."""
    pairs = zip(topics_and_counts[::2], topics_and_counts[1::2], strict=True)
    wanted = {str(topic): int(count) for topic, count in pairs}
    consumer, parts = _assigned(bootstrap, *wanted)
    consumer.seek_to_beginning(*parts)
    # Numbers that are still missing, by topic. Duplicates are found by other tests.
    missing = {topic: set(range(count)) for topic, count in wanted.items()}
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(missing.values()):
        if time.monotonic() > deadline_s:
            left = {topic: (len(some), min(some)) for topic, some in missing.items() if some}
            sys.exit(f"records of {wanted} are missing, how many and one of them: {left}")
        for part, records in consumer.poll(timeout_ms=500).items():
            missing[part.topic].difference_update(int(record.value[:8]) for record in records)
    consumer.close()


def records(bootstrap: str, topic: str) -> None:
    """Offset and number of each record that is there now, by partition, as JSON."""
    consumer, parts = _assigned(bootstrap, topic)
    # The ends are fixed before reading, as other clients may continue to write.
    ends = consumer.end_offsets(parts)
    consumer.seek_to_beginning(*parts)
    found: dict[TopicPartition, list[tuple[int, int]]] = {part: [] for part in parts}
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(consumer.position(part) < ends[part] for part in parts):
        if time.monotonic() > deadline_s:
            sys.exit(f"not all of {ends} was read: {[consumer.position(part) for part in parts]}")
        for part, batch in consumer.poll(timeout_ms=500).items():
            found[part] += [(record.offset, int(record.value[:8])) for record in batch]
    print(json.dumps({str(part.partition): item for part, item in found.items()}))
    consumer.close()


def commit(bootstrap: str, topic: str, group: str) -> None:
    """The end of each partition."""
    consumer, parts = _assigned(bootstrap, topic, group=group)
    consumer.seek_to_end(*parts)
    for part in parts:
        consumer.position(part)
    consumer.commit()
    consumer.close()


def committed(bootstrap: str, topic: str, group: str) -> None:
    """Print the committed offsets of a group by partition, as JSON."""
    consumer, parts = _assigned(bootstrap, topic, group=group)
    print(json.dumps({str(part.partition): consumer.committed(part) for part in parts}))
    consumer.close()


def begins(bootstrap: str, topic: str) -> None:
    """The first offset of each partition, as JSON."""
    consumer, parts = _assigned(bootstrap, topic)
    _print_offsets(consumer.beginning_offsets(parts))


def ends(bootstrap: str, topic: str) -> None:
    """The offset after the last one of each partition, as JSON."""
    consumer, parts = _assigned(bootstrap, topic)
    _print_offsets(consumer.end_offsets(parts))


def _print_offsets(found: dict[TopicPartition, int]) -> None:
    print(json.dumps({str(part.partition): offset for part, offset in found.items()}))


def _assigned(
    bootstrap: str, *topics: str, group: str | None = None
) -> tuple[KafkaConsumer, list[TopicPartition]]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    parts = [
        TopicPartition(topic, part)
        for topic in topics
        for part in sorted(consumer.partitions_for_topic(topic))
    ]
    consumer.assign(parts)
    return consumer, parts


PROGRAMS = {
    "produce": produce,
    "consume": consume,
    "records": records,
    "commit": commit,
    "committed": committed,
    "begins": begins,
    "ends": ends,
}

if __name__ == "__main__":
    _, what, *given = sys.argv
    PROGRAMS[what](*(int(word) if word.isdigit() else word for word in given))
