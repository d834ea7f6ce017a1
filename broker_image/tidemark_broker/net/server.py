"""The client listener: accepts connections within a limit and closes those that stay silent.

It has its address from the start, since a registration names it, and listens later: whoever would
be told that nothing exists is refused a connection, and tries again or elsewhere (Kafka's
``SocketServer.enableRequestProcessing`` waits for the metadata in the same way).
"""

import asyncio
import logging
import socket
from typing import Self

from prometheus_client import CollectorRegistry

from tidemark.wire.receiver import SCRATCH_BYTES
from tidemark_broker.net import metrics
from tidemark_broker.net.budget import RequestBudget
from tidemark_broker.net.config import ServerConfig
from tidemark_broker.net.connection import Serve, ServerConnection, Shared
from tidemark_broker.net.malloc import keep_freed_memory
from tidemark_broker.net.metrics import NetMetrics

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_IDLE_CHECKS_PER_LIMIT = 10


class KafkaServer:
    """One listening address. Belongs to the loop on which it was started."""

    def __init__(
        self, serve: Serve, config: ServerConfig, net_metrics: NetMetrics | None = None
    ) -> None:
        self._serve = serve
        self.config = config
        self.metrics = net_metrics or NetMetrics(CollectorRegistry())
        self.budget = RequestBudget(config.queued_request_bytes_max)
        self.metrics.queued_bytes.set_function(lambda: self.budget.used_bytes)
        self.metrics.connections.set_function(lambda: len(self._connections))
        self._connections: set[ServerConnection] = set()
        self._socket: socket.socket
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._refusing = False
        self.host = ""
        self.port = 0

    async def bind(self, host: str, port: int) -> Self:
        """Take the address; port 0 picks a free one (see ``port``). Raises ``OSError``."""
        keep_freed_memory()
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        infos = await self.loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = infos[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(address)
        except OSError:
            self._socket.close()
            raise
        self.host, self.port = self._socket.getsockname()[:2]
        return self

    async def listen(self) -> Self:
        """Accept connections on the address that was bound; once is enough. Raises ``OSError``: two
        may bind one address, only the first can listen."""
        if self._server is None:
            # Not left to create_server: uvloop's says nothing where listening fails.
            self._socket.listen(_BACKLOG)
            shared = self._shared()
            self._server = await self.loop.create_server(
                lambda: ServerConnection(shared), sock=self._socket, backlog=_BACKLOG
            )
            self._sweeper = self.loop.create_task(self._close_idle())
            logger.info("listening on %s:%d", self.host, self.port)
        return self

    def _shared(self) -> Shared:
        return Shared(
            serve=self._serve,
            config=self.config,
            metrics=self.metrics,
            budget=self.budget,
            scratch=bytearray(SCRATCH_BYTES),
            loop=self.loop,
            opened=self._opened,
            lost=self._lost,
        )

    async def stop(self, grace_s: float = 1.0) -> None:
        """Accept no more, let what is under way finish for ``grace_s`` seconds, then close."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        running = [task for connection in self._connections for task in connection.tasks]
        if running:
            await asyncio.wait(running, timeout=grace_s)
        for connection in tuple(self._connections):
            connection.close()
        await self._all_lost(grace_s)

    async def _all_lost(self, grace_s: float) -> None:
        deadline = self.now() + grace_s
        while self._connections:  # a connection leaves in connection_lost, a turn or two later
            if self.now() >= deadline:
                for connection in self._connections:
                    connection.abort()
                deadline = float("inf")
            await asyncio.sleep(0.001)

    # ------------------------------------------------------------ what a connection calls

    def _opened(self, connection: ServerConnection) -> None:
        """A connection is up; over the limit it is closed again."""
        self.metrics.opened.inc()
        self._connections.add(connection)
        if len(self._connections) <= self.config.connections_max:
            return
        if not self._refusing:
            self._refusing = True
            logger.warning(
                "%d connections are open; further ones are refused", self.config.connections_max
            )
        self.metrics.closed(metrics.LIMIT)
        connection.close()

    def _lost(self, connection: ServerConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        self._refusing = self._refusing and len(self._connections) >= self.config.connections_max

    async def _close_idle(self) -> None:
        limit_s = self.config.idle_ms_max / 1000
        while True:
            await asyncio.sleep(limit_s / _IDLE_CHECKS_PER_LIMIT)
            silent_since = self.now() - limit_s
            for connection in tuple(self._connections):
                if connection.last_received_s >= silent_since or not connection.idle:
                    continue
                if connection.ended:
                    connection.abort()
                connection.end(metrics.IDLE, f"silent for {limit_s:.0f} s")
