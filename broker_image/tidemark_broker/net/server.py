"""Client listener, with or without TLS.

The address is bound at the start, since the registration contains it. Listening starts once
metadata is available. Until then connections are refused, and clients retry or use another broker
(Kafka's ``SocketServer.enableRequestProcessing`` waits for the metadata in the same way).

With TLS a connection counts and is served only after its handshake. Handshakes have a time-out and
separate limits.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Self

from tidemark.tls.acceptor import HANDSHAKE_TIMEOUT_S, AcceptLimits, Acceptor
from tidemark.tls.files import NoCertificates
from tidemark_broker.net.connection import ListenerState, OpenSession, ServerConnection
from tidemark_broker.net.connections import Connections
from tidemark_broker.net.malloc import keep_freed_memory
from tidemark_broker.net.sockets import bound_socket

logger = logging.getLogger(__name__)

_BACKLOG = 1024
#: Clients start in large numbers, often behind one address, unlike brokers.
_HANDSHAKES = AcceptLimits(unauthenticated_max=1024, unauthenticated_per_address_max=256)
_TLS_SHUTDOWN_S = 2.0


class KafkaServer:
    """One listening address. Used from the loop on which it was started.

    ``open_session`` returns the handler of a connection, ``tls`` the context of the next one (None
    without TLS).
    """

    def __init__(
        self,
        open_session: OpenSession,
        connections: Connections,
        name: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Create the listener without binding it. See :meth:`bind` and :meth:`listen`."""
        self._open_session = open_session
        self.connections = connections
        self.name = name
        self._tls = tls
        self._socket: socket.socket
        #: State that the connections share, None until :meth:`listen`.
        self._shared: ListenerState | None = None
        #: Task that accepts connections.
        self._accepting: asyncio.Task[None] | None = None
        #: Bound address, "" and 0 until :meth:`bind`.
        self.host = ""
        self.port = 0

    async def bind(self, host: str, port: int) -> Self:
        """Bind the address without accepting connections. Port 0 picks a free one (see ``port``).

        Raises ``OSError``, also without a readable certificate, since every handshake would fail
        silently.
        """
        if self._tls is not None:
            try:
                self._tls()
            except OSError as error:
                raise NoCertificates(f"listener {self.name}: {error}") from error
        # Process-wide setting of the C library: freed buffers are reused instead of returned.
        keep_freed_memory()
        self._socket = await bound_socket(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        return self

    async def listen(self) -> Self:
        """Accept connections on the bound address. Idempotent.

        Raises ``OSError``: two sockets may bind one address, but only the first can listen.
        """
        if self._shared is None:
            # Done here, because uvloop's create_server does not report a failing listen.
            self._socket.listen(_BACKLOG)
            self._shared = self.connections.shared(self._open_session, self.name)
            self._accept(self._shared)
            logger.info("%s listens on %s:%d", self.name, self.host, self.port)
        return self

    def _accept(self, shared: ListenerState) -> None:
        """Start the task that accepts sockets and turns each one into a :class:`ServerConnection`.

        Sockets beyond the limits per address, or of unfinished TLS handshakes, are closed at once.
        """

        # The quota has counted the socket already. Normally ``connection_lost`` uncounts it.
        async def welcome(accepted: socket.socket, address: str) -> None:
            """Serve an accepted socket, after the TLS handshake if the listener has TLS."""
            connection = ServerConnection(shared, address)
            try:
                await self._connect(connection, accepted)
            except Exception:  # without connection_made there is no connection_lost either
                self.connections.connection_quotas.remove(address)
                raise

        acceptor = Acceptor(
            self._socket,
            welcome,
            refusals=shared.refusals,
            limits=_HANDSHAKES,
            refusal=self.connections.connection_quotas.refusal,
        )
        self._accepting = asyncio.get_running_loop().create_task(acceptor.run())

    async def _connect(self, connection: ServerConnection, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            # Shielded: cancelling uvloop's call would leave a connection that never closes.
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
        """Stop accepting, let running requests finish for ``grace_s`` seconds, then close."""
        if self._shared is None:
            self._socket.close()
            return
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        await self.connections.close(self._shared, grace_s)
