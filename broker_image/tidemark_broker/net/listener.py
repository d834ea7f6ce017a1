"""Address of a listener, which is bound at the start and listens later.

The address is bound first, since the broker's registration contains the port. Listening starts once
metadata is available. Until then connections are refused, and clients retry or use another broker
(Kafka's ``SocketServer.enableRequestProcessing`` waits for the metadata in the same way).
"""

import abc
import asyncio
import logging
import socket
from collections.abc import Coroutine
from typing import Any, Self

logger = logging.getLogger(__name__)


class BoundListener(abc.ABC):
    """Listening address. Used from the loop on which it was started."""

    def __init__(self, name: str, *, backlog: int) -> None:
        self.name = name
        self._backlog = backlog
        #: Set by :meth:`bind`.
        self._socket: socket.socket
        #: Task that accepts connections, None until :meth:`listen`.
        self._accepting: asyncio.Task[None] | None = None
        #: Bound address, "" and 0 until :meth:`bind`.
        self.host = ""
        self.port = 0

    async def bind(self, host: str, port: int) -> Self:
        """Bind the address without accepting connections. Raises ``OSError``.

        Port 0 picks a free one (see ``port``).
        """
        # The first address decides, as the registration has only one.
        infos = await asyncio.get_running_loop().getaddrinfo(
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
        """Accept connections on the bound address. Idempotent.

        Raises ``OSError``: two sockets may bind one address, but only the first can listen.
        """
        if self._accepting is None:
            # Done here, because uvloop's create_server does not report a failing listen.
            self._socket.listen(self._backlog)
            self._accepting = asyncio.get_running_loop().create_task(self._accept())
            logger.info("%s listens on %s:%d", self.name, self.host, self.port)
        return self

    @abc.abstractmethod
    def _accept(self) -> Coroutine[Any, Any, None]:
        """Return the work of accepting connections from the listening socket."""

    async def _stop_accepting(self) -> bool:
        """Stop accepting connections. Return False if the listener did not listen."""
        # The broker may be stopped before its first snapshot.
        if self._accepting is None:
            self._socket.close()
            return False
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        return True
