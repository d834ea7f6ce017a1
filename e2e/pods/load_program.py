"""Program in the client's pod: a continuous producer, and a reader that checks that each record
arrives once and in order.

Arguments: bootstrap server, topic, consumer group, first number. It reports the first record that
was read, continues until its standard input ends, and then prints one line of JSON. Both clients
retry by themselves. The result is therefore what the producer reports to its caller, and the
caller's longest wait.
"""

import json
import sys
import threading
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

PERIOD_S = 0.01
VALUE_BYTES = 1000
#: What is not acknowledged by then is a failure. The client's own patience is 120 s.
DELIVERY_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 10_000
LAST_TIMEOUT_S = 60
TOLD = 5
FLOWS = "records flow"


class Writer:
    """Idempotent producer with ``acks=all``.

    ``acknowledged``: numbers; ``longest_s``: longest time from a send to its acknowledgement;
    ``failures``: errors that callers received.
    """

    def __init__(self, bootstrap: str, topic: str, first: int) -> None:
        self._bootstrap, self._topic, self._number = bootstrap, topic, first
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: set[int] = set()
        self.longest_s = 0.0
        self.failures: list[str] = []

    def begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=DELIVERY_TIMEOUT_MS,
        )
        # A record every ten milliseconds, so that a gap of service shows in the longest wait.
        while not self._stopping.wait(PERIOD_S):
            self._send(producer)
        try:
            producer.flush(timeout=2 * DELIVERY_TIMEOUT_MS / 1000)
        except KafkaError as error:
            self.failures.append(f"the end: {error!r}")
        producer.close()

    def _send(self, producer: KafkaProducer) -> None:
        number, begun_s = self._number, time.monotonic()
        self._number += 1

        def acknowledged(_: object) -> None:
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
            self.acknowledged.add(number)

        def failed(error: object) -> None:
            self.failures.append(f"{number}: {error!r}")

        try:
            future = producer.send(self._topic, b"%08d" % number + bytes(VALUE_BYTES))
        except KafkaError as error:
            failed(error)
            return
        future.add_callback(acknowledged)
        future.add_errback(failed)

    def end(self) -> None:
        """Everything that was sent has come to something."""
        self._stopping.set()
        self._thread.join()


class Reader:
    """Reader of all partitions from their end.

    ``wrong``: violations that no reader may see.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_commit_interval_ms=1000,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        parts = self._consumer.partitions_for_topic(topic)
        self._parts = [TopicPartition(topic, part) for part in sorted(parts)]
        self._consumer.assign(self._parts)
        self._consumer.seek_to_end(*self._parts)
        self._next = {part: self._consumer.position(part) for part in self._parts}
        self._last = dict.fromkeys(self._parts, -1)
        self.read: set[int] = set()
        self.wrong: list[str] = []

    def look(self) -> None:
        for part, records in self._consumer.poll(timeout_ms=200).items():
            for record in records:
                self._judge(part, record.offset, int(record.value[:8]))

    def _judge(self, part: TopicPartition, offset: int, number: int) -> None:
        where = f"partition {part.partition}, offset {offset}"
        # Without transactions, offsets have no gaps.
        if offset != self._next[part]:
            self.wrong.append(f"{where}: expected {self._next[part]}")
        # Within a partition the producer's order is kept.
        if number <= self._last[part]:
            self.wrong.append(f"{where}: number {number} after {self._last[part]}")
        self._next[part], self._last[part] = offset + 1, number
        self.read.add(number)

    def end(self) -> dict[str, int]:
        """Return the committed offsets by partition."""
        self._consumer.commit()
        found = {str(part.partition): self._consumer.committed(part) for part in self._parts}
        self._consumer.close()
        return found


def main(bootstrap: str, topic: str, group: str, first: int) -> None:
    reader = Reader(bootstrap, topic, group)
    writer = Writer(bootstrap, topic, first)
    ending, flows = threading.Event(), False

    # The program ends with its standard input, which the kubelet closes when the caller disappears.
    def wait_for_the_end() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    writer.begin()
    while not ending.is_set():
        reader.look()
        if reader.read and not flows:
            flows = True
            print(FLOWS, flush=True)
    writer.end()
    # After the last write, the reader gets a minute to catch up.
    deadline_s = time.monotonic() + LAST_TIMEOUT_S
    while writer.acknowledged - reader.read and time.monotonic() < deadline_s:
        reader.look()
    missing = writer.acknowledged - reader.read
    outcome = {
        "acknowledged": len(writer.acknowledged),
        "next": max(writer.acknowledged, default=first - 1) + 1,
        "longest_s": round(writer.longest_s, 2),
        "failed": len(writer.failures),
        "failures": writer.failures[:TOLD],
        "missing": len(missing),
        "wrong": reader.wrong[:TOLD],
        "committed": reader.end(),
    }
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    _, server, name, reader_group, begin = sys.argv
    main(server, name, reader_group, int(begin))
