"""Topics by the admin API, a group and transactions, with a stock client and its defaults:
``clients.py create|send|share TOPIC N``, ``settle FROM TO N``, ``delete TOPIC…``.

The brokers' addresses are in BOOTSTRAP_SERVERS: ``eval "$(tidemark env)"``.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 60
IN_EACH = 100
ADDRESS = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"]}


def create(topic: str, partitions: str) -> None:
    """Three replicas of each partition; the topic can be used once this returns."""
    admin = AdminClient(ADDRESS)
    admin.create_topics([NewTopic(topic, int(partitions), 3)])[topic].result(TIMEOUT_S)


def delete(*topics: str) -> None:
    """With their records."""
    admin = AdminClient(ADDRESS)
    for told in admin.delete_topics(list(topics)).values():
        told.result(TIMEOUT_S)


def send(topic: str, count: str) -> None:
    """Numbers, each in a record of its own, acknowledged by all in-sync replicas."""
    producer = Producer(ADDRESS)
    for number in range(int(count)):
        producer.produce(topic, str(number), str(number))
    if producer.flush(TIMEOUT_S):
        sys.exit(f"not all records were acknowledged in {TIMEOUT_S} s")


def share(topic: str, count: str) -> None:
    """Two members of one group, which begins with the first record; who has got how much."""
    members = {name: member(topic, f"readers of {topic}") for name in ("first", "second")}
    got: Counter[str] = Counter()

    def poll() -> bool:
        for name, consumer in members.items():
            got[name] += sum(item.error() is None for item in consumer.consume(IN_EACH, 0.2))
        return got.total() >= int(count)

    until(poll, f"{count} records")
    for consumer in members.values():
        consumer.close()  # which commits what it has read
    print(f"{got.total()} records: {dict(got)}")


def settle(source: str, target: str, count: str) -> None:
    """Read, write and commit in transactions. The first one is aborted, and leaves nothing."""
    consumer = member(source, f"copies of {source}", commits_itself=False)
    producer = Producer(ADDRESS | {"transactional.id": f"copies of {source}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(target, "never to be seen")
    producer.flush(TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)
    copied = 0

    def copy() -> bool:
        nonlocal copied
        records = [item for item in consumer.consume(IN_EACH, 1.0) if item.error() is None]
        producer.begin_transaction()
        for record in records:
            producer.produce(target, record.value(), record.key())
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction(TIMEOUT_S)
        copied += len(records)
        return copied >= int(count)

    until(copy, f"{count} records")
    consumer.close()
    print(f"{copied} records copied")


def member(topic: str, group: str, *, commits_itself: bool = True) -> Consumer:
    """One that begins with the first record where the group has committed nothing yet."""
    own = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": commits_itself}
    consumer = Consumer(ADDRESS | own)
    consumer.subscribe([topic])
    return consumer


def until(holds: Callable[[], bool], what: str) -> None:
    """Ends the program where it takes too long."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"waited {TIMEOUT_S} s for {what}")


if __name__ == "__main__":
    asked, *arguments = sys.argv[1:]
    try:
        {"create": create, "send": send, "share": share, "settle": settle, "delete": delete}[asked](
            *arguments
        )
    except KafkaException as error:
        sys.exit(str(error))
