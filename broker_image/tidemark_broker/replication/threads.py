"""Blocking file work off the loop, never left behind.

A thread cannot be cancelled: when the task that waits for one is, the wait goes on until the
thread has ended, so that no lock is released and no file closed under it.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run to its end in a worker thread, also when the caller is cancelled meanwhile."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            await asyncio.wait([work])
        if not work.cancelled():
            work.exception()
        raise
