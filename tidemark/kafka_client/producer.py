"""Producer of one topic's records: batches by partition, with idempotent repetitions (KIP-98).

Each partition has at most one request in flight, so records of a partition keep their order. Memory
is bounded: :meth:`RecordProducer.send` waits while too many bytes are unacknowledged.
"""

import asyncio
import contextlib
import datetime
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.produce.v11 import request as produce_request
from kio.schema.produce.v11.response import ProduceResponse
from kio.schema.types import TopicName
from kio.static.primitive import Records, i16, i32, i32Timedelta

from tidemark.kafka_client.errors import ClusterRefused, KafkaError, Unreachable
from tidemark.kafka_client.topic_leaders import PATIENCE_S, RETRY, TopicLeaders
from tidemark.records.builder import Record, build_batch

#: Values of ``acks``: all in-sync replicas, and the leader only.
ALL, LEADER = -1, 1
#: Unacknowledged bytes of all partitions together.
BUFFER_BYTES_MAX = 4 * 1024 * 1024
#: Bytes of records in one batch before compression; brokers accept 1 MiB by default.
BATCH_BYTES_MAX = 256 * 1024
#: Time for which the first record of a batch waits for others.
_LINGER_S = 0.005
_REQUEST_TIMEOUT_S = 30.0
_RECORD_OVERHEAD_BYTES = 24
_NONE_S = i32Timedelta.parse(datetime.timedelta())


@dataclass(slots=True)
class Acknowledged:
    """Acknowledged records of one partition; offsets are -1 if the leader did not report them."""

    records: int = 0
    first_offset: int = -1
    next_offset: int = -1


@dataclass(slots=True)
class _Queue:
    """Records of one partition that wait, and the task that sends them."""

    records: deque[tuple[Record, int]] = field(default_factory=deque)
    sequence: int = 0
    task: asyncio.Task[None] | None = None

    def take(self) -> tuple[list[Record], int]:
        """Remove the records of the next batch, and return them with their bytes."""
        taken: list[Record] = []
        size = 0
        while self.records and (not taken or size + self.records[0][1] <= BATCH_BYTES_MAX):
            record, record_bytes = self.records.popleft()
            taken.append(record)
            size += record_bytes
        return taken, size


