"""Dialling of a private listener: data is sent only after the peer has proven the expected
identity.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tidemark.tls import identity
from tidemark.tls.clear_after_handshake import authenticate_and_clear
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialer:
    """Expected identity of the peer, and the files that prove our own.

    ``encrypted`` False: both sides continue in clear after the proof
    (:mod:`tidemark.tls.clear_after_handshake`).
    """

    files: TlsFiles
    expected: TlsIdentity
    encrypted: bool = True

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        """Connect to a peer, and check its identity before any data is sent; return the protocol.

        ``factory`` creates the protocol. The caller limits the time. Raises ``OSError``, of which
        :class:`identity.WrongPeer` is one.
        """
        loop = asyncio.get_running_loop()
        context = self.files.contexts().client
        if not self.encrypted:
            return await self._connect_clear(factory, host, port, context)
        transport, protocol = await loop.create_connection(factory, host, port, ssl=context)
        # A valid certificate of the same authority is not enough: it must name this peer.
        try:
            identity.check(transport.get_extra_info("peercert"), self.expected)
        except identity.WrongPeer:
            transport.abort()
            raise
        return protocol

    async def _connect_clear(
        self, factory: Callable[[], P], host: str, port: int, context: ssl.SSLContext
    ) -> P:
        """Connect by TLS, check the peer's identity, and continue without encryption."""
        loop = asyncio.get_running_loop()
        # Close the socket on any failure, unless a transport owns it.
        with contextlib.ExitStack() as closing:
            connected = await _connected(host, port)
            closing.callback(connected.close)
            certificate = await authenticate_and_clear(connected, context, server_side=False)
            identity.check(certificate, self.expected)
            _, protocol = await loop.create_connection(factory, sock=connected)
            closing.pop_all()
        return protocol

    def connect_blocking(self, host: str, port: int, timeout_s: float) -> ssl.SSLSocket:
        """Return an encrypted connection, for a thread without a loop.

        Raises as :meth:`connect`.
        """
        raw = socket.create_connection((host, port), timeout=timeout_s)
        try:
            tls = self.files.contexts().client.wrap_socket(raw)
            identity.check(tls.getpeercert(), self.expected)
        except BaseException:
            raw.close()
            raise
        return tls


async def _connected(host: str, port: int) -> socket.socket:
    """Return a socket connected to the first of the host's addresses that accepts.

    Raises the ``OSError`` of the last attempt.
    """
    loop = asyncio.get_running_loop()
    # Error of the latest attempt, raised if no address accepts.
    problem: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connecting = socket.socket(family, kind, protocol)
        connecting.setblocking(False)
        try:
            await loop.sock_connect(connecting, address)
        except OSError as error:
            connecting.close()
            problem = error
        except BaseException:
            # Close the socket when the caller is cancelled too.
            connecting.close()
            raise
        else:
            return connecting
    raise problem or OSError(f"{host} has no address")
