"""The client of the comparison, in a process of its own: ``python -m tests.benchmarks.load JSON``.

Produces, fetches or reads as a group with librdkafka, as a :class:`ClientLoad` says, and prints the
result as one line of JSON. Times are of the clock that all processes of the machine share.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

RECORD_BYTES = 1024
_TIMEOUT_S = 300
_WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """Work of one client.

    ``records``: number to produce, or of a topic to be read by a group. ``rate``: records a second,
    0: as fast as possible. ``trusted``: certificate for TLS. ``share``: (which, of how many)
    clients, for partitions to be read. ``until``: end of each partition for ``readers``, which
    read for ``seconds`` (0: once). ``fetch_bytes``: limit of one partition in a Fetch.
    """

    kind: str
    bootstrap: str
    topic: str
    records: int
    record_bytes: int = RECORD_BYTES
    partitions: int = 1
    acks: str = "all"
    idempotent: bool = False
    rate: int = 0
    members: int = 1
    share: tuple[int, int] = (0, 1)
    trusted: str = ""
    until: Sequence[int] = ()
    seconds: float = 0
    fetch_bytes: int = 8_000_000

    def as_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


Answer = Mapping[str, float]


def _common(load: ClientLoad) -> dict[str, object]:
    tls = {"security.protocol": "SSL", "ssl.ca.location": load.trusted} if load.trusted else {}
    return {"bootstrap.servers": load.bootstrap, **tls}


def produce(load: ClientLoad) -> Answer:
    """From the first record to the last acknowledgement."""
    failures: list[str] = []
    # Batches of 1 MB and large queues, so that the brokers and not the client are the limit.
    producer = Producer(
        _common(load)
        | {
            "acks": load.acks,
            "enable.idempotence": load.idempotent,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "error_cb": lambda error: failures.append(str(error)),
        }
    )
    # Random bytes, which no codec shrinks. 64 of them keep generation out of the time.
    payloads = [os.urandom(load.record_bytes) for _ in range(64)]
    began = time.monotonic()
    for number in range(load.records):
        while True:
            try:
                producer.produce(
                    load.topic, payloads[number & 63], partition=number % load.partitions
                )
            except BufferError:
                producer.poll(0.01)
            else:
                break
        # Delivery reports are served now and then: each call would cost more than the report.
        if number & 1023 == 0:
            producer.poll(0)
    left = producer.flush(120)
    ended = time.monotonic()
    if left or failures:
        raise SystemExit(f"{left} records not acknowledged; {failures[:3]}")
    return {"began": began, "ended": ended, "records": load.records}


def latency(load: ClientLoad) -> Answer:
    """Milliseconds from handing over a record to its acknowledgement, at a steady rate."""
    producer = Producer(
        _common(load) | {"acks": load.acks, "enable.idempotence": load.idempotent, "linger.ms": 0}
    )
    payload = os.urandom(load.record_bytes)
    taken: list[float] = []
    failed: list[str] = []
    began = time.monotonic()
    for number in range(load.records):
        # Sent by the clock, so that a slow answer does not lower the rate (coordinated omission).
        due = began + number / load.rate
        while (left := due - time.monotonic()) > 0:
            producer.poll(left)
        # Two seconds of warm-up are not counted.
        warm = due - began >= _WARM_UP_S
        producer.produce(
            load.topic,
            payload,
            partition=number % load.partitions,
            on_delivery=_noting(time.monotonic(), taken if warm else [], failed),
        )
    if producer.flush(60) or failed:
        raise SystemExit(f"records were not acknowledged: {failed[:3]}")
    taken.sort()
    return {f"p{share}": taken[int(len(taken) * share / 100)] * 1000 for share in (50, 99, 99.9)}


def _noting(
    since: float, taken: list[float], failed: list[str]
) -> Callable[[KafkaError | None, Message], None]:
    def delivered(error: KafkaError | None, _: Message) -> None:
        taken.append(time.monotonic() - since)
        if error is not None:
            failed.append(str(error))

    return delivered


def _consumer(load: ClientLoad) -> Consumer:
    return Consumer(
        _common(load)
        | {
            "group.id": f"bench-{load.topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": load.fetch_bytes,
            "queued.max.messages.kbytes": 512_000 // load.members,
            # A client whose queue is full would rest for a second, how fast the broker may be.
            "fetch.queue.backoff.ms": 10,
        }
    )


def fetch(load: ClientLoad) -> Answer:
    """To read all records of this client's share of the partitions, from their start."""
    consumer = _consumer(load)
    which, of = load.share
    mine = [TopicPartition(load.topic, index, 0) for index in range(which, load.partitions, of)]
    # The end of each partition is known before the time runs.
    wanted = sum(consumer.get_watermark_offsets(item, timeout=30)[1] for item in mine)
    seen = 0
    began = time.monotonic()
    consumer.assign(mine)
    while seen < wanted and time.monotonic() - began < _TIMEOUT_S:
        seen += len(_messages(consumer, 1.0))
    ended = time.monotonic()
    consumer.close()
    if seen < wanted:
        raise SystemExit(f"only {seen} of {wanted} records came back")
    return {"began": began, "ended": ended, "records": seen}


