"""Replication listener: connections of other brokers with mutual TLS, and internal Apis only.

A peer is served once it has authenticated as a broker of the cluster (:mod:`tidemark.tls`). The
address is bound at the start, since the registration contains it. Listening starts later, as for
clients.
"""

import asyncio
import functools
import logging
import socket
from collections.abc import Awaitable, Sequence
from typing import Protocol, Self

from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark.tls.private_listener import PrivateListener
from tidemark.wire.receiver import SCRATCH_BYTES, Frame
from tidemark_broker.admission.response_memory import ResponseBudget, ResponseMemory
from tidemark_broker.net.budget import RequestBudget
from tidemark_broker.net.config import ServerConfig
from tidemark_broker.net.connection import ListenerState, Serve, ServerConnection
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.net.partial_requests import UnfinishedFrames
from tidemark_broker.net.sockets import bound_socket

logger = logging.getLogger(__name__)

_BACKLOG = 128
#: A fetch identifies partitions by id: ten thousand of them are less than a megabyte.
REQUEST_BYTES_MAX = 16 * 1024 * 1024


class ServePeer(Protocol):
    """Handler of frames from an authenticated broker."""

    def __call__(
        self, frame: Frame, memory: ResponseMemory, peer: TlsIdentity
    ) -> Awaitable[Sequence[bytes] | None]: ...


class ReplicationServer:
    """Listener for connections of other brokers. Used from the loop on which it was started.

    ``serve`` handles the frames of an authenticated peer. ``me`` is this broker's identity, whose
    cluster the peers must belong to. Without ``encrypted`` TLS ends after the mutual
    authentication.
    """

    def __init__(
        self,
        serve: ServePeer,
        *,
        me: TlsIdentity,
        files: TlsFiles,
        encrypted: bool,
        config: ServerConfig,
        net_metrics: NetMetrics,
    ) -> None:
        """Create the listener without binding it. See :meth:`bind` and :meth:`listen`."""
        self._serve = serve
        self._me = me
        self._files = files
        self._encrypted = encrypted
        self._config = config
        self._metrics = net_metrics
        # Separate from the clients' budgets, so that clients cannot delay replication.
        self._budget = RequestBudget(config.queued_request_bytes_max)
        self._answers = ResponseBudget(config.answer_bytes_max)
        self._unfinished = UnfinishedFrames(config.queued_request_bytes_max // 4)
        #: Open connections with the broker that each one authenticated as.
        self._connections: dict[ServerConnection, TlsIdentity] = {}
        #: Task that accepts connections, None until :meth:`listen`.
        self._listening: asyncio.Task[None] | None = None
        #: Set by :meth:`bind`.
        self._socket: socket.socket
        self._listener: PrivateListener
        #: Bound address, "" and 0 until :meth:`bind`.
        self.host = ""
        self.port = 0

    async def bind(self, host: str, port: int) -> Self:
        """Bind the address; port 0 picks a free one (see ``port``). Raises ``OSError``."""
        self._socket = await bound_socket(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        return self

    async def listen(self) -> Self:
        """Accept connections on the bound address. Idempotent. Raises ``OSError``.

        Called after the first full snapshot of the controller has been applied.
        """
        if self._listening is None:
            self._socket.listen(_BACKLOG)
            # Authentication happens before a connection object exists, so strangers use no request
            # memory.
            shared = self._shared()
            self._listener = PrivateListener(
                self._socket,
                self._files,
                self._why_not,
                lambda peer: self._connection(shared, peer),
                name="replication listener",
                encrypted=self._encrypted,
            )
            self._listening = asyncio.get_running_loop().create_task(self._listener.run())
            logger.info("replication listener on %s:%d", self.host, self.port)
        return self

    def _why_not(self, peer: TlsIdentity) -> str | None:
        # The same CA may serve several clusters.
        if peer.cluster_id != self._me.cluster_id:
            return f"the peer is {peer}, which belongs to another cluster"
        return f"the peer is {peer}, which is not a broker" if peer.node_id is None else None

    def _connection(self, shared: ListenerState, peer: TlsIdentity) -> ServerConnection:
        made = ServerConnection(shared)
        self._connections[made] = peer
        return made

    def _shared(self) -> ListenerState:
        # Separate budgets, so that clients cannot exhaust the memory for replication.
        return ListenerState(
            open_session=self._open_session,
            config=self._config,
            metrics=self._metrics,
            budget=self._budget,
            answers=self._answers,
            unfinished=self._unfinished,
            scratch=bytearray(SCRATCH_BYTES),
            loop=asyncio.get_running_loop(),
            opened=lambda _: None,
            lost=self._lost,
        )

    def _open_session(self, connection: ServerConnection) -> Serve:
        return functools.partial(self._serve, peer=self._connections[connection])

    def _lost(self, connection: ServerConnection) -> None:
        peer = self._connections.pop(connection, None)
        if peer is not None:
            self._listener.connection_closed(peer)

    async def stop(self) -> None:
        """Stop accepting, and close every connection."""
        # The broker may be stopped before its first snapshot.
        if self._listening is None:
            self._socket.close()
            return
        self._listening.cancel()
        for connection in tuple(self._connections):
            connection.close()
        await asyncio.gather(self._listening, return_exceptions=True)
