"""Background tasks of the event loop: start, end, and pauses that an event ends early."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


def start_in(tasks: "set[asyncio.Task[None]]", work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as a task that is in ``tasks`` until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def cancel(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks and wait until they have ended. Their errors are ignored."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until the event is set, at most ``timeout_s``. Return whether it is set."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
