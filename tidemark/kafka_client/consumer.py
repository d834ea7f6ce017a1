"""Consumer of one topic's records: positions, Fetch requests to the leaders, committed records.

Each leader has at most one request in flight, and its answer is bounded, so memory is too. A reader
does not know of groups: its caller assigns partitions to it.
"""

import asyncio
import contextlib
import datetime
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.fetch.v12.response import FetchResponse, PartitionData
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tidemark.kafka_client.errors import ClusterRefused, Unreachable
from tidemark.kafka_client.topic_leaders import PATIENCE_S, RETRY, TopicLeaders
from tidemark.kafka_client.values import EARLIEST
from tidemark.records.batch import HEADER_BYTES, CorruptBatch, check_crc, read_header
from tidemark.records.decode import DecodedRecord, decode_records
from tidemark.records.read_committed import AbortedProducers

#: Bytes in one answer of a leader, and of one partition in it.
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_PARTITION_BYTES_MAX = 1024 * 1024
#: Time for which a leader waits for new records.
_WAIT_S = 0.5
_WAIT = i32Timedelta.parse(datetime.timedelta(seconds=_WAIT_S))
_REQUEST_TIMEOUT_S = 30.0


class Fetched(NamedTuple):
    """Batches of one partition that a leader answered, from a position on."""

    partition: int
    position: int
    data: bytes
    aborted: tuple[tuple[int, int], ...]


class _Request(NamedTuple):
    """Request in flight: its task, and the position of each requested partition."""

    task: asyncio.Task[FetchResponse]
    positions: dict[int, int]


