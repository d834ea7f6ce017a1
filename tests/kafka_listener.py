"""A listening socket that hands each connection to one coroutine, in a task it owns."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from tidemark.tls.files import TlsFiles
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import FrameError

logger = logging.getLogger(__name__)


class KafkaListener:
    """The far end of our own connections; ``port`` is where it listens."""

    def __init__(self, serve: Callable[[KafkaConnection], Awaitable[None]]) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], KafkaConnection] = {}
        self.port = 0

    async def start(
        self, host: str, port: int, *, client_id: str = "", tls: TlsFiles | None = None
    ) -> Self:
        """Bind and listen; port 0 picks a free one. With ``tls`` the other side has to prove
        itself."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Accepted(self, client_id),
            host,
            port,
            ssl=None if tls is None else tls.contexts().server,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """Stop listening, cancel what serves the open connections, and wait for both."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connections(self) -> int:
        """Number of connections that are being served."""
        return len(self._tasks)

    def accept(self, connection: KafkaConnection) -> None:
        """Called once for each connection that is up."""
        task = asyncio.get_running_loop().create_task(self._run(connection))
        self._tasks[task] = connection
        task.add_done_callback(self._tasks.pop)

    async def _run(self, connection: KafkaConnection) -> None:
        try:
            await self._serve(connection)
        except (ConnectionError, FrameError, TimeoutError) as error:
            logger.info("connection from %s ended: %s", connection.peer, error)
        except Exception:
            logger.exception("connection from %s failed and is closed", connection.peer)
        finally:
            await connection.close()


class _Accepted(KafkaConnection):
    """A connection that reports to its listener."""

    def __init__(self, listener: KafkaListener, client_id: str) -> None:
        super().__init__(client_id=client_id)
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.accept(self)
