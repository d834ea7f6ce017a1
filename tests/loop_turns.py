"""To wait for what other tasks do without a clock: a number of turns of the loop, however slow."""

import asyncio

#: More than any chain of tasks in the unit tests needs.
_MANY = 100


async def many_turns() -> None:
    """All that does not wait for something outside of this loop has been done then."""
    for _ in range(_MANY):
        await asyncio.sleep(0)
