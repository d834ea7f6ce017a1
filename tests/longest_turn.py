"""Time for which requests occupy an event loop: the processor time of its own thread between two
turns of another task.

Other processes and threads do not count.

The code is not at fault for a core that is slow, or temporarily assigned to another machine. Times
are therefore scaled to a core that makes a certain number of calls in a certain time, by the
current speed of this one.
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

#: Time for a number of function calls on a core of normal speed.
_CALLS, _CALLS_MS = 50_000, 2.5


def slowness() -> float:
    """Return the factor by which this core is slower; 1 if it is faster."""
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