def group(load: ClientLoad) -> Answer:
    """Read all records as members of one group.

    Time runs from the first record that any member has, and ends no earlier than the assignment of
    all partitions.
    """
    # Members share one account of what the group has read.
    readers = Readers(load.partitions, load.records)
    began = time.monotonic()

    def member() -> None:
        consumer = _consumer(load)
        consumer.subscribe([load.topic], on_assign=readers.assigned, on_revoke=readers.revoked)
        while not readers.have_all and time.monotonic() - began < _TIMEOUT_S:
            readers.took(_messages(consumer, 0.2))
        consumer.close()

    # Threads of one process: the clients' work is in C, and the members need a common clock.
    threads = [threading.Thread(target=member) for _ in range(load.members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not readers.have_all:
        raise SystemExit(f"only {readers.records} of {load.records} records came back")
    return {
        "began": readers.first,
        "ended": readers.last,
        "records": readers.records,
        "joined": readers.joined - began,
    }


def readers(load: ClientLoad) -> Answer:
    """Read the partitions up to ``until``, by ``members`` consumers that share them."""
    counts = [0] * load.members
    failures: list[str] = []
    began = time.monotonic()

    def read(which: int) -> None:
        mine = range(which, load.partitions, load.members)
        # With a time to read for, each reader restarts until it has passed.
        try:
            counts[which] = _read_up_to(load, mine)
            while time.monotonic() - began < load.seconds:
                counts[which] += _read_up_to(load, mine)
        # A thread's error would only be printed.
        except SystemExit as error:
            failures.append(str(error))

    # The clients' work is in C, so threads of one process suffice.
    threads = [threading.Thread(target=read, args=(which,)) for which in range(load.members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit("; ".join(failures[:3]))
    return {"began": began, "ended": time.monotonic(), "records": sum(counts)}


def _read_up_to(load: ClientLoad, partitions: Sequence[int]) -> int:
    """Read the partitions from their start up to ``load.until``; return the number of records."""
    consumer = _consumer(load)
    left = {number for number in partitions if load.until[number]}
    consumer.assign([TopicPartition(load.topic, number, 0) for number in left])
    deadline = time.monotonic() + _TIMEOUT_S
    while left and time.monotonic() < deadline:
        for message in _messages(consumer, 1.0):
            if message.offset() + 1 >= load.until[message.partition()]:
                left.discard(message.partition())
    consumer.close()
    if left:
        raise SystemExit(f"partitions {sorted(left)} were not read to their end")
    return sum(load.until[number] for number in partitions)


class Readers:
    """Shared state of the members of a group.

    Members commit nothing, so after a rebalance they may read records again. Offsets are therefore
    counted, not records.
    """

    def __init__(self, partitions: int, records: int) -> None:
        self._partitions, self._wanted = partitions, records
        self._lock = threading.Lock()
        self._assigned = 0
        self._next_offsets = [0] * partitions
        self.have_all = False
        self.first = self.last = self.joined = 0.0

    @property
    def records(self) -> int:
        """Number of distinct records that the group has read."""
        return sum(self._next_offsets)

    def assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """All of them are, where that makes it so."""
        with self._lock:
            self._assigned += len(partitions)
            if self._assigned >= self._partitions and not self.joined:
                self.joined = time.monotonic()

    def revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Release partitions for reassignment, or end the member once everything is read."""
        with self._lock:
            self._assigned -= len(partitions)
            # A rebalance in the middle: the assignment is not complete any more.
            if not self.have_all:
                self.joined = 0.0

    def took(self, messages: Sequence[Message]) -> None:
        """Count the messages of one member."""
        if not messages:
            return
        with self._lock:
            for message in messages:
                number = message.partition()
                # A record that is read twice after a rebalance counts once.
                self._next_offsets[number] = max(self._next_offsets[number], message.offset() + 1)
            self.last = time.monotonic()
            self.first = self.first or self.last
            if self.records >= self._wanted:
                self.have_all = True
                self.joined = self.joined or self.last


def _messages(consumer: Consumer, timeout_s: float) -> Sequence[Message]:
    """Return the next messages, as soon as there are any; none after the timeout."""
    # ``consume`` returns early only with the full number, which the end of a partition may not
    # have. So request one message, and then all others that have arrived.
    messages = consumer.consume(1, timeout_s)
    if messages:
        messages += consumer.consume(10_000, 0)
    for message in messages:
        if message.error() is not None:
            raise SystemExit(str(message.error()))
    return messages


KINDS: dict[str, Callable[[ClientLoad], Answer]] = {
    "produce": produce,
    "fetch": fetch,
    "latency": latency,
    "group": group,
    "readers": readers,
}

if __name__ == "__main__":
    asked = ClientLoad(**json.loads(sys.argv[1]))
    print(json.dumps(KINDS[asked.kind](asked)))
