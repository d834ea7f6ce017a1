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
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Any, ParamSpec, TypeVar

from tidemark.wire.bounds import STRING_BYTES_MAX, Bounds
from tidemark.wire.framing import FrameTooManyElements, decode_request, encode_response_pieces
from tidemark.wire.receiver import Frame
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

#: Bytes, and what is told that it has begun.
_Waiting = tuple[int, "asyncio.Future[None]"]


class LargeRequests:
    """Those of one broker that are in service. Belongs to its loop."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = self._left_bytes = budget_bytes
        self._used: Counter[Hashable] = Counter()
        #: By who asks; whose turn is next stands first.
        self._waiting: dict[Hashable, collections.deque[_Waiting]] = {}

    @asynccontextmanager
    async def turn(self, frame: Frame, who: Hashable) -> AsyncIterator[None]:
        """From before it is read until it is answered. Those who ask have their turns one after
        another, each its own in the order in which they came, and nobody more than half of all."""
        size = min(len(frame), self._budget_bytes // 4)
        await self._wait(size, who)
        try:
            yield
        finally:
            self._give(size, who)

    async def _wait(self, size: int, who: Hashable) -> None:
        begun = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, collections.deque()).append((size, begun))
        self._begin_next()
        try:
            await begun
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled():
                self._give(size, who)
            else:
                self._forget(begun, who)
            raise

    def _forget(self, begun: "asyncio.Future[None]", who: Hashable) -> None:
        """It has not begun, and is not to."""
        waiting = self._waiting.get(who, collections.deque())
        left = collections.deque(each for each in waiting if each[1] is not begun)
        if left:
            self._waiting[who] = left
        else:
            self._waiting.pop(who, None)
        self._begin_next()

    def _give(self, size: int, who: Hashable) -> None:
        self._left_bytes += size
        self._used[who] -= size
        if not self._used[who]:
            del self._used[who]
        self._begin_next()

    def _begin_next(self) -> None:
        while (following := self._following()) is not None:
            who, (size, begun) = following
            if not begun.done():
                if size > self._left_bytes:
                    return  # nobody who needs less goes before it for ever
                self._left_bytes -= size
                self._used[who] += size
                begun.set_result(None)
            mine = self._waiting.pop(who)
            mine.popleft()
            if mine:  # the others' turn first
                self._waiting[who] = mine

    def _following(self) -> "tuple[Hashable, _Waiting] | None":
        for who, waiting in self._waiting.items():
            size, begun = waiting[0]
            if begun.done() or self._used[who] + size <= self._budget_bytes // 2:
                return who, waiting[0]
        return None


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
    """Has it many elements, in its arrays and in those in them? What is deeper are few to each. A
    part of it that is one thing (an assignment) counts as if its arrays were the answer's."""
    count = 0
    for outer in chain(_arrays(answer), *map(_arrays, _parts(answer))):
        count += len(outer)
        if count > _ON_LOOP.elements:
            break
        count += sum(len(inner) for each in outer for inner in _arrays(each))
    return count > _ON_LOOP.elements


def _parts(answer: Any) -> list[Any]:
    if not dataclasses.is_dataclass(answer):
        return []
    values = (getattr(answer, name) for name in answer.__dataclass_fields__)
    return [each for each in values if dataclasses.is_dataclass(each)]


def _arrays(value: Any) -> list[tuple[Any, ...]]:
    if not dataclasses.is_dataclass(value):
        return []
    values = (getattr(value, name) for name in value.__dataclass_fields__)
    return [each for each in values if isinstance(each, tuple)]
