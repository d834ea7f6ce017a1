"""A continuous producer while the cluster changes, and its result."""

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from local_cluster import RunningCluster

PARTITIONS = 3


class AcknowledgedWriter:
    """An idempotent producer with acks=all; ``acknowledged`` are the values that were
    acknowledged to it.
    """

    def __init__(self, cluster: RunningCluster, topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[bytes] = set()
        self.refused: list[str] = []
        self._sent = 0
        self._client = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "acks": "all"}
        )

    def write(self, count: int = 20) -> None:
        for _ in range(count):
            self._sent += 1
            value = str(self._sent).encode()
            # Round robin without keys, so that every partition has a writer while leaders move.
            partition = self._sent % PARTITIONS
            self._client.produce(self.topic, value, partition=partition, on_delivery=self._told)
        self._client.poll(0)

    def flush(self) -> None:
        assert self._client.flush(60) == 0

    def _told(self, error: object, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            value = message.value()
            assert isinstance(value, bytes)
            self.acknowledged.add(value)


def read(cluster: RunningCluster, topic: str) -> list[bytes]:
    """Every value of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    found: list[bytes] = []
    for partition in range(PARTITIONS):
        place = TopicPartition(topic, partition)
        # The end is read first: the loop stops at a known offset and needs no guess about idleness.
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (position := consumer.position([place])[0].offset) < end:
            message = consumer.poll(10)
            assert message is not None, f"partition {partition} ends at {position} of {end}"
            value = message.value()
            assert isinstance(value, bytes)
            # Values that come twice are twice in the log, or the consumer has gone back.
            assert message.offset() >= position, f"offset {message.offset()} again, at {position}"
            found.append(value)
    consumer.close()
    return found
