"""Connections to other brokers for one kind of request, dialled on demand.

The other side processes one request per connection at a time, so each kind has its own.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from tidemark.tls.dialing import Dialer
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.replication.metadata import MetadataCache

R = TypeVar("R")
_DIAL_TIMEOUT_S = 3.0


class Links:
    """Connections by broker. Used from the loop only."""

    def __init__(
        self, cluster: MetadataCache, dialer_of: Callable[[int], Dialer], *, client_id: str
    ) -> None:
        self._cluster = cluster
        self._dialer_of = dialer_of
        self._client_id = client_id
        self._connections: dict[int, KafkaConnection] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._closed = False

    async def request(self, broker: int, entity: Any, answer: type[R], timeout_s: float) -> R:
        """Send a request to a broker.

        Raises ``OSError`` or ``TimeoutError``, after which it is unknown whether the request was
        processed, and ``FrameError``. The next request then uses a new connection.
        """
        connection = await self._connection(broker)
        try:
            return await connection.request(entity, answer, timeout_s)
        # A late answer on the old connection would be taken for the next request's.
        except BaseException:
            self._connections.pop(broker, None)
            await asyncio.shield(connection.close())
            raise

    async def _connection(self, broker: int) -> KafkaConnection:
        async with self._locks.setdefault(broker, asyncio.Lock()):
            connection = self._connections.get(broker)
            # The lock avoids two connections when several requests start together.
            if connection is None or connection.closed:
                connection = await self._dial(broker)
                self._connections[broker] = connection
            return connection

    async def _dial(self, broker: int) -> KafkaConnection:
        """Connect to a broker, and check its identity. Raises OSError, TimeoutError."""
        endpoint = self._cluster.endpoint(broker)
        if self._closed:
            raise ConnectionError("this broker is shutting down")
        if endpoint is None:
            raise ConnectionError(f"broker {broker} is not registered")
        return await KafkaConnection.connect(
            endpoint.host,
            endpoint.port,
            client_id=self._client_id,
            timeout_s=_DIAL_TIMEOUT_S,
            dialer=self._dialer_of(broker),
        )

    async def close(self) -> None:
        """Close all connections for good."""
        self._closed = True
        connections = [*self._connections.values()]
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))
