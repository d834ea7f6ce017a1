"""Replication listener: connections of other brokers with mutual TLS, and internal Apis only.

A peer is served once it has authenticated as a broker of the cluster (:mod:`tidemark.tls`).
"""

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any, Protocol

from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark.tls.private_listener import PrivateListener
from tidemark.wire.receiver import SCRATCH_BYTES, Frame
from tidemark_broker.admission.connection_limits import ConnectionLimits
from tidemark_broker.admission.request_memory import MemoryBudgets
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.net.connection import ListenerState, Serve, Served, ServerConnection
from tidemark_broker.net.listener import BoundListener
from tidemark_broker.net.metrics import NetMetrics

_BACKLOG = 128
#: A fetch identifies partitions by id: ten thousand of them are less than a megabyte.
REQUEST_BYTES_MAX = 16 * 1024 * 1024


class ServePeer(Protocol):
    """Handler of frames from an authenticated broker."""

    def __call__(self, frame: Frame, memory: ResponseMemory, peer: TlsIdentity) -> Served: ...


class ReplicationServer(BoundListener):
    """Listener for connections of other brokers.

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
        limits: ConnectionLimits,
        net_metrics: NetMetrics,
    ) -> None:
        """Create the listener without binding it. See :meth:`bind` and :meth:`listen`."""
        super().__init__("the replication listener", backlog=_BACKLOG)
        self._serve = serve
        self._me = me
        self._files = files
        self._encrypted = encrypted
        self._limits = limits
        self._metrics = net_metrics
        #: Open connections with the broker that each one authenticated as.
        self._connections: dict[ServerConnection, TlsIdentity] = {}
        #: Set by :meth:`listen`.
        self._listener: PrivateListener

    def _accept(self) -> Coroutine[Any, Any, None]:
        limits = self._limits
        shared = ListenerState(
            open_session=self._open_session,
            limits=limits,
            metrics=self._metrics,
            budgets=MemoryBudgets.of(limits.queued_request_bytes_max, limits.answer_bytes_max),
            scratch=bytearray(SCRATCH_BYTES),
            loop=asyncio.get_running_loop(),
            opened=lambda _: None,
            lost=self._lost,
        )
        # Authentication happens before a connection object exists, so strangers use no request
        # memory.
        self._listener = PrivateListener(
            self._socket,
            self._files,
            self._why_not,
            lambda peer: self._connection(shared, peer),
            name="replication listener",
            encrypted=self._encrypted,
        )
        return self._listener.run()

    def _why_not(self, peer: TlsIdentity) -> str | None:
        # The same CA may serve several clusters.
        if peer.cluster_id != self._me.cluster_id:
            return f"the peer is {peer}, which belongs to another cluster"
        return f"the peer is {peer}, which is not a broker" if peer.node_id is None else None

    def _connection(self, shared: ListenerState, peer: TlsIdentity) -> ServerConnection:
        made = ServerConnection(shared)
        self._connections[made] = peer
        return made

    def _open_session(self, connection: ServerConnection) -> Serve:
        return functools.partial(self._serve, peer=self._connections[connection])

    def _lost(self, connection: ServerConnection) -> None:
        peer = self._connections.pop(connection, None)
        if peer is not None:
            self._listener.connection_closed(peer)

    async def stop(self) -> None:
        """Stop accepting, and close every connection."""
        if await self._stop_accepting():
            for connection in tuple(self._connections):
                connection.close()
