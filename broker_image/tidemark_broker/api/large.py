"""Requests and answers of many elements: read and written in a thread, a few at a time.

A thousand elements take milliseconds, twenty thousand a quarter of a second, in which nobody else
would be served. A thread shares the interpreter with the loop, which gets it back every few
milliseconds.

Elements weigh many times what their bytes do. So large requests are read only while those that are
in service have not used up a budget, and none of them waits for long for something to happen: the
next one has to get its turn.
"""

import asyncio
import collections
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tidemark.wire.framing import FrameTooManyElements, decode_request, encode_response_pieces
from tidemark.wire.receiver import Frame
from tidemark_broker.replication.threads import Threads

E = TypeVar("E")
R = TypeVar("R")
P = ParamSpec("P")

#: Elements of a request, or of an answer, that the loop's own thread reads and writes.
_ON_LOOP = 1000
#: How long a large request may wait for other replicas, or for the tier.
WAIT_MAX_S = 30.0
#: And a large Fetch for records: as long as Kafka's consumers do if nobody tells them otherwise.
POLL_MAX_S = 0.5
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
        self._budget_bytes = self._left_bytes = budget_bytes
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    @asynccontextmanager
    async def turn(self, frame: Frame) -> AsyncIterator[None]:
        """From before it is read until it is answered; those that came first have it first."""
        size = min(len(frame), self._budget_bytes // 4)
        if self._waiting or size > self._left_bytes:
            await self._wait(size)
        else:
            self._left_bytes -= size
        try:
            yield
        finally:
            self._give(size)

    async def _wait(self, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(size)
            raise

    def _give(self, size: int) -> None:
        self._left_bytes += size
        while self._waiting and (
            self._waiting[0][1].done() or self._waiting[0][0] <= self._left_bytes
        ):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._left_bytes -= wanted
                turn.set_result(None)


def small(request_type: type[E], frame: Frame) -> E | None:
    """The request of a frame, None where it is large. Raises ``FrameError``."""
    try:
        return decode_request(request_type, frame, elements_max=_ON_LOOP)
    except FrameTooManyElements:
        return None


async def decoded(
    threads: Threads,
    request_type: type[E],
    frame: Frame,
    *,
    elements_max: int,
    spent: Callable[[float], None],
) -> E:
    """See :func:`decode_request`; ``spent`` is told of its processor time."""
    work = partial(decode_request, request_type, frame, elements_max=elements_max)
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
    """Has it many elements, in its arrays and in those in them? What is deeper are few to each."""
    count = 0
    for outer in _arrays(answer):
        count += len(outer)
        if count > _ON_LOOP:
            break
        count += sum(len(inner) for each in outer for inner in _arrays(each))
    return count > _ON_LOOP


def _arrays(value: Any) -> list[tuple[Any, ...]]:
    if not dataclasses.is_dataclass(value):
        return []
    values = (getattr(value, name) for name in value.__dataclass_fields__)
    return [each for each in values if isinstance(each, tuple)]
