"""Queries of a leader to the coordinator before it accepts transactional records (KIP-890).

A late Produce, after its transaction has ended, would open one that never ends. The first records
of a transaction in a partition are therefore accepted only after its coordinator has confirmed the
partition. Producers of ``transaction.version`` 2 do not add partitions themselves, so the query
adds it. Queries to one broker accumulate while a request is in flight, and are sent together in the
next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from tidemark.wire.framing import FrameError
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.tasks import cancel
from tidemark_broker.transactions.broker_connections import Links
from tidemark_broker.transactions.core.metadata import Producer
from tidemark_broker.transactions.wire import (
    QueryCoordinatorRequest,
    QueryCoordinatorResponse,
    WireInquiry,
)

#: Limit of queries that wait for one broker. Further ones must be retried by the client.
_WAITING_MAX = 10_000
_BATCH_MAX = 500
#: Limit of partitions in one request, unless a single query has more.
_PARTITIONS_MAX = 20_000
_ANSWER_TIMEOUT_S = 5.0


@dataclass(slots=True)
class _PendingInquiry:
    """Queries for the next request to one broker."""

    inquiries: list[tuple[WireInquiry, "asyncio.Future[Sequence[ErrorCode]]"]] = field(
        default_factory=list
    )
    task: "asyncio.Task[None] | None" = None

    def next_count(self) -> int:
        """Return how many queries fit in the next request."""
        partitions = 0
        for count, (inquiry, _) in enumerate(self.inquiries[:_BATCH_MAX]):
            partitions += len(inquiry.partitions)
            if partitions > _PARTITIONS_MAX:
                return max(count, 1)
        return min(len(self.inquiries), _BATCH_MAX)


class Inquiries:
    """Queries to all coordinators. Used from the loop only.

    ``leader_of`` returns the broker that coordinates an id (-1: none), or raises CoordinatorError.
    ``answer_here`` answers if it is this broker.
    """

    def __init__(
        self,
        *,
        node_id: int,
        links: Links,
        leader_of: Callable[[str], int],
        answer_here: Callable[[Sequence[WireInquiry]], Awaitable[Sequence[Sequence[ErrorCode]]]],
    ) -> None:
        """Create without connections; see the class for the callbacks."""
        self._node_id = node_id
        self._links = links
        self._leader_of = leader_of
        self._answer_here = answer_here
        #: Inquiries that wait for a request in flight, by broker.
        self._waiting: dict[int, _PendingInquiry] = {}

    async def query(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return an error code for each partition; NONE means that it is in the transaction.

        ``adds``: the coordinator adds partitions that are not in it. Problems on the way, such as a
        coordinator that does not answer, are retriable codes.
        """
        # Parallel lists are the wire's form of a list of partitions.
        inquiry = WireInquiry(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            adds=adds,
            topics=tuple(tp.topic for tp in partitions),
            partitions=tuple(tp.partition for tp in partitions),
        )
        try:
            broker = self._leader_of(transactional_id)
        except CoordinatorError as error:
            return dict.fromkeys(partitions, error.error_code)
        # A retriable code: a coordinator will be elected.
        if broker < 0:
            return dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
        return dict(zip(partitions, await self._query(broker, inquiry), strict=True))

    async def _query(self, broker: int, inquiry: WireInquiry) -> Sequence[ErrorCode]:
        """Send one inquiry to a coordinator, together with others that wait for the same broker."""
        # The local coordinator needs no batching, since no request is in flight.
        if broker == self._node_id:
            (errors,) = await self._answer_here([inquiry])
            return errors
        waiting = self._waiting.setdefault(broker, _PendingInquiry())
        if len(waiting.inquiries) >= _WAITING_MAX:
            return [ErrorCode.coordinator_not_available] * len(inquiry.partitions)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[ErrorCode]] = loop.create_future()
        waiting.inquiries.append((inquiry, answer))
        if waiting.task is None:
            waiting.task = loop.create_task(self._send(broker, waiting))
        return await answer

    async def _send(self, broker: int, waiting: _PendingInquiry) -> None:
        """Send the waiting inquiries of a broker, one request at a time, until none is left."""
        try:
            # The loop ends when nothing has accumulated, and the next query starts a new task.
            while batch := waiting.inquiries[: waiting.next_count()]:
                verdicts = await self._verdicts(broker, [inquiry for inquiry, _ in batch])
                del waiting.inquiries[: len(batch)]
                for (_, answer), verdict in zip(batch, verdicts, strict=True):
                    _answer(answer, verdict)
        finally:
            del self._waiting[broker]
            for inquiry, answer in waiting.inquiries:  # only at shutdown
                _answer(answer, _no_answer(inquiry))

    async def _verdicts(
        self, broker: int, inquiries: Sequence[WireInquiry]
    ) -> Sequence[Sequence[ErrorCode]]:
        """Send inquiries to a coordinator in one request; return error codes for each inquiry.

        Each element has one code per partition of its inquiry. If the broker does not answer
        properly, all partitions get a retriable code.
        """
        try:
            answer = await self._links.request(
                broker,
                QueryCoordinatorRequest(inquiries=tuple(inquiries)),
                QueryCoordinatorResponse,
                _ANSWER_TIMEOUT_S,
            )
            verdicts = [[ErrorCode(code) for code in verdict.errors] for verdict in answer.verdicts]
            # A malformed answer must not be matched with the wrong queries.
            if [len(verdict) for verdict in verdicts] == [
                len(inquiry.partitions) for inquiry in inquiries
            ]:
                return verdicts
        except (OSError, TimeoutError, FrameError, ValueError):
            pass
        return [_no_answer(inquiry) for inquiry in inquiries]

    async def close(self) -> None:
        """Cancel the tasks that send queries."""
        tasks = [queue.task for queue in self._waiting.values() if queue.task is not None]
        await cancel(tasks)


def _answer(answer: "asyncio.Future[Sequence[ErrorCode]]", verdict: Sequence[ErrorCode]) -> None:
    """Resolve a future whose client may have disconnected."""
    if not answer.done():
        answer.set_result(verdict)


def _no_answer(inquiry: WireInquiry) -> Sequence[ErrorCode]:
    return [ErrorCode.network_exception] * len(inquiry.partitions)
