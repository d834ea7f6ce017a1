"""Run of ``tidemark produce``: records from their source to the brokers, at a rate."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator

from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.producer import Acknowledged, RecordProducer
from tidemark.kafka_client.topic_leaders import TopicLeaders
from tidemark.message_text import count
from tidemark.records.builder import Record
from tidemark_cli.records import inputs
from tidemark_cli.records.text import partitions_text, rate_text
from tidemark_cli.sizes import size_text


class Producing:
    """Run of the command, with its figures."""

    def __init__(
        self, topic: str, options: inputs.ProduceOptions, fields: inputs.RecordFields
    ) -> None:
        self._topic, self._options, self._fields = topic, options, fields
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
        line = f"sent {count(self.records, 'record')}{size} to {self._topic}"
        line += f" in {rate_text(self.records, seconds)}"
        if self.records < self._sent:
            line += f"; {count(self._sent - self.records, 'record')} not acknowledged"
        return f"{line}; offsets by partition: {partitions_text(ranges)}" if ranges else line

    async def run(self, client: KafkaClient, stop: asyncio.Event) -> None:
        """Send all records and wait until they are acknowledged.

        Raises ``KafkaError``, :class:`~tidemark_cli.records.inputs.BadInput`. What was acknowledged
        before an error is in the summary.
        """
        options = self._options
        leaders = TopicLeaders(client, self._topic)
        await leaders.refresh()
        if options.partition is not None:
            leaders.check([options.partition])
        codec, acks = inputs.CODECS[options.compression], inputs.ACKS[options.acks]
        producer = RecordProducer(leaders, codec=codec, acks=acks)
        self._acknowledged = producer.acknowledged
        await producer.start()
        # Made before the clock starts: the flights are read from a large file.
        records = self._paced(self._made() if options.sources() else self._lines(stop), stop)
        self._began = time.monotonic()
        try:
            async for record in records:
                await producer.send(record, options.partition)
                self._sent += 1
                self._bytes += len(record.key or b"") + len(record.value or b"")
            await producer.flush()
        finally:
            await producer.close()

    async def _paced(
        self, source: AsyncIterator[Record], stop: asyncio.Event
    ) -> AsyncIterator[Record]:
        """Yield the records of a source at their rate, until the count or ``stop``."""
        rate, records_max = self._options.rate, self._options.records_max()
        number = 0
        async for record in source:
            # The start of the whole run counts, so pauses that were too long are made up for.
            early = self._began + number / rate - time.monotonic() if rate else 0.0
            if early > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(early):
                        await stop.wait()
            if stop.is_set():
                return
            yield record
            number += 1
            if number == records_max:
                return

    async def _lines(self, stop: asyncio.Event) -> AsyncIterator[Record]:
        """Yield the lines of standard input as records."""
        separator, number = self._options.key_separator.encode(), 0
        async for line in inputs.lines(inputs.read_standard_input, stop):
            number += 1
            key, value = inputs.split_key(line, number, separator)
            yield self._fields.record(value, _now_ms(), key=key)

    def _made(self) -> AsyncIterator[Record]:
        """Return the records of a source other than standard input."""
        options = self._options
        if options.flights:
            return _asynchronous(inputs.flights(options.count))
        values: Iterator[bytes] = (
            inputs.generated_values(options.size)
            if options.value is None
            else itertools.repeat(options.value.encode())
        )
        return _asynchronous(self._fields.record(value, _now_ms()) for value in values)


async def _asynchronous(records: Iterable[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
