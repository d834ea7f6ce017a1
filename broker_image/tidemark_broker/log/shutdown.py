"""Closing of a broker's logs, several at a time.

Each close waits for the disk a few times. Thousands of them in sequence would exceed the time that
a broker has for a shutdown. Disks process a few fsyncs at once, and more do not speed them up, so
the number is limited.
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
    """Close all logs; return whether all succeeded. A failure does not stop the others.

    Returns, or raises unexpected exceptions, only when no thread works on a log any more.
    """
    # The workers share one iterator: each takes the next log when it is done.
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