class RecordProducer:
    """Producer for one topic and one loop."""

    def __init__(self, leaders: TopicLeaders, *, codec: int = 0, acks: int = ALL) -> None:
        """``codec``: compression, as in :mod:`tidemark.records.codecs`."""
        self._leaders = leaders
        self._codec = codec
        self._acks = acks
        self._producer_id, self._producer_epoch = -1, -1
        self._queues: dict[int, _Queue] = {}
        self._buffered_bytes = 0
        #: Bytes that were added since the tasks of the partitions could last run.
        self._unsent_bytes = 0
        self._space = asyncio.Event()
        self._failure: KafkaError | None = None
        # A random start, so that several runs of a single record do not all use partition 0.
        self._sticky = random.randrange(2**31)
        self._sticky_bytes = 0
        #: Acknowledged records by partition.
        self.acknowledged: dict[int, Acknowledged] = {}

    async def start(self) -> None:
        """Request a producer id, which makes repetitions harmless. Raises ``KafkaError``."""
        # Sequence numbers require acknowledgements of all in-sync replicas.
        if self._acks != ALL:
            return
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout=_NONE_S)
        deadline = time.monotonic() + _REQUEST_TIMEOUT_S
        while True:
            answer = await self._leaders.client.request_any(request, InitProducerIdResponse)
            if not answer.error_code:
                break
            # The controller may be busy with its start.
            if not answer.error_code.retriable or time.monotonic() > deadline:
                raise ClusterRefused(f"InitProducerId: {answer.error_code.name.upper()}")
            await asyncio.sleep(RETRY.most_s)
        self._producer_id = int(answer.producer_id)
        self._producer_epoch = int(answer.producer_epoch)

    async def send(self, record: Record, partition: int | None = None) -> None:
        """Add a record; wait while too many bytes are unacknowledged.

        ``partition`` None: by the hash of the key as in Kafka's clients, or the next one for a
        record without a key. Raises the error of an earlier record.
        """
        size = _size(record)
        # One record is always admitted, whatever its size.
        while self._buffered_bytes and self._buffered_bytes + size > BUFFER_BYTES_MAX:
            self._check()
            self._space.clear()
            await self._space.wait()
        self._check()
        number = self._choose(record, size) if partition is None else partition
        queue = self._queues.setdefault(number, _Queue())
        queue.records.append((record, size))
        self._buffered_bytes += size
        if queue.task is None:
            queue.task = asyncio.create_task(self._send_all(number, queue))
        # Without a pause the leaders would be idle until the buffer is full.
        self._unsent_bytes += size
        if self._unsent_bytes > BATCH_BYTES_MAX:
            self._unsent_bytes = 0
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until all records are acknowledged. Raises the error of the first that failed."""
        while running := [queue.task for queue in self._queues.values() if queue.task is not None]:
            await asyncio.gather(*running)
        self._check()

    async def close(self) -> None:
        """End without the records that are not acknowledged yet."""
        running = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # ------------------------------------------------------------ inside

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _choose(self, record: Record, size: int) -> int:
        """Return the partition of a record (KIP-480: records without a key share batches)."""
        count = len(self._leaders.of)
        if record.key is not None:
            return (murmur2(record.key) & 0x7FFFFFFF) % count
        queue = self._queues.get(self._sticky % count)
        if queue is None or queue.task is None or self._sticky_bytes + size > BATCH_BYTES_MAX:
            self._sticky, self._sticky_bytes = self._sticky + 1, 0
            # A partition without a leader would delay the records.
            for _ in range(count):
                if self._leaders.of[self._sticky % count] >= 0:
                    break
                self._sticky += 1
        self._sticky_bytes += size
        return self._sticky % count

    async def _send_all(self, partition: int, queue: _Queue) -> None:
        """Send what waits for a partition, batch by batch; errors are kept for the callers."""
        try:
            await asyncio.sleep(_LINGER_S)
            while queue.records and self._failure is None:
                records, size = queue.take()
                await self._send_batch(partition, queue, records)
                self._buffered_bytes -= size
                self._space.set()
        except KafkaError as error:
            self._failure = self._failure or error
        finally:
            queue.task = None
            self._space.set()

    async def _send_batch(self, partition: int, queue: _Queue, records: Sequence[Record]) -> None:
        """Send one batch until it is acknowledged. Raises ``KafkaError``."""
        batch = build_batch(
            records,
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=queue.sequence if self._producer_id >= 0 else -1,
        )
        name = f"partition {partition} of {self._leaders.topic}"
        deadline = time.monotonic() + PATIENCE_S
        pause = RETRY
        while True:
            problem = ""
            try:
                code, offset, message = await self._produce(partition, batch)
            except Unreachable as error:
                problem = str(error)
            else:
                # A repetition of a batch that was appended already is a success (KIP-98).
                if code in {ErrorCode.none, ErrorCode.duplicate_sequence_number}:
                    break
                # The limit of the topic is for a whole batch, so smaller batches may fit.
                if code == ErrorCode.message_too_large and len(records) > 1:
                    middle = len(records) // 2
                    await self._send_batch(partition, queue, records[:middle])
                    await self._send_batch(partition, queue, records[middle:])
                    return
                problem = f"{name}: {code.name.upper()}" + (f": {message}" if message else "")
                if not code.retriable:
                    raise ClusterRefused(problem)
            if time.monotonic() > deadline:
                raise Unreachable(f"{problem} (repeated for {PATIENCE_S:.0f} s)")
            # The leader may have moved. If no broker answers, the next repetition reads it again.
            pause = pause.failed(time.monotonic())
            await asyncio.sleep(pause.pause_s(pause.failures))
            with contextlib.suppress(Unreachable):
                await self._leaders.refresh()
        queue.sequence = (queue.sequence + len(records)) & 0x7FFFFFFF
        self._acknowledge(partition, offset, len(records))

    async def _produce(self, partition: int, batch: bytes) -> tuple[ErrorCode, int, str]:
        """Send one Produce request to the leader; return error code, base offset and message."""
        # The leader answers before this client gives up, also if a follower is slow.
        request = produce_request.ProduceRequest(
            acks=i16(self._acks),
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=_REQUEST_TIMEOUT_S - 5)),
            topic_data=(
                produce_request.TopicProduceData(
                    name=TopicName(self._leaders.topic),
                    partition_data=(
                        produce_request.PartitionProduceData(
                            index=i32(partition), records=Records(batch)
                        ),
                    ),
                ),
            ),
        )
        leader = self._leaders.leader(partition)
        answer = await self._leaders.client.request_node(
            leader, request, ProduceResponse, _REQUEST_TIMEOUT_S
        )
        # The request has one partition, and so has the answer.
        for topic in answer.responses:
            for result in topic.partition_responses:
                return result.error_code, int(result.base_offset), result.error_message or ""
        raise Unreachable(f"broker {leader}: the answer lacks partition {partition}")

    def _acknowledge(self, partition: int, offset: int, records: int) -> None:
        total = self.acknowledged.setdefault(partition, Acknowledged())
        total.records += records
        # The answer to a repetition may lack the offset.
        if offset >= 0:
            if total.first_offset < 0:
                total.first_offset = offset
            total.next_offset = offset + records


def _size(record: Record) -> int:
    """Return the approximate bytes of a record in a batch."""
    headers = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD_BYTES


def murmur2(data: bytes) -> int:
    """Return the hash by which Kafka's clients choose a key's partition, as an unsigned int32.

    The 32-bit MurmurHash2 with the seed of ``org.apache.kafka.common.utils.Utils.murmur2``.
    """
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    # Four bytes at a time, little endian.
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        part = (part ^ part >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ part
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15
