"""Client listener, with or without TLS.

With TLS a connection counts and is served only after its handshake. Handshakes have a time-out and
separate limits.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tidemark.tls.acceptor import HANDSHAKE_TIMEOUT_S, AcceptLimits, Acceptor
from tidemark.tls.files import NoCertificates
from tidemark_broker.net.connection import ListenerState, OpenSession, ServerConnection
from tidemark_broker.net.connections import Connections
from tidemark_broker.net.listener import BoundListener

_BACKLOG = 1024
#: Clients start in large numbers, often behind one address, unlike brokers.
_HANDSHAKES = AcceptLimits(unauthenticated_max=1024, unauthenticated_per_address_max=256)
_TLS_SHUTDOWN_S = 2.0


class KafkaServer(BoundListener):
    """Listener for clients.

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
        super().__init__(name, backlog=_BACKLOG)
        self._open_session = open_session
        self.connections = connections
        #: State that the connections share, set by :meth:`listen`.
        self._shared: ListenerState
        self._tls = tls

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
        await super().bind(host, port)
        # Accepted sockets inherit it. Otherwise the kernel lets a buffer grow to 4 MiB. Such bursts
        # fill the memory of a consumer before its application has processed them.
        size = self.connections.limits.send_buffer_bytes
        if size >= 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        return self

    def _accept(self) -> Coroutine[Any, Any, None]:
        """Return the task that accepts sockets and turns each one into a :class:`ServerConnection`.

        Sockets beyond the limits per address, or of unfinished TLS handshakes, are closed at once.
        """
        shared = self._shared = self.connections.shared(self._open_session, self.name)

        # The quota has counted the socket already. Normally ``connection_lost`` uncounts it.
        async def welcome(accepted: socket.socket, address: str) -> None:
            """Serve an accepted socket, after the TLS handshake if the listener has TLS."""
            connection = ServerConnection(shared, address)
            try:
                await self._connect(connection, accepted)
            except Exception:  # without connection_made there is no connection_lost either
                self.connections.quotas.remove(address)
                raise

        return Acceptor(
            self._socket,
            welcome,
            refusals=shared.refusals,
            limits=_HANDSHAKES,
            refusal=self.connections.quotas.refusal,
        ).run()

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
        if await self._stop_accepting():
            await self.connections.close(self._shared, grace_s)
