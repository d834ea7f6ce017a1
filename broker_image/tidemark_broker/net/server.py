"""A listener for clients, in clear or in TLS.

It has its address from the start, since a registration names it, and listens later: whoever would
be told that nothing exists is refused a connection, and tries again or elsewhere (Kafka's
``SocketServer.enableRequestProcessing`` waits for the metadata in the same way).

With TLS a connection counts, and is heard, once its handshake is done. Handshakes have a time-out
and limits of their own.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Self

from tidemark.tls.acceptor import HANDSHAKE_TIMEOUT_S, AcceptLimits, Acceptor
from tidemark.tls.files import NoCertificates
from tidemark_broker.net.connection import OpenSession, ServerConnection, Shared
from tidemark_broker.net.connections import Connections
from tidemark_broker.net.malloc import keep_freed_memory
from tidemark_broker.net.sockets import bound_socket

logger = logging.getLogger(__name__)

_BACKLOG = 1024
#: Clients start in crowds, many behind one address: more than brokers do.
_HANDSHAKES = AcceptLimits(unproven_max=1024, unproven_per_address_max=256)
_TLS_SHUTDOWN_S = 2.0


class KafkaServer:
    """One listening address. Belongs to the loop on which it was started. ``open_session`` gives
    what serves a connection, ``tls`` the context of the next one (None: in clear)."""

    def __init__(
        self,
        open_session: OpenSession,
        connections: Connections,
        name: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._open_session = open_session
        self.connections = connections
        self.name = name
        self._tls = tls
        self._socket: socket.socket
        self._shared: Shared | None = None
        self._accepting: asyncio.Task[None] | None = None
        self.host = ""
        self.port = 0

    async def bind(self, host: str, port: int) -> Self:
        """Take the address; port 0 picks a free one (see ``port``). Raises ``OSError``, also where
        there is no certificate: nobody would get in, and nothing would say so."""
        if self._tls is not None:
            try:
                self._tls()
            except OSError as error:
                raise NoCertificates(f"listener {self.name}: {error}") from error
        keep_freed_memory()
        self._socket = await bound_socket(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        return self

    async def listen(self) -> Self:
        """Accept connections on the address that was bound; once is enough. Raises ``OSError``: two
        may bind one address, only the first can listen."""
        if self._shared is None:
            # Not left to create_server: uvloop's says nothing where listening fails.
            self._socket.listen(_BACKLOG)
            self._shared = self.connections.shared(self._open_session, self.name)
            self._accept(self._shared)
            logger.info("%s listens on %s:%d", self.name, self.host, self.port)
        return self

    def _accept(self, shared: Shared) -> None:
        async def welcome(accepted: socket.socket, address: str) -> None:
            connection = ServerConnection(shared, address)
            try:
                await self._connect(connection, accepted)
            except Exception:  # it was never up, so nobody hears of its end
                self.connections.newcomers.left(address)
                raise

        acceptor = Acceptor(
            self._socket,
            welcome,
            refusals=shared.refusals,
            limits=_HANDSHAKES,
            refusal=self.connections.newcomers.refusal,
        )
        self._accepting = asyncio.get_running_loop().create_task(acceptor.run())

    async def _connect(self, connection: ServerConnection, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            # Cancelled, uvloop's would leave a connection that is up and never hears of its end.
            await asyncio.shield(loop.connect_accepted_socket(lambda: connection, accepted))
            return
        await loop.connect_accepted_socket(
            lambda: connection,
            accepted,
            ssl=self._tls(),
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
        )

    async def stop(self, grace_s: float = 1.0) -> None:
        """Accept no more, let what is under way finish for ``grace_s`` seconds, then close."""
        if self._shared is None:
            self._socket.close()
            return
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        await self.connections.close(self._shared, grace_s)
