"""All client connections of a broker: limits, and closing of idle or stuck connections.

One object per broker. Connections that must authenticate and have not may use half of
``max.connections``, so that they cannot lock out authenticated clients.
"""

import asyncio
import logging

from prometheus_client import CollectorRegistry

from tidemark.metrics import broker_table
from tidemark.tls.acceptor import Refusals
from tidemark.wire.receiver import SCRATCH_BYTES
from tidemark_broker.admission.connection_limits import ConnectionLimits, ConnectionQuotas
from tidemark_broker.admission.request_memory import MemoryBudgets
from tidemark_broker.net.connection import ListenerState, OpenSession, ServerConnection
from tidemark_broker.net.metrics import NetMetrics

logger = logging.getLogger(__name__)

_IDLE_CHECKS_PER_LIMIT = 10
_READS_NOTHING_S = 10.0
_PARKED_CHECK_S = 1.0
#: Connections with less are spared: even all of them together hold little.
_PARKED_BYTES = 8 * 1024
#: Half of the parked bytes must be at least this fraction of the request memory.
_PARKED_SHARE = 16


class Connections:
    """All client connections of a broker, and the memory that they share.

    Used from the loop on which it was first used.
    """

    def __init__(self, limits: ConnectionLimits, net_metrics: NetMetrics | None = None) -> None:
        """Create the limits and budgets of a broker's client connections."""
        self.limits = limits
        self.metrics = net_metrics or NetMetrics(CollectorRegistry())
        self.budgets = MemoryBudgets.of(limits.queued_request_bytes_max, limits.answer_bytes_max)
        self.metrics.queued_bytes.set_function(lambda: self.budgets.requests.used_bytes)
        self.metrics.answer_bytes.set_function(lambda: self.budgets.responses.used_bytes)
        self.metrics.connections.set_function(lambda: len(self._open))
        self.quotas = ConnectionQuotas(
            per_address_max=limits.connections_per_address_max,
            rate_per_address_max=limits.connection_rate_per_address_max,
        )
        self._open: set[ServerConnection] = set()
        #: Connections that must authenticate and have not.
        self._confined: set[ServerConnection] = set()
        #: True while a limit is reached. It is logged once when it is reached.
        self._refusing = False
        #: Background tasks that close idle, stuck and non-reading connections.
        self._sweepers: list[asyncio.Task[None]] = []
        self._scratch = bytearray(SCRATCH_BYTES)

    def shared(self, open_session: OpenSession, name: str) -> ListenerState:
        """Return the shared state for the connections of the listener ``name``.

        The first call also starts the background tasks that close idle and stuck connections.
        """
        loop = asyncio.get_running_loop()
        # The tasks need a running loop, which does not exist in the constructor.
        if not self._sweepers:
            sweeps = (self._close_idle(), self._close_non_readers(), self._close_parked())
            self._sweepers = [loop.create_task(sweep) for sweep in sweeps]
        # Budgets are common to all listeners, only sessions and refusals differ.
        return ListenerState(
            open_session=open_session,
            limits=self.limits,
            metrics=self.metrics,
            budgets=self.budgets,
            scratch=self._scratch,
            loop=loop,
            opened=self._opened,
            lost=self._lost,
            confined=self._confine,
            released=self._confined.discard,
            refusals=Refusals(f"listener {name}"),
        )

    async def close(self, of: ListenerState, grace_s: float) -> None:
        """Let running requests of a listener finish for ``grace_s`` seconds, then close its
        connections.
        """
        now = asyncio.get_running_loop().time
        deadline_s = now() + grace_s
        # A request may have no task, such as a Produce that waits for other replicas.
        for is_unanswered in [connection.started() for connection in self._of(of)]:
            while is_unanswered() and now() < deadline_s:  # noqa: ASYNC110 - see _all_lost
                await asyncio.sleep(0.001)
        for connection in self._of(of):
            connection.close()
        await self._all_lost(of, grace_s)
        if not self._open:
            for sweeper in self._sweepers:
                sweeper.cancel()
            self._sweepers.clear()

    async def _all_lost(self, of: ListenerState, grace_s: float) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + grace_s
        while left := self._of(of):  # removed in connection_lost, a little later
            if now() >= deadline:
                for connection in left:
                    connection.abort()
                deadline = float("inf")
            await asyncio.sleep(0.001)

    def _of(self, listener: ListenerState) -> list[ServerConnection]:
        return [connection for connection in self._open if connection.shared is listener]

    # ------------------------------------------------------------ called by connections

    def _opened(self, connection: ServerConnection) -> None:
        """Register a connection, and close it again above the limit."""
        self.metrics.opened.inc()
        self._open.add(connection)
        if len(self._open) > self.limits.connections_max:
            self._refuse(connection, self.limits.connections_max, "connections")

    def _confine(self, connection: ServerConnection) -> None:
        """Register a connection that must authenticate, and close it above the limit."""
        self._confined.add(connection)
        limit = max(1, self.limits.connections_max // 2)
        if len(self._confined) > limit:
            self._refuse(connection, limit, "unauthenticated connections")

    def _refuse(self, connection: ServerConnection, limit: int, kind: str) -> None:
        if not self._refusing:
            self._refusing = True
            logger.warning("limit of %d %s reached: further ones are closed", limit, kind)
        self.metrics.closed(broker_table.LIMIT)
        connection.close()

    def _lost(self, connection: ServerConnection) -> None:
        """Remove a closed connection."""
        self.quotas.remove(connection.address)
        self._open.discard(connection)
        self._confined.discard(connection)
        # Log the limit again once it was left.
        self._refusing = self._refusing and (
            len(self._open) >= self.limits.connections_max
            or len(self._confined) >= self.limits.connections_max // 2
        )

    async def _close_idle(self) -> None:
        limit_s = self.limits.idle_ms_max / 1000
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(limit_s / _IDLE_CHECKS_PER_LIMIT)
            silent_since = now() - limit_s
            for connection in tuple(self._open):
                # A client that sends requests, but reads nothing. Its responses may map removed
                # segments of logs, which keep their disk space meanwhile.
                if connection.unsent.is_stalled(limit_s):
                    self._end_non_reader(connection, limit_s)
                    continue
                if connection.last_received_s >= silent_since or not connection.idle:
                    continue
                # Closed long ago, but its peer does not receive what was sent.
                if connection.ended:
                    connection.abort()
                connection.end(broker_table.IDLE, f"silent for {limit_s:.0f} s")

    async def _close_parked(self) -> None:
        """Close connections that hold most of the request memory for requests that cannot start.

        They might hold it for days. This happens only while there is no room for other requests.
        """
        was_short = False
        while True:
            await asyncio.sleep(_PARKED_CHECK_S)
            is_short = (
                self.budgets.requests.is_exhausted or self.budgets.partial_requests.has_waiters
            )
            # A shortage must last for two checks, since bursts pass by themselves.
            if is_short and was_short:
                self._end_parked()
            was_short = is_short

    def _end_parked(self) -> None:
        """Close connections with half of the parked bytes, unless that would free little."""
        sizes = ((connection, connection.parked_bytes) for connection in self._open)
        parked = {connection: size for connection, size in sizes if size >= _PARKED_BYTES}
        missing = sum(parked.values()) // 2
        if missing < self.limits.queued_request_bytes_max // _PARKED_SHARE:
            return
        for connection in sorted(parked, key=lambda candidate: parked[candidate], reverse=True):
            connection.end(broker_table.SLOW, "it holds memory that other connections need")
            missing -= parked[connection]
            if missing <= 0:
                break

    async def _close_non_readers(self) -> None:
        """Close connections that hold answer memory and do not read, while that memory is short."""
        while True:
            await asyncio.sleep(_READS_NOTHING_S / 10)
            if not self.budgets.responses.is_short:
                continue
            for connection in tuple(self._open):
                if connection.unsent.is_stalled(_READS_NOTHING_S):
                    self._end_non_reader(connection, _READS_NOTHING_S)

    @staticmethod
    def _end_non_reader(connection: ServerConnection, for_s: float) -> None:
        connection.end(broker_table.SLOW, f"it did not read its answers for {for_s:.0f} s")
        connection.abort()
