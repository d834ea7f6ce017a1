"""Delivery of the stored state to one broker.

A full snapshot is first, then deltas. Changes during one request are combined in the next delta,
which is computed from the state at the time of sending. Nothing counts as received before it is
acknowledged. A broker that does not answer loses its connection, attaches again, and gets a full
snapshot.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from kio.schema.errors import ErrorCode

from tidemark.wire.control import (
    BrokerState,
    PartitionError,
    PartitionStatesRequest,
    PartitionStatesResponse,
    Removal,
)
from tidemark.wire.framing import FrameError
from tidemark_operator.controller.state.model import RowKey
from tidemark_operator.listener.channel import Channel

logger = logging.getLogger(__name__)

#: A broker that creates thousands of replicas needs time; a dead one loses its session long
#: before.
SEND_TIMEOUT_S = 300.0
#: Rows in one delta; a change that arrives meanwhile, such as an election, waits behind it.
DELTA_ROWS_MAX = 1000
REPEAT_S = 5.0


@dataclass(slots=True)
class PendingChange:
    """Changes not yet sent to a broker.

    With both sets empty, the brokers or the cluster changed.
    """

    rows: set[RowKey] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    removals: dict[RowKey, Removal] = field(default_factory=dict)

    def add(
        self,
        rows: Iterable[RowKey] = (),
        topics: Iterable[str] = (),
        removals: Iterable[Removal] = (),
    ) -> None:
        """Add more changes; of two removals of one replica the later one wins."""
        self.rows.update(rows)
        self.topics.update(topics)
        for removal in removals:
            self.removals[removal.topic_id, removal.partition] = removal


class EngineListener(Protocol):
    """Receiver of brokers' answers, in the main loop. Its methods must not block."""

    def on_states(
        self, node_id: int, request: PartitionStatesRequest, response: PartitionStatesResponse
    ) -> None:
        """Take applied partition states; ``response`` names the replicas that failed."""

    def on_users(self, node_id: int) -> None:
        """Note that a broker has acknowledged the users."""

    def on_stale(self, node_id: int) -> None:
        """Note that the broker has seen a higher controller epoch."""


