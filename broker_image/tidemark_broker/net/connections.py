"""All connections of clients, whatever listener they came to: their limits, and which are silent.

One of these in a broker. Those that have not proven yet who they are, where that is asked for, may
have half of ``max.connections``: however many of them come, there is room for others.
"""

import asyncio
import logging

from prometheus_client import CollectorRegistry

from tidemark.metrics import broker_table
from tidemark.tls.acceptor import Refusals
from tidemark.wire.receiver import SCRATCH_BYTES
from tidemark_broker.net.budget import RequestBudget
from tidemark_broker.net.config import ServerConfig
from tidemark_broker.net.connection import OpenSession, ServerConnection, Shared
from tidemark_broker.net.connection_quotas import Newcomers
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.net.partial_requests import UnfinishedFrames
from tidemark_broker.response_memory import AnswerBudget

logger = logging.getLogger(__name__)

_IDLE_CHECKS_PER_LIMIT = 10
_TAKES_NOTHING_S = 10.0
_PARKED_CHECK_S = 1.0
#: Less is not worth anybody's connection: all that there may be do not fill the memory so.
_PARKED_BYTES = 8 * 1024
#: Half of what is parked is at least such a part of all that there is for requests.
_PARKED_SHARE = 16


class Connections:
    """Belongs to the loop on which it was first used."""

    def __init__(self, config: ServerConfig, net_metrics: NetMetrics | None = None) -> None:
        self.config = config
        self.metrics = net_metrics or NetMetrics(CollectorRegistry())
        self.budget = RequestBudget(config.queued_request_bytes_max)
        self.answers = AnswerBudget(config.answer_bytes_max)
        self.unfinished = UnfinishedFrames(config.queued_request_bytes_max // 4)
        self.metrics.queued_bytes.set_function(lambda: self.budget.used_bytes)
        self.metrics.answer_bytes.set_function(lambda: self.answers.used_bytes)
        self.metrics.connections.set_function(lambda: len(self._open))
        self.newcomers = Newcomers(
            per_address_max=config.connections_per_address_max,
            rate_per_address_max=config.connection_rate_per_address_max,
        )
        self._open: set[ServerConnection] = set()
        self._confined: set[ServerConnection] = set()
        self._refusing = False
        self._sweepers: list[asyncio.Task[None]] = []
        self._scratch = bytearray(SCRATCH_BYTES)

    def shared(self, open_session: OpenSession, name: str) -> Shared:
        """What the connections of one listener share."""
        loop = asyncio.get_running_loop()
        if not self._sweepers:
            sweeps = (self._close_idle(), self._close_who_takes_nothing(), self._close_parked())
            self._sweepers = [loop.create_task(sweep) for sweep in sweeps]
        return Shared(
            open_session=open_session,
            config=self.config,
            metrics=self.metrics,
            budget=self.budget,
            answers=self.answers,
            unfinished=self.unfinished,
            scratch=self._scratch,
            loop=loop,
            opened=self._opened,
            lost=self._lost,
            confined=self._confine,
            released=self._confined.discard,
            refusals=Refusals(f"listener {name}"),
        )

    async def close(self, of: Shared, grace_s: float) -> None:
        """Let what is under way on one listener finish for ``grace_s`` seconds, then close."""
        running = [task for each in self._of(of) for task in each.tasks]
        if running:
            await asyncio.wait(running, timeout=grace_s)
        for connection in self._of(of):
            connection.close()
        await self._all_lost(of, grace_s)
        if not self._open:
            for sweeper in self._sweepers:
                sweeper.cancel()
            self._sweepers.clear()

    async def _all_lost(self, of: Shared, grace_s: float) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + grace_s
        while left := self._of(of):  # one leaves in connection_lost, a turn or two later
            if now() >= deadline:
                for connection in left:
                    connection.abort()
                deadline = float("inf")
            await asyncio.sleep(0.001)

    def _of(self, listener: Shared) -> list[ServerConnection]:
        return [each for each in self._open if each.shared is listener]

    # ------------------------------------------------------------ what a connection calls

    def _opened(self, connection: ServerConnection) -> None:
        """A connection is up; over the limit it is closed again."""
        self.metrics.opened.inc()
        self._open.add(connection)
        if len(self._open) > self.config.connections_max:
            self._refuse(connection, self.config.connections_max, "connections")

    def _confine(self, connection: ServerConnection) -> None:
        """It has to prove who it is."""
        self._confined.add(connection)
        limit = max(1, self.config.connections_max // 2)
        if len(self._confined) > limit:
            self._refuse(connection, limit, "connections that have not proven who they are")

    def _refuse(self, connection: ServerConnection, limit: int, what: str) -> None:
        if not self._refusing:
            self._refusing = True
            logger.warning("%d %s are open; further ones are refused", limit, what)
        self.metrics.closed(broker_table.LIMIT)
        connection.close()

    def _lost(self, connection: ServerConnection) -> None:
        """A connection is gone."""
        self.newcomers.left(connection.address)
        self._open.discard(connection)
        self._confined.discard(connection)
        self._refusing = self._refusing and (
            len(self._open) >= self.config.connections_max
            or len(self._confined) >= self.config.connections_max // 2
        )

    async def _close_idle(self) -> None:
        limit_s = self.config.idle_ms_max / 1000
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(limit_s / _IDLE_CHECKS_PER_LIMIT)
            silent_since = now() - limit_s
            for connection in tuple(self._open):
                if connection.last_received_s >= silent_since or not connection.idle:
                    continue
                if connection.ended:
                    connection.abort()
                connection.end(broker_table.IDLE, f"silent for {limit_s:.0f} s")

    async def _close_parked(self) -> None:
        """While there is no room for requests, those go that hold most of it for what they cannot
        begin, which may be for days."""
        was_short = False
        while True:
            await asyncio.sleep(_PARKED_CHECK_S)
            is_short = self.budget.exhausted or self.unfinished.is_waited_for
            if is_short and was_short:
                self._end_parked()
            was_short = is_short

    def _end_parked(self) -> None:
        """Half of it; unless it is so little that all others would not have much more without."""
        held = ((each, each.parked_bytes) for each in self._open)
        parked = {each: size for each, size in held if size >= _PARKED_BYTES}
        missing = sum(parked.values()) // 2
        if missing < self.config.queued_request_bytes_max // _PARKED_SHARE:
            return
        for connection in sorted(parked, key=lambda each: parked[each], reverse=True):
            connection.end(
                broker_table.SLOW, "others have no room while it holds what it cannot begin"
            )
            missing -= parked[connection]
            if missing <= 0:
                break

    async def _close_who_takes_nothing(self) -> None:
        """While memory for answers is short, those go that hold it and do not read."""
        while True:
            await asyncio.sleep(_TAKES_NOTHING_S / 10)
            if not self.answers.short:
                continue
            for connection in tuple(self._open):
                if connection.unsent.takes_nothing(_TAKES_NOTHING_S):
                    connection.end(
                        broker_table.SLOW,
                        f"it took nothing of its answers for {_TAKES_NOTHING_S:.0f} s",
                    )
                    connection.abort()