class RecordReader:
    """Reader of assigned partitions of one topic; close it.

    ``committed``: skip records of aborted and undecided transactions.
    """

    def __init__(self, leaders: TopicLeaders, *, committed: bool = True) -> None:
        self._leaders = leaders
        self._committed = committed
        self._requests: dict[int, _Request] = {}
        self._rounds = 0
        self._failing_since: dict[int, float] = {}
        self._pause = RETRY
        #: Next offset by assigned partition.
        self.positions: dict[int, int] = {}
        #: Offset at which a partition ends for this reader; without an entry it has no end.
        self.ends: dict[int, int] = {}
        #: Partitions whose position was expired, with the offset that replaced it.
        self.skipped: dict[int, int] = {}

    def assign(self, positions: Mapping[int, int], ends: Mapping[int, int] | None = None) -> None:
        """Add partitions, or replace their positions."""
        self.positions.update(positions)
        self.ends.update(ends or {})

    def unassign(self, partitions: Iterable[int]) -> None:
        """Remove partitions; answers that are on their way are dropped."""
        for partition in partitions:
            self.positions.pop(partition, None)
            self.ends.pop(partition, None)
            self._failing_since.pop(partition, None)

    @property
    def unfinished(self) -> list[int]:
        """Return the assigned partitions that are not read to their end."""
        return [
            partition
            for partition, position in self.positions.items()
            if partition not in self.ends or position < self.ends[partition]
        ]

    async def close(self) -> None:
        """Cancel the requests in flight."""
        tasks = [request.task for request in self._requests.values()]
        self._requests.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def poll(self) -> list[Fetched]:
        """Return what the next leader answers; nothing if no record arrived within a second.

        Raises ``KafkaError`` if a leader failed for :data:`PATIENCE_S`.
        """
        self._send_requests()
        if not self._requests:
            # Nothing is assigned, or all of it is read.
            await asyncio.sleep(_WAIT_S if not self.positions else 0)
            return []
        tasks = [request.task for request in self._requests.values()]
        done, _ = await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        fetched: list[Fetched] = []
        failed = False
        for leader, request in list(self._requests.items()):
            if request.task not in done:
                continue
            del self._requests[leader]
            problems = await self._take(request, fetched)
            failed = failed or bool(problems)
            self._note(request.positions, problems)
        if failed:
            await self._recover()
        elif fetched:
            self._pause = RETRY
        return fetched

    def records(self, fetched: Fetched) -> Iterator[DecodedRecord]:
        """Yield the records of an answer, and move the partition's position past each of them.

        A caller that stops early continues at the next record. Raises ClusterRefused if a batch is
        damaged.
        """
        partition, view = fetched.partition, memoryview(fetched.data)
        aborted = AbortedProducers(fetched.aborted)
        at = 0
        try:
            # An answer may end in the middle of a batch, which the next request returns whole.
            while len(view) - at >= HEADER_BYTES:
                header = read_header(view, at)
                if header.size_bytes > len(view) - at:
                    break
                batch = view[at : at + header.size_bytes]
                at += header.size_bytes
                check_crc(batch, 0, header)
                # Without read_committed, markers are left out and all records are returned.
                excluded = aborted.excludes(header, batch) if self._committed else header.is_control
                for record in () if excluded else decode_records(batch):
                    # The first batch may begin before the position.
                    if record.offset < self.positions.get(partition, 2**63):
                        continue
                    if record.offset >= self.ends.get(partition, 2**63):
                        self.positions[partition] = self.ends[partition]
                        return
                    self.positions[partition] = record.offset + 1
                    yield record
                # Compaction leaves gaps, and a marker has an offset: the batch's end counts.
                if partition in self.positions:
                    self.positions[partition] = max(self.positions[partition], header.next_offset)
        except CorruptBatch as error:
            name = f"partition {partition} of {self._leaders.topic}"
            raise ClusterRefused(f"{name} has a damaged batch: {error}") from error

    # ------------------------------------------------------------ inside

    def _send_requests(self) -> None:
        """Send a Fetch request to each leader that has unfinished partitions and no request."""
        in_flight = {p for request in self._requests.values() for p in request.positions}
        by_leader: dict[int, list[int]] = {}
        for partition in self.unfinished:
            if partition not in in_flight:
                by_leader.setdefault(self._leaders.of.get(partition, -1), []).append(partition)
        self._rounds += 1
        for leader, partitions in by_leader.items():
            if leader in self._requests:
                continue
            # A leader fills its answer in the order of the request, so the order rotates.
            first = self._rounds % len(partitions)
            ordered = partitions[first:] + partitions[:first]
            positions = {partition: self.positions[partition] for partition in ordered}
            task = asyncio.create_task(self._fetch(leader, positions))
            self._requests[leader] = _Request(task, positions)

    async def _fetch(self, leader: int, positions: Mapping[int, int]) -> FetchResponse:
        """Send one Fetch request without a session (KIP-227). Raises ``KafkaError``."""
        # All these partitions have the same leader, or none.
        self._leaders.leader(next(iter(positions)))
        # The leader answers with the first byte, or with nothing after the wait.
        request = fetch_request.FetchRequest(
            max_wait=_WAIT,
            min_bytes=i32(1),
            max_bytes=i32(_ANSWER_BYTES_MAX),
            isolation_level=i8(1 if self._committed else 0),
            topics=(
                fetch_request.FetchTopic(
                    topic=TopicName(self._leaders.topic),
                    partitions=tuple(
                        fetch_request.FetchPartition(
                            partition=i32(partition),
                            fetch_offset=i64(position),
                            partition_max_bytes=i32(_PARTITION_BYTES_MAX),
                        )
                        for partition, position in positions.items()
                    ),
                ),
            ),
            forgotten_topics_data=(),
        )
        return await self._leaders.client.request_node(
            leader, request, FetchResponse, _REQUEST_TIMEOUT_S
        )

    async def _take(self, request: _Request, fetched: list[Fetched]) -> dict[int, str]:
        """Add the batches of a finished request to ``fetched``; return problems by partition.

        Raises ClusterRefused for an error that a repetition cannot fix.
        """
        try:
            answer = request.task.result()
        except Unreachable as error:
            return dict.fromkeys(request.positions, str(error))
        if answer.error_code:
            return dict.fromkeys(request.positions, answer.error_code.name.upper())
        problems: dict[int, str] = {}
        for topic in answer.responses:
            for result in topic.partitions:
                partition = int(result.partition_index)
                position = request.positions.get(partition, -1)
                # Unassigned, or moved meanwhile: the answer is outdated.
                if self.positions.get(partition) != position:
                    continue
                if result.error_code == ErrorCode.offset_out_of_range:
                    await self._replace_position(partition)
                elif result.error_code:
                    problems[partition] = self._problem(partition, result.error_code)
                elif result.records:
                    fetched.append(_fetched(partition, position, result))
        return problems

    def _problem(self, partition: int, code: ErrorCode) -> str:
        problem = f"partition {partition} of {self._leaders.topic}: {code.name.upper()}"
        if not code.retriable:
            raise ClusterRefused(problem)
        return problem

    async def _replace_position(self, partition: int) -> None:
        """Continue at the log start, as retention has deleted the record at the position."""
        start = (await self._leaders.offsets({partition: EARLIEST}))[partition]
        self.positions[partition] = self.skipped[partition] = start

    def _note(self, requested: Iterable[int], problems: Mapping[int, str]) -> None:
        """Record since when partitions fail. Raises Unreachable after :data:`PATIENCE_S`."""
        now = time.monotonic()
        for partition in requested:
            if partition not in problems:
                self._failing_since.pop(partition, None)
            elif now - self._failing_since.setdefault(partition, now) > PATIENCE_S:
                raise Unreachable(f"{problems[partition]} (repeated for {PATIENCE_S:.0f} s)")

    async def _recover(self) -> None:
        """Pause, then read the leaders again: a partition may have another leader now."""
        self._pause = self._pause.failed(time.monotonic())
        await asyncio.sleep(self._pause.pause_s(self._pause.failures))
        with contextlib.suppress(Unreachable):
            await self._leaders.refresh()


def _fetched(partition: int, position: int, result: PartitionData) -> Fetched:
    aborted = tuple(
        (int(transaction.producer_id), int(transaction.first_offset))
        for transaction in result.aborted_transactions or ()
    )
    return Fetched(partition, position, bytes(result.records or b""), aborted)
