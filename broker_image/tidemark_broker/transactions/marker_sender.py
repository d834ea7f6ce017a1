"""Sender of markers to the leaders of partitions, until all are written.

:class:`MarkerQueue` decides what to send; this module waits and sends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict

from kio.schema.errors import ErrorCode

from tidemark.error_text import error_text
from tidemark.wire.framing import FrameError
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.tasks import set_within
from tidemark_broker.transactions.broker_connections import Links
from tidemark_broker.transactions.core.markers import (
    DELETED,
    UNKNOWN,
    Marker,
    MarkerQueue,
    MarkerWrite,
    TransactionKey,
)
from tidemark_broker.transactions.wire import WireMarker, WriteMarkersRequest, WriteMarkersResponse

logger = logging.getLogger(__name__)

#: Time-out of a request. A marker writer answers after half a second at the latest.
_ANSWER_TIMEOUT_S = 5.0
#: Shortest sleep, because a timer may fire a millisecond early.
_SLEEP_MIN_S = 0.002
#: Completed transactions, each of which appends a record, before the loop is yielded.
_FINISHED_AT_ONCE = 25


class MarkerSender:
    """Sender of one broker. Used from the loop only.

    ``write_here`` writes to partitions that this broker leads. ``finished`` is called with each
    transaction whose markers are all written.
    """

    def __init__(
        self,
        *,
        node_id: int,
        cluster: MetadataCache,
        links: Links,
        write_here: Callable[[Sequence[WireMarker]], Awaitable[Sequence[ErrorCode]]],
        finished: Callable[[TransactionKey, Marker], None],
        now: Callable[[], float],
    ) -> None:
        """Create an idle sender; see the class for ``write_here`` and ``finished``.

        ``links``: connections to the other brokers. ``now``: monotonic time in seconds.
        """
        self._node_id = node_id
        self._cluster = cluster
        self._links = links
        self._write_here = write_here
        self._finished = finished
        self._now = now
        self.queue = MarkerQueue(self._leader_of)
        #: Set when the queue may have something to send.
        self._woken = asyncio.Event()

    def add(
        self, key: TransactionKey, marker: Marker, partitions: Iterable[TopicPartition]
    ) -> None:
        """Queue a marker. See :meth:`MarkerQueue.add`."""
        self.queue.add(key, marker, partitions)
        self._woken.set()

    async def run(self) -> None:
        """Send markers until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._woken.clear()
                for broker, batch in self.queue.batches(self._now()).items():
                    group.create_task(self._send(broker, batch))
                # Transactions without partitions, or with deleted ones only, finish without a
                # request.
                await self._report_finished()
                await self._sleep()

    async def _report_finished(self) -> None:
        for number, (key, marker) in enumerate(self.queue.finished(), start=1):
            self._finished(key, marker)
            if number % _FINISHED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _sleep(self) -> None:
        next_s = self.queue.next_s()
        # Without a next time the sender waits for an event.
        wait_s = None if next_s is None else max(next_s - self._now(), _SLEEP_MIN_S)
        await set_within(self._woken, wait_s)

    def _leader_of(self, tp: TopicPartition) -> int:
        view = self._cluster.topics.get(tp.topic)
        row = None if view is None else view.partitions.get(tp.partition)
        if row is not None and row.leader >= 0:
            return row.leader
        # Only a recorded deletion counts, see MarkerQueue.
        return DELETED if self._cluster.is_deleted(*tp) else UNKNOWN

    async def _send(self, broker: int, batch: Sequence[MarkerWrite]) -> None:
        errors = await self._errors(broker, batch)
        by_write = dict(zip(batch, errors, strict=True))
        self.queue.answered(broker, batch, by_write.__getitem__, self._now())
        self._woken.set()

    async def _errors(self, broker: int, batch: Sequence[MarkerWrite]) -> Sequence[ErrorCode]:
        """Send a batch to a broker and return an error code for each marker.

        A failed or incomplete answer yields NETWORK_EXCEPTION for all, so that they are sent again.
        """
        # Expected failures of the network are logged briefly, anything else with its traceback.
        try:
            errors = await self._request_errors(broker, [_on_wire(write) for write in batch])
        except (OSError, TimeoutError, FrameError, ValueError) as error:
            logger.info(
                "%d markers were not delivered to broker %d: %s",
                len(batch),
                broker,
                error_text(error),
            )
        except Exception:
            logger.exception("broker %d failed to write %d markers", broker, len(batch))
        else:
            if len(errors) == len(batch):
                return errors
            logger.warning("broker %d answered %d of %d markers", broker, len(errors), len(batch))
        # The markers may have been written. Repeating them is harmless.
        return [ErrorCode.network_exception] * len(batch)

    async def _request_errors(
        self, broker: int, markers: Sequence[WireMarker]
    ) -> Sequence[ErrorCode]:
        """Write markers at their leader, which may be this broker; return their error codes."""
        # No connection to itself.
        if broker == self._node_id:
            return await self._write_here(markers)
        answer = await self._links.request(
            broker,
            WriteMarkersRequest(markers=tuple(markers)),
            WriteMarkersResponse,
            _ANSWER_TIMEOUT_S,
        )
        return [ErrorCode(code) for code in answer.errors]


def _on_wire(write: MarkerWrite) -> WireMarker:
    topic, partition = write.tp
    return WireMarker(topic=topic, partition=partition, **asdict(write.marker))
