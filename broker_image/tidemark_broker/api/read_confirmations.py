"""Confirmations of leaders that a Reader may serve an offset from the tier.

A Reader (``Broker.spec.role``) has no replica, so it does not know which records are deleted. It
reads the tier, and then requests the decision of the leader, as if the consumer had sent the same
Fetch there. It sends the records only if the leader would read them from the tier as well. A Fetch
that begins after the acknowledgement of a deletion or a disablement therefore receives no deleted
record, and the leader waits for no Reader. A confirmation expires, because the Reader may have been
paused when it arrived.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence

from kio.static.constants import EntityType
from kio.static.primitive import i32, i64

from tidemark.lru import Lru
from tidemark.tier.metadata.head import HeadPosition
from tidemark.tls.identity import TlsIdentity
from tidemark.wire.entity import entity, wire
from tidemark.wire.framing import FrameError
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.replication.partition import Partition, consumer_reads
from tidemark_broker.replication.types import TopicIdPartition
from tidemark_broker.transactions.broker_connections import Links

CONFIRM_COLD_READS = 10011

#: Seconds from the request in which a confirmation is valid, and for which it is waited.
VALID_S = 1.0
#: Requests until one is answered in time. A pause of this process, or a leader that has restarted,
#: spoils the first one.
_ATTEMPTS = 2
#: Partitions of which the last answer is remembered.
_KNOWN_MAX = 10_000
#: Reads that are checked before the loop is yielded.
_SOME = 100
_nested = EntityType.nested


@entity(_nested, CONFIRM_COLD_READS)
class ColdRead:
    """Consumer's read of one partition, with the fields of its Fetch."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    current_leader_epoch: int = wire("int32")
    offset: int = wire("int64")
    last_fetched_epoch: int = wire("int32")


@entity(EntityType.request, CONFIRM_COLD_READS)
class ConfirmColdReadsRequest:
    """Reads that a Reader may serve, if the receiver leads their partitions and confirms them."""

    reads: tuple[ColdRead, ...]


@entity(_nested, CONFIRM_COLD_READS)
class ColdReadAnswer:
    """Answer for one read.

    ``is_cold``: the leader would read it from the tier. Otherwise the consumer must fetch from the
    leader, and the other fields may be -1. ``head_*``: position of the newest known head of the
    partition's manifest, -1 for none.
    """

    is_cold: bool = wire("bool")
    high_watermark: int = wire("int64", default=i64(-1))
    last_stable_offset: int = wire("int64", default=i64(-1))
    log_start_offset: int = wire("int64", default=i64(-1))
    local_log_start_offset: int = wire("int64", default=i64(-1))
    head_version: int = wire("int64", default=i64(-1))
    head_commit_id: str = wire("string", default="")
    head_floor_epoch: int = wire("int32", default=i32(0))

    @property
    def head(self) -> HeadPosition | None:
        """Position of the manifest's head, None if the leader knows none."""
        if self.head_version < 0:
            return None
        return HeadPosition(self.head_version, self.head_commit_id, self.head_floor_epoch)


@entity(EntityType.response, CONFIRM_COLD_READS)
class ConfirmColdReadsResponse:
    """Answers in the order of the request."""

    answers: tuple[ColdReadAnswer, ...]


NOT_COLD = ColdReadAnswer(is_cold=False)


class ConfirmationService:
    """Leader's side. ``by_id`` returns a hosted replica or None."""

    def __init__(self, by_id: Callable[[uuid.UUID, int], Partition | None]) -> None:
        self._by_id = by_id

    async def serve(
        self, request: ConfirmColdReadsRequest, peer: TlsIdentity, memory: ResponseMemory
    ) -> ConfirmColdReadsResponse:
        """Answer a Reader's request from memory."""
        answers = []
        for number, read in enumerate(request.reads):
            answers.append(_answer(self._by_id(read.topic_id, read.partition), read))
            if number % _SOME == _SOME - 1:
                await asyncio.sleep(0)
        return ConfirmColdReadsResponse(answers=tuple(answers))


def _answer(partition: Partition | None, read: ColdRead) -> ColdReadAnswer:
    if partition is None:
        return NOT_COLD
    # The same decision as for a consumer, but without room for records: leadership, epochs,
    # divergence, the log start, and whether the tier may be read.
    result = consumer_reads.fetch(
        partition,
        read.offset,
        max_bytes=0,
        min_one=False,
        current_leader_epoch=read.current_leader_epoch,
        last_fetched_epoch=read.last_fetched_epoch,
    )
    head = partition.tier_position
    return ColdReadAnswer(
        is_cold=result.remote is not None,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        local_log_start_offset=partition.log.local_log_start_offset,
        head_version=-1 if head is None else head.version,
        head_commit_id="" if head is None else head.commit_id,
        head_floor_epoch=0 if head is None else head.floor_epoch,
    )


class ReadConfirmations:
    """Reader's side: requests to all leaders. Used from the loop only."""

    def __init__(self, links: Links, monotonic: Callable[[], float]) -> None:
        self._links = links
        self._monotonic = monotonic
        #: Last answer about each partition. It saves a question before the read of the tier.
        self._known: Lru[TopicIdPartition, ColdReadAnswer] = Lru(_KNOWN_MAX)

    def last(self, key: TopicIdPartition) -> ColdReadAnswer:
        """Return the last answer about a partition. It confirms nothing any more."""
        return self._known.get(key) or NOT_COLD

    async def confirm(self, reads: Sequence[tuple[int, ColdRead]]) -> list[ColdReadAnswer]:
        """Return the leaders' answers in the order of ``reads``, which name the leader's id.

        A leader that does not answer in time confirms nothing.
        """
        # One request to each leader, in any order of the reads.
        answers = [NOT_COLD] * len(reads)
        by_leader: dict[int, list[int]] = {}
        for index, (leader, _) in enumerate(reads):
            by_leader.setdefault(leader, []).append(index)

        async def ask(leader: int, indexes: list[int]) -> None:
            request = ConfirmColdReadsRequest(reads=tuple(reads[index][1] for index in indexes))
            for index, answer in zip(indexes, await self._ask(leader, request), strict=True):
                answers[index] = answer

        async with asyncio.TaskGroup() as group:
            for leader, indexes in by_leader.items():
                if leader >= 0:
                    group.create_task(ask(leader, indexes))
        # An offset that is not cold any more is queried first the next time.
        for (_, read), answer in zip(reads, answers, strict=True):
            key = read.topic_id, read.partition
            if answer.is_cold:
                self._known.put(key, answer)
            else:
                self._known.pop(key)
        self._known.evict()
        return answers

    async def _ask(self, leader: int, request: ConfirmColdReadsRequest) -> Sequence[ColdReadAnswer]:
        """Return one leader's answers; nothing is confirmed if it fails or answers too late."""
        for _ in range(_ATTEMPTS):
            asked_s = self._monotonic()
            try:
                # The limit includes the time for a new connection.
                async with asyncio.timeout(VALID_S):
                    response = await self._links.request(
                        leader, request, ConfirmColdReadsResponse, VALID_S
                    )
            except (OSError, TimeoutError, FrameError):
                continue
            # This process may have been paused, and the log start may have moved since.
            if self._monotonic() - asked_s < VALID_S and len(response.answers) == len(
                request.reads
            ):
                return response.answers
        return [NOT_COLD] * len(request.reads)

    async def close(self) -> None:
        """Close the connections to leaders for good."""
        await self._links.close()
