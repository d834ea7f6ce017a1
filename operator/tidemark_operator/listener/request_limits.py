"""What requests may cost the control listener until they are whole.

Whoever has a broker's certificate may still be a broker that has gone wrong. Until it has shown the
secret of a session its requests are small and come soon; of large ones only a few are read at a
time, each in limited time, whoever sends them.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext

from tidemark.wire.streams import read_body, read_length

#: A broker's requests are small; a whole BrokerStatus of 10,000 partitions is about 2 MB.
REQUEST_BYTES_MAX = 16 * 1024 * 1024
#: A registration, and whatever else comes before the secret was shown.
UNPROVEN_BYTES_MAX = 64 * 1024
#: How long whoever has not shown it may keep a connection without a request.
UNPROVEN_IDLE_S = 60.0
#: How long a request may take to come once its length has.
WHOLE_WITHIN_S = 30.0
#: Requests of more than this are read a few at a time.
LARGE_BYTES = 1024 * 1024
LARGE_AT_ONCE = 4


class Intake:
    """Of all connections of the listener."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def read(self, reader: asyncio.StreamReader, *, proven: bool) -> bytes | None:
        """The next request's frame, None at the end. Raises ``FrameError`` and ``TimeoutError``."""
        async with asyncio.timeout(None if proven else UNPROVEN_IDLE_S):
            limit = REQUEST_BYTES_MAX if proven else UNPROVEN_BYTES_MAX
            size = await read_length(reader, limit)
        if size is None:
            return None
        async with self._turn(size), asyncio.timeout(WHOLE_WITHIN_S):
            return await read_body(reader, size)

    def _turn(self, size: int) -> AbstractAsyncContextManager[None]:
        return self._large if size > LARGE_BYTES else nullcontext()
