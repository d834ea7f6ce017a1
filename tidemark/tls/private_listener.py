"""Private listener: a peer proves its identity before any request of it is read.

Where the network is trusted, both ends may stop encrypting after the proof (``encrypted`` False):
TLS is closed in order on both sides, and the same connection continues in clear.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tidemark.tls import identity
from tidemark.tls.acceptor import HANDSHAKE_TIMEOUT_S, AcceptLimits, Acceptor, Refusals
from tidemark.tls.clear_after_handshake import authenticate_and_clear
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity, WrongPeer

#: Makes the protocol of a connection whose far end is known.
ProtocolFactory = Callable[[TlsIdentity], asyncio.BaseProtocol]


class PrivateListener:
    """Listener that belongs to the loop on which :meth:`run` runs.

    ``encrypted`` False: see the module.
    """

    def __init__(
        self,
        listening: socket.socket,
        files: TlsFiles,
        may_speak: Callable[[TlsIdentity], str | None],
        factory: ProtocolFactory,
        *,
        name: str,
        encrypted: bool = True,
        limits: AcceptLimits | None = None,
    ) -> None:
        """Create the listener for a listening socket.

        ``files``: own key and trusted authorities. ``may_speak`` returns why an identity is
        refused, None if it is accepted. ``factory``: creates the protocol of an authenticated peer;
        call :meth:`left` when its connection is lost. ``name``: of the listener, for logs.
        """
        self._files = files
        self._may_speak = may_speak
        self._factory = factory
        self._limits = limits or AcceptLimits()
        #: Number of open connections by identity.
        self._proven: Counter[TlsIdentity] = Counter()
        # With or without encryption the handshake is the same; only the bytes after it differ.
        accept = self._accept_encrypted if encrypted else self._accept_clear
        self.refusals = Refusals(name)
        self._acceptor = Acceptor(listening, accept, refusals=self.refusals, limits=self._limits)

    async def run(self) -> None:
        """Accept until cancelled; the socket is closed then."""
        await self._acceptor.run()

    def connection_closed(self, peer: TlsIdentity) -> None:
        """Uncount a connection of an authenticated peer that has ended."""
        self._proven[peer] -= 1
        if self._proven[peer] <= 0:
            del self._proven[peer]

    async def _accept_encrypted(self, accepted: socket.socket, _: str) -> None:
        """Run the handshake, and keep the connection encrypted. Raises the refusal of the peer."""
        introduction = _Introduction(self._welcome)
        connected = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: introduction,
            accepted,
            ssl=self._files.contexts().server,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
        )
        if introduction.refused is not None:
            # Not close(): that waits for the far end, while the socket is closed under it.
            connected[0].abort()
            raise introduction.refused

    async def _accept_clear(self, accepted: socket.socket, _: str) -> None:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            context = self._files.contexts().server
            certificate = await authenticate_and_clear(accepted, context, server_side=True)
        protocol = self._welcome(certificate)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, accepted)

    def _welcome(self, certificate: Mapping[str, Any] | None) -> asyncio.BaseProtocol:
        """Return the peer's protocol. Raises :class:`WrongPeer`."""
        peer = identity.of_certificate(certificate)
        why_not = self._may_speak(peer)
        if why_not is None and self._proven[peer] >= self._limits.per_peer_max:
            why_not = f"{peer} has {self._limits.per_peer_max} connections already"
        if why_not is not None:
            raise WrongPeer(why_not)
        self._proven[peer] += 1
        return self._factory(peer)


class _Introduction(asyncio.Protocol):
    """Protocol of a connection until its handshake is done.

    The peer's protocol then replaces it, before any byte was received.
    """

    def __init__(self, welcome: Callable[[Mapping[str, Any] | None], asyncio.BaseProtocol]) -> None:
        self._welcome = welcome
        self.refused: WrongPeer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            protocol = self._welcome(transport.get_extra_info("peercert"))
        except WrongPeer as error:  # nothing may be raised here: the loop would say so
            self.refused = error
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
