"""A producer that retries forever, and a reader of all acknowledged records."""

import threading
import time
from dataclasses import dataclass, field
from random import Random

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

_PAUSE_S = 0.01
_READ_S = 60.0


@dataclass(slots=True)
class FullDiskLoad:
    """A producer with acks=all on a topic; acknowledged records by partition and offset."""

    bootstrap: str
    topic: str
    partitions: int
    seed: int
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the producer in its own thread."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after every sent record is acknowledged or has failed."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        random, number = Random(self.seed), 0
        # Two minutes of retries are longer than any full disk in a plan, so no record may fail.
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "log_level": 1,
            }
        )
        while not self._ended.is_set():
            # Values of up to 16 kB in bursts of four fill segments of 1 MB within seconds.
            for _ in range(4):
                value = b"%d:%d:" % (self.seed, number) + random.randbytes(
                    random.randint(10, 16_000)
                )
                try:
                    producer.produce(
                        self.topic,
                        value,
                        partition=number % self.partitions,
                        on_delivery=self._delivered,
                    )
                except BufferError:
                    break
                number += 1
            producer.poll(0)
            time.sleep(_PAUSE_S)
        # Records without an outcome count as failures of the cluster.
        left = producer.flush(120)
        if left:
            self.failed.append(f"{left} records are neither acknowledged nor refused")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        self.acknowledged[partition, offset] = value

    def differences(self) -> tuple[int, int]:
        """Read the topic from its beginning: (acknowledged records that are not there, that are
        others)."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "full-disk",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 1,
            }
        )
        try:
            return self._compare(consumer)
        finally:
            consumer.close()

    def _compare(self, consumer: Consumer) -> tuple[int, int]:
        # Reading ends at the last acknowledged offset of each partition.
        ends = [0] * self.partitions
        for partition, offset in self.acknowledged:
            ends[partition] = max(ends[partition], offset + 1)
        consumer.assign(
            [TopicPartition(self.topic, number, 0) for number, end in enumerate(ends) if end]
        )
        missing, changed = dict(self.acknowledged), 0
        deadline_s = time.monotonic() + _READ_S
        while missing and time.monotonic() < deadline_s:
            for message in consumer.consume(1000, timeout=1.0):
                partition, offset = message.partition(), message.offset()
                if message.error() is not None or partition is None or offset is None:
                    continue
                # The time is between records, since a slow machine may need minutes for all of
                # them.
                deadline_s = time.monotonic() + _READ_S
                expected = missing.pop((partition, offset), None)
                changed += expected is not None and expected != message.value()
        return len(missing), changed
