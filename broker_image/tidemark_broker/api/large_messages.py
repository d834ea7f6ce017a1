"""Requests and answers of many elements: read and written in a thread, a few at a time.

A thousand elements take milliseconds, twenty thousand a quarter of a second, in which nobody else
would be served. A thread shares the interpreter with the loop, which gets it back every few
milliseconds.

Elements weigh many times what their bytes do. So large requests are read only while those that are
in service have not used up a budget, and none of them waits for long for something to happen: the
next one has to get its turn.
"""

import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tidemark.wire.bounds import STRING_BYTES_MAX, Bounds
from tidemark.wire.framing import FrameTooManyElements, decode_request, encode_response_pieces
from tidemark.wire.receiver import Frame
from tidemark_broker.fair_queue import FairTurns
from tidemark_broker.replication.threads import Threads

E = TypeVar("E")
R = TypeVar("R")
P = ParamSpec("P")

#: What of a request, or of an answer, the loop's own thread reads and writes.
_ON_LOOP = Bounds(elements=1000, string_bytes=STRING_BYTES_MAX)
#: How long a large request, or one of many bytes, may wait for other replicas, or for the tier.
WAIT_MAX_S = 30.0
MUCH_BYTES = 1024 * 1024
#: And a Fetch for records: as long as Kafka's consumers do if nobody tells them otherwise.
POLL_MAX_S = 0.5
POLL_BYTES = 16 * 1024
#: Bytes of large requests in service; one counts for at most a fourth of it: the rest of a large
#: Produce is records.
BUDGET_BYTES = 1024 * 1024
#: For clients' large requests and the answers to them.
in_request_thread = Threads("large requests", threads=1)
#: For large answers to small requests: they do not wait for those who ask for much.
in_answer_thread = Threads("large answers", threads=1)
#: For what brokers ask of each other: no client delays that.
in_peer_thread = Threads("brokers' large messages", threads=1)


class LargeRequests:
    """Those of one broker that are in service. Belongs to its loop."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._most_bytes = budget_bytes // 4
        self._turns = FairTurns(budget_bytes)

    def turn(self, frame: Frame, who: Hashable) -> AbstractAsyncContextManager[None]:
        """From before it is read until it is answered."""
        return self._turns.turn(min(len(frame), self._most_bytes), who)


def small(request_type: type[E], frame: Frame) -> E | None:
    """The request of a frame, None where it is large. Raises ``FrameError``."""
    try:
        return decode_request(request_type, frame, _ON_LOOP)
    except FrameTooManyElements:
        return None


async def decoded(
    threads: Threads,
    request_type: type[E],
    frame: Frame,
    bounds: Bounds,
    *,
    spent: Callable[[float], None],
) -> E:
    """See :func:`decode_request`; ``spent`` is told of its processor time."""
    work = partial(decode_request, request_type, frame, bounds)
    return await _timed(threads, spent, work)


async def encoded(
    threads: Threads,
    answer: Any,
    correlation_id: int,
    answer_type: Any,
    *,
    spent: Callable[[float], None],
) -> Sequence[bytes]:
    """See :func:`encode_response_pieces`."""
    work = partial(encode_response_pieces, answer, correlation_id, answer_type)
    return await _timed(threads, spent, work)


async def _timed(threads: Threads, spent: Callable[[float], None], work: Callable[[], R]) -> R:
    def timed() -> tuple[R, float]:
        began_s = time.thread_time()
        result = work()
        return result, time.thread_time() - began_s

    result, took_s = await threads(timed)
    spent(took_s)
    return result


def is_large(answer: Any) -> bool:
    """Has it many elements, in its arrays and in all that is in them?"""
    count, left = 0, [answer]
    while left:
        part = left.pop()
        if not dataclasses.is_dataclass(part):
            continue
        for name in part.__dataclass_fields__:
            value = getattr(part, name)
            if isinstance(value, tuple):
                count += len(value)
                if count > _ON_LOOP.elements:
                    return True
                left.extend(value)
            elif dataclasses.is_dataclass(value):
                left.append(value)
    return False
