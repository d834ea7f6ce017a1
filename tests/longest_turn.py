"""How long requests keep an event loop for themselves: the processor time of its own thread
between two turns of another task. Neither other processes of the machine count nor threads.

A core that is slow, or is lent to other machines meanwhile, is not the code's fault: times are
those of a core that makes a certain number of calls in a certain time, by what this one makes just
then.
"""

import asyncio
import contextlib
import gc
import statistics
import time
from collections.abc import AsyncIterator

#: Milliseconds that a request may take of the loop at once. A slice ends after 5; some steps go
#: through all entries at once, in a few more.
TURN_MS = 30

#: So many calls of a function take so long on a core that nothing is said against.
_CALLS, _CALLS_MS = 50_000, 2.5


def slowness() -> float:
    """How many times as long this core takes; 1 of a faster one."""
    return max(1.0, statistics.median(_calls_ms() for _ in range(5)) / _CALLS_MS)


def _calls_ms() -> float:
    began_s = time.thread_time()
    value = 0
    for _ in range(_CALLS):
        value = _next(value)
    return (time.thread_time() - began_s) * 1000


def _next(value: int) -> int:
    return value + 1


@contextlib.asynccontextmanager
async def longest_turn() -> AsyncIterator[list[float]]:
    """In milliseconds, of everything that runs on this loop meanwhile. Without garbage collection,
    which would go through all of pytest, too."""
    longest = [0.0]
    per_s = 1000 / slowness()
    gc.disable()

    async def beat() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest[0] = max(longest[0], (now - before) * per_s)
            before = now

    task = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        yield longest
        await asyncio.sleep(0)  # the last of it is measured, too
    finally:
        task.cancel()
        gc.enable()