class Link:
    """One broker's command connection during this term."""

    def __init__(
        self,
        channel: Channel,
        listener: EngineListener,
        *,
        full: Callable[[], PartitionStatesRequest],
        delta: Callable[[PendingChange], PartitionStatesRequest],
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare a link; :meth:`run` sends the first snapshot.

        ``full`` builds a complete snapshot of the partition states, and ``delta`` a request with
        changes only. ``begin``, if given, returns once the new controller term may send commands to
        brokers.
        """
        self.channel = channel
        self.node_id = channel.broker_id
        #: Partitions that the broker reported as failed.
        self.errors: dict[RowKey, PartitionError] = {}
        self._listener = listener
        self._full = full
        self._delta = delta
        self._begin = begin
        self._change = PendingChange()  # Changes that are not sent yet.
        # Brokers and storage as acknowledged, which deltas leave out while they are unchanged.
        self._brokers: tuple[BrokerState, ...] = ()
        self._storage = ("", "")
        # Removals that the broker answered with an error, to be repeated.
        self._refused: dict[RowKey, Removal] = {}
        self._wake = asyncio.Event()  # Set when there is a change to send.
        self._ready = asyncio.Event()  # Set once the first snapshot is acknowledged.

    @property
    def snapshot_applied(self) -> bool:
        """Return whether the broker has applied its snapshot."""
        return self._ready.is_set()

    async def until_ready(self) -> None:
        """Wait until the broker has applied its snapshot."""
        await self._ready.wait()

    def add(
        self,
        rows: Iterable[RowKey] = (),
        topics: Iterable[str] = (),
        removals: Iterable[Removal] = (),
    ) -> None:
        """Note a change; it is sent as soon as the connection is free."""
        self._change.add(rows, topics, removals)
        self._wake.set()

    async def run(self) -> None:
        """Send the partition states: one full snapshot, then deltas, one request at a time.

        Returns when the connection ends. On any exit, cancellation included, the channel is closed,
        and the broker reconnects and receives a full snapshot.
        """
        try:
            if self._begin is not None:
                await self._begin()
            # Computed after ``begin`` has returned, so that the snapshot is of that time.
            await self._send(self._full())
            while not self.channel.closed:
                await self._wait()
                self._wake.clear()
                await self._send(self._as_sent(self._delta(self._next())))
        except (ConnectionError, FrameError) as error:
            logger.info("broker %d: %s", self.node_id, error)
        except TimeoutError:
            logger.warning(
                "broker %d sent no acknowledgement for %.0f s", self.node_id, SEND_TIMEOUT_S
            )
        finally:
            self.channel.close_threadsafe()

    def _next(self) -> PendingChange:
        """Return the changes to send now; a large one is sent in parts."""
        change, self._change = self._change, PendingChange()
        if len(change.rows) > DELTA_ROWS_MAX:
            rows = sorted(change.rows)
            change.rows = set(rows[:DELTA_ROWS_MAX])
            self.add(rows=rows[DELTA_ROWS_MAX:])
        return change

    def _as_sent(self, part: PartitionStatesRequest) -> PartitionStatesRequest:
        """Return the part without ``knows_all`` unless it is the last one of a change.

        A topic that the broker does not know may be in a later part.
        """
        if self._change.rows:
            return dataclasses.replace(part, knows_all=False)
        return part

    async def _wait(self) -> None:
        """Wait for a change; while replicas have errors, send them again periodically."""
        if not self.errors:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(REPEAT_S):
                await self._wake.wait()
        except TimeoutError:
            rows = {key for key in self.errors if key not in self._refused}
            self._change.add(rows=rows, removals=self._refused.values())

    async def _send(self, complete: PartitionStatesRequest) -> None:
        request = self._without_known(complete)
        response = await self.channel.call(request, PartitionStatesResponse, SEND_TIMEOUT_S)
        if response.error_code != int(ErrorCode.none):
            if response.error_code == int(ErrorCode.stale_controller_epoch):
                self._listener.on_stale(self.node_id)
            raise ConnectionAbortedError(f"PartitionStates returned error {response.error_code}")
        # Only what was acknowledged may be left out of later deltas.
        self._brokers, self._storage = complete.brokers, _storage(complete)
        self._take(request, response)

    def _without_known(self, complete: PartitionStatesRequest) -> PartitionStatesRequest:
        """Return a delta without the brokers or the storage that the broker already has.

        Full snapshots stay unchanged. The storage includes credentials, so it is sent only when
        necessary.
        """
        if complete.full:
            return complete
        request = complete
        if complete.brokers == self._brokers:
            request = dataclasses.replace(request, brokers=())
        if _storage(complete) == self._storage:
            request = dataclasses.replace(
                request, remote_storage="", store_id="", storage_as_before=True
            )
        return request

    def _take(self, request: PartitionStatesRequest, response: PartitionStatesResponse) -> None:
        """Record a broker's answer to a request: failed partitions, and removals to repeat."""
        failed = {(error.topic_id, error.partition): error for error in response.errors}
        delivered = {
            (topic.topic_id, state.partition)
            for topic in request.topics
            for state in topic.partitions
        }
        delivered |= {(removal.topic_id, removal.partition) for removal in request.removals}
        # A removal with partition -1 removes the whole topic.
        gone = {removal.topic_id for removal in request.removals if removal.partition < 0}
        # Replicas in this request have a new result; the other errors stay.
        self.errors = {
            key: error
            for key, error in self.errors.items()
            if key not in delivered and key[0] not in gone
        } | failed
        # A failed removal is repeated until the broker reports success.
        removals = {(removal.topic_id, removal.partition): removal for removal in request.removals}
        kept = {key: removal for key, removal in self._refused.items() if key not in removals}
        self._refused = kept | {key: removals[key] for key in removals if key in failed}
        # The first acknowledgement is the one of the full snapshot.
        self._ready.set()
        self._listener.on_states(self.node_id, request, response)


def _storage(request: PartitionStatesRequest) -> tuple[str, str]:
    return request.remote_storage, request.store_id
