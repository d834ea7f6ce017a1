"""Closing the logs of a broker, several at a time.

Each waits for the disk a few times, so that thousands of them, one after another, take longer than
whoever stops a broker has patience. Disks work on a few fsyncs at once, and no faster on more: so
the next log begins when one that is under way has ended.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tidemark_broker.log.errors import LogError
from tidemark_broker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

AT_ONCE_MAX = 6

#: Runs a blocking call, given with its arguments, in a thread; to its end, also when cancelled.
InThread = Callable[..., Awaitable[Any]]


async def close_logs(logs: Iterable[PartitionLog], in_thread: InThread) -> bool:
    """Close all; did each of them close well? One that does not keeps no other from it. Returns, or
    raises what was not to be expected, when no thread works on a log any more."""
    left = iter(logs)

    async def close_in_turn() -> bool:
        results = [await in_thread(_close, log) for log in left]
        return all(results)

    ends = await asyncio.gather(
        *(close_in_turn() for _ in range(AT_ONCE_MAX)), return_exceptions=True
    )
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return all(ends)


def _close(log: PartitionLog) -> bool:
    try:
        log.close()
    except LogError as error:
        logger.warning("%s: %s", log.directory, error)
        return False
    return True
