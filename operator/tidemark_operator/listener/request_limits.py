"""Limits on incomplete requests to the control listener.

The owner of a broker's certificate may still be a broker that malfunctions. Until it has shown the
secret of a session, its requests must be small and arrive soon. Only a few large requests of all
senders are read at a time, each within limited time.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext

from tidemark.wire.streams import read_body, read_length

#: Requests are small; a complete BrokerStatus of 10,000 partitions has about 2 MB.
REQUEST_BYTES_MAX = 16 * 1024 * 1024
#: A registration, and other requests before the secret was shown.
UNPROVEN_BYTES_MAX = 64 * 1024
#: Longest idle time of a connection that has not shown the secret.
UNPROVEN_IDLE_S = 60.0
#: Longest time for a request to arrive after its length.
WHOLE_WITHIN_S = 30.0
#: Larger requests are read a few at a time.
LARGE_BYTES = 1024 * 1024
LARGE_AT_ONCE = 4


class Intake:
    """Limits of all connections of the listener."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def read(self, reader: asyncio.StreamReader, *, proven: bool) -> bytes | None:
        """Return the next request's frame, None at the end.

        Raises ``FrameError``, ``TimeoutError``.
        """
        async with asyncio.timeout(None if proven else UNPROVEN_IDLE_S):
            limit = REQUEST_BYTES_MAX if proven else UNPROVEN_BYTES_MAX
            size = await read_length(reader, limit)
        if size is None:
            return None
        # Wait for a turn before the buffer is allocated.
        async with self._turn(size), asyncio.timeout(WHOLE_WITHIN_S):
            return await read_body(reader, size)

    def _turn(self, size: int) -> AbstractAsyncContextManager[None]:
        return self._large if size > LARGE_BYTES else nullcontext()
