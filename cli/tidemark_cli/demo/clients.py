"""Third-party Kafka clients as the demo uses them: confluent-kafka and kafka-python.

Every acknowledged record is stored by (partition, offset), so that a later read is compared record
by record.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from tidemark.message_text import count
from tidemark_cli.records.flights import Flight

Record = tuple[bytes | None, bytes | None, int]
READ_TIMEOUT_S = 180.0

#: librdkafka logs every broken connection. The demo kills brokers on purpose, and only checks
#: whether each record was acknowledged.
_librdkafka = logging.getLogger("librdkafka")
_librdkafka.addHandler(logging.NullHandler())
_librdkafka.propagate = False


@dataclass(slots=True)
class Ledger:
    """Acknowledged records by partition and offset: (key, value, timestamp in ms)."""

    records: dict[tuple[int, int], Record] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def next_offsets(self, partitions: int) -> dict[int, int]:
        """Return the offset after the last acknowledged record of each partition."""
        ends = dict.fromkeys(range(partitions), 0)
        for partition, offset in self.records:
            ends[partition] = max(ends[partition], offset + 1)
        return ends

    def first_offset_at(self, partitions: int, timestamp_ms: int) -> dict[int, int]:
        """Return by partition the first offset whose timestamp is not below ``timestamp_ms``."""
        first_offsets = self.next_offsets(partitions)
        for (partition, offset), (_, _, stamp) in self.records.items():
            if stamp >= timestamp_ms and offset < first_offsets[partition]:
                first_offsets[partition] = offset
        return first_offsets

    def from_offsets(self, starts: Mapping[int, int]) -> dict[tuple[int, int], Record]:
        """Return the acknowledged records at or above the start of their partition."""
        return {place: r for place, r in self.records.items() if place[1] >= starts[place[0]]}


def produce(
    bootstrap: str,
    topic: str,
    flights: Iterable[Flight],
    ledger: Ledger,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Produce records with acks=all and store every acknowledgement in the ledger.

    Records that are not acknowledged in 120 s become failures of the ledger.
    """
    producer = Producer(_producer_settings(bootstrap), logger=_librdkafka)

    # Callbacks run in flush and poll; each needs the flight that it acknowledges.
    def delivered(flight: Flight) -> Callable[[KafkaError | None, Message], None]:
        def callback(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                ledger.failures.append(str(error))
                return
            ledger.records[_place(message)] = (flight.key, flight.value, flight.timestamp_ms)

        return callback

    for number, flight in enumerate(flights, start=1):
        _send(producer, topic, flight, delivered(flight))
        # Progress is reported rarely, so that printing does not slow down producing.
        if number % 20_000 == 0:
            on_progress(number)
    # A record without an acknowledgement is a failure of the demo.
    unacknowledged = producer.flush(120)
    if unacknowledged:
        ledger.failures.append(
            f"{count(unacknowledged, 'record', 'was')} not acknowledged in 120 s"
        )


class SteadyProducer:
    """Background producer that sends at a steady rate until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, flights: list[Flight], ledger: Ledger) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=produce, args=(bootstrap, topic, self._stream(flights), ledger), daemon=True
        )
        self._thread.start()

    def _stream(self, flights: list[Flight]) -> Iterable[Flight]:
        for number, flight in enumerate(flights):
            if self._stop.is_set():
                return
            if number % 100 == 0:  # at most 5,000 records per second
                time.sleep(0.02)
            yield flight

    def stop(self) -> None:
        """Stop sending, and wait until every record is acknowledged or has failed."""
        self._stop.set()
        self._thread.join(180)


def read_confluent(
    bootstrap: str, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> dict[tuple[int, int], Record]:
    """Return all records from ``starts`` to ``ends``, read with confluent-kafka.

    Both are offsets by partition, ``ends`` exclusive. The result is by (partition, offset). Records
    that did not arrive in time are missing.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
        },
        logger=_librdkafka,
    )
    consumer.assign([TopicPartition(topic, p, o) for p, o in starts.items() if o < ends[p]])
    unfinished = {p for p, end in ends.items() if starts[p] < end}
    records: dict[tuple[int, int], Record] = {}
    deadline = time.monotonic() + READ_TIMEOUT_S
    while unfinished and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                raise RuntimeError(f"confluent-kafka: {message.error()}")
            # The end is exclusive: later records may be there, as producers continue meanwhile.
            partition, offset = _place(message)
            if offset < ends[partition]:
                _, stamp = message.timestamp()
                records[partition, offset] = (message.key(), message.value(), stamp)
            if offset + 1 >= ends[partition]:
                unfinished.discard(partition)
    consumer.close()
    return records


def read_kafka_python(
    bootstrap: str, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> dict[tuple[int, int], Record]:
    """Return all records from ``starts`` to ``ends``, read with kafka-python.

    Parameters and result are those of :func:`read_confluent`.
    """
    # Without a group and with explicit offsets, so that a gap is an error rather than a reset.
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        enable_auto_commit=False,
        auto_offset_reset="none",
        group_id=None,
    )
    # Empty partitions have nothing to wait for.
    assigned = {p: PythonTopicPartition(topic, p) for p in starts if starts[p] < ends[p]}
    consumer.assign(list(assigned.values()))
    for partition, place in assigned.items():
        consumer.seek(place, starts[partition])
    unfinished = set(assigned)
    records: dict[tuple[int, int], Record] = {}
    deadline = time.monotonic() + READ_TIMEOUT_S
    # The deadline turns a missing record into a difference instead of a hang.
    while unfinished and time.monotonic() < deadline:
        for place, messages in consumer.poll(timeout_ms=1000, max_records=10_000).items():
            for message in messages:
                # Records that were written after the ends were read do not count.
                if message.offset < ends[place.partition]:
                    record = (message.key, message.value, message.timestamp)
                    records[place.partition, message.offset] = record
            if messages and messages[-1].offset + 1 >= ends[place.partition]:
                unfinished.discard(place.partition)
    consumer.close()
    return records


def _place(message: Message) -> tuple[int, int]:
    """Return (partition, offset) of a delivered message."""
    partition, offset = message.partition(), message.offset()
    if partition is None or offset is None:
        raise RuntimeError("a delivered message has no partition or no offset")
    return partition, offset


def _producer_settings(bootstrap: str) -> dict[str, object]:
    return {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": False,
        "linger.ms": 20,
        "batch.size": 65536,
        "queue.buffering.max.messages": 400_000,
        "message.timeout.ms": 120_000,
        "socket.connection.setup.timeout.ms": 5_000,
    }


def _send(
    producer: Producer,
    topic: str,
    flight: Flight,
    callback: Callable[[KafkaError | None, Message], None],
) -> None:
    """Queue one record in the producer; block while its queue is full.

    ``callback``: called when the record is acknowledged or has failed.
    """
    while True:
        try:
            producer.produce(
                topic,
                key=flight.key,
                value=flight.value,
                timestamp=flight.timestamp_ms,
                on_delivery=callback,
            )
            producer.poll(0)
        # The client's queue is full: wait until acknowledgements free some of it.
        except BufferError:
            producer.poll(0.1)
        else:
            return
