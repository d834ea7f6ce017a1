"""Polling until a result is as expected."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

R = TypeVar("R")
TIMEOUT_S = 60.0


async def until(
    look: Callable[[], Awaitable[R]], good: Callable[[R], bool], timeout_s: float = TIMEOUT_S
) -> R:
    """Poll until the result is good and return it. Brokers receive metadata at different times."""
    found = await look()
    try:
        async with asyncio.timeout(timeout_s):
            while not good(found):
                await asyncio.sleep(0.05)
                found = await look()
    except TimeoutError:
        raise AssertionError(f"after {timeout_s:.0f} s: {found}") from None
    return found
