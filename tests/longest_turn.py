"""How long requests keep an event loop for themselves: the processor time of its own thread
between two turns of another task. Neither other processes of the machine count nor threads."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator

#: Milliseconds that a request may take of the loop at once. A slice ends after 5; some steps go
#: through all entries at once, in a few more.
TURN_MS = 20


@contextlib.asynccontextmanager
async def longest_turn() -> AsyncIterator[list[float]]:
    """In milliseconds, of everything that runs on this loop meanwhile. Without garbage collection,
    which would go through all of pytest, too."""
    longest = [0.0]
    gc.disable()

    async def beat() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest[0] = max(longest[0], (now - before) * 1000)
            before = now

    task = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        yield longest
        await asyncio.sleep(0)  # the last of it is measured, too
    finally:
        task.cancel()
        gc.enable()
