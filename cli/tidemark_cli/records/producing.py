"""Run of ``tidemark produce``: records from their source to the brokers, at a rate."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.producer import Acknowledged, RecordProducer
from tidemark.kafka_client.topic_leaders import TopicLeaders
from tidemark.message_text import count
from tidemark.records.builder import Record
from tidemark_cli.records import inputs
from tidemark_cli.records.text import partitions_text, rate_text
from tidemark_cli.sizes import size_text


@dataclass(frozen=True, slots=True)
class ProducePlan:
    """Records to send, their partition and their rate.

    ``count`` None: until the source ends. ``partition`` None: by key. ``value`` None, ``size`` 0
    and ``of_flights`` False: lines of standard input, split at ``separator`` if it is not empty.
    """

    topic: str
    fields: inputs.RecordFields
    partition: int | None = None
    count: int | None = None
    rate: float | None = None
    codec: int = 0
    acks: int = -1
    value: bytes | None = None
    size: int = 0
    of_flights: bool = False
    separator: bytes = b""


class Producing:
    """Run of a plan, with its figures."""

    def __init__(self, plan: ProducePlan) -> None:
        self._plan = plan
        self._sent = 0
        self._bytes = 0
        self._acknowledged: dict[int, Acknowledged] = {}
        self._began = time.monotonic()

    @property
    def records(self) -> int:
        """Return the number of acknowledged records."""
        return sum(total.records for total in self._acknowledged.values())

    @property
    def has_begun(self) -> bool:
        """Return whether a record was sent."""
        return self._sent > 0

    def progress(self) -> str:
        """Return one line for a run that continues."""
        seconds = time.monotonic() - self._began
        return f"{count(self.records, 'record')} so far, {rate_text(self.records, seconds)}"

    def summary(self) -> str:
        """Return one line for a run that has ended."""
        ranges = {
            partition: f"{total.first_offset}-{total.next_offset - 1}"
            for partition, total in self._acknowledged.items()
            if total.first_offset >= 0
        }
        seconds = time.monotonic() - self._began
        # The bytes count what was sent, so they are for a complete run only.
        size = f" ({size_text(self._bytes)})" if self.records == self._sent else ""
        line = f"sent {count(self.records, 'record')}{size} to {self._plan.topic}"
        line += f" in {rate_text(self.records, seconds)}"
        if self.records < self._sent:
            line += f"; {count(self._sent - self.records, 'record')} not acknowledged"
        return f"{line}; offsets by partition: {partitions_text(ranges)}" if ranges else line

    async def run(self, client: KafkaClient, stop: asyncio.Event) -> None:
        """Send all records and wait until they are acknowledged.

        Raises ``KafkaError``, :class:`~tidemark_cli.records.inputs.BadInput`. What was acknowledged
        before an error is in the summary.
        """
        plan = self._plan
        leaders = TopicLeaders(client, plan.topic)
        await leaders.refresh()
        if plan.partition is not None:
            leaders.check([plan.partition])
        producer = RecordProducer(leaders, codec=plan.codec, acks=plan.acks)
        self._acknowledged = producer.acknowledged
        await producer.start()
        # Made before the clock starts: the flights are read from a large file.
        records = self._paced(self._lines(stop) if self._reads_lines else self._made(), stop)
        self._began = time.monotonic()
        try:
            async for record in records:
                await producer.send(record, plan.partition)
                self._sent += 1
                self._bytes += len(record.key or b"") + len(record.value or b"")
            await producer.flush()
        finally:
            await producer.close()

    @property
    def _reads_lines(self) -> bool:
        plan = self._plan
        return plan.value is None and not plan.size and not plan.of_flights

    async def _paced(
        self, source: AsyncIterator[Record], stop: asyncio.Event
    ) -> AsyncIterator[Record]:
        """Yield the records of a source at their rate, until the count or ``stop``."""
        plan = self._plan
        number = 0
        async for record in source:
            # The start of the whole run counts, so pauses that were too long are made up for.
            early = self._began + number / plan.rate - time.monotonic() if plan.rate else 0.0
            if early > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(early):
                        await stop.wait()
            if stop.is_set():
                return
            yield record
            number += 1
            if number == plan.count:
                return

    async def _lines(self, stop: asyncio.Event) -> AsyncIterator[Record]:
        """Yield the lines of standard input as records."""
        number = 0
        async for line in inputs.lines(inputs.read_standard_input, stop):
            number += 1
            key, value = inputs.split_key(line, number, self._plan.separator)
            yield self._plan.fields.record(value, _now_ms(), key=key)

    def _made(self) -> AsyncIterator[Record]:
        """Return the records of a source other than standard input."""
        plan = self._plan
        if plan.of_flights:
            return _asynchronous(inputs.flights(plan.count))
        values: Iterator[bytes] = (
            inputs.generated_values(plan.size)
            if plan.value is None
            else itertools.repeat(plan.value)
        )
        return _asynchronous(plan.fields.record(value, _now_ms()) for value in values)


async def _asynchronous(records: Iterable[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
