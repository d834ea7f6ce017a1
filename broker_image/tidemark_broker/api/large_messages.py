"""Requests and answers with many elements: decoded and encoded in threads, a few at a time.

A thousand elements take milliseconds, twenty thousand a quarter of a second, during which the loop
would serve no other client. A thread shares the interpreter with the loop, which gets it back every
few milliseconds.

Decoded elements weigh many times their encoded bytes. Large requests are therefore decoded only
within a budget of requests in service. None of them waits long for an event, because the next one
needs the budget.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, ParamSpec, TypeVar, get_origin

from tidemark.wire.bounds import STRING_BYTES_MAX, MessageBounds
from tidemark.wire.codec import without_none
from tidemark.wire.framing import FrameTooManyElements, decode_request, encode_response_pieces
from tidemark.wire.receiver import Frame
from tidemark_broker.api.schema import entity_in
from tidemark_broker.replication.threads import ThreadPool

E = TypeVar("E")
R = TypeVar("R")
P = ParamSpec("P")

#: Limits of messages that are decoded and encoded on the loop.
_ON_LOOP = MessageBounds(elements=1000, string_bytes=STRING_BYTES_MAX)
#: Longest wait of a large request, or of one with many bytes, for other replicas or for the tier.
WAIT_MAX_S = 30.0
MUCH_BYTES = 1024 * 1024
#: Longest wait of such a Fetch for records: the default of Kafka's consumers.
POLL_MAX_S = 0.5
POLL_BYTES = 16 * 1024
#: Bytes of large requests in service.
BUDGET_BYTES = 1024 * 1024
#: Limit of the bytes for which one counts: the rest of a large Produce is records.
COUNTED_BYTES_MAX = BUDGET_BYTES // 4
#: For clients' large requests and the answers to them.
in_request_thread = ThreadPool("large requests", threads=1)
#: For large answers to small requests, which do not wait behind large requests.
in_answer_thread = ThreadPool("large answers", threads=1)
#: For requests between brokers, which clients must not delay.
in_peer_thread = ThreadPool("brokers' large messages", threads=1)


def small(request_type: type[E], frame: Frame) -> E | None:
    """Decode a small request; None if it is large. Raises ``FrameError``."""
    try:
        return decode_request(request_type, frame, _ON_LOOP)
    except FrameTooManyElements:
        return None


async def decoded(
    threads: ThreadPool,
    request_type: type[E],
    frame: Frame,
    bounds: MessageBounds,
    *,
    spent: Callable[[float], None],
) -> E:
    """Decode in a thread.

    See :func:`decode_request`. ``spent`` receives the processor time in seconds.
    """
    work = partial(decode_request, request_type, frame, bounds)
    return await _timed(threads, spent, work)


async def encoded(
    threads: ThreadPool,
    answer: Any,
    correlation_id: int,
    answer_type: Any,
    *,
    spent: Callable[[float], None],
) -> Sequence[bytes]:
    """Encode in a thread. See :func:`encode_response_pieces`."""
    work = partial(encode_response_pieces, answer, correlation_id, answer_type)
    return await _timed(threads, spent, work)


async def _timed(threads: ThreadPool, spent: Callable[[float], None], work: Callable[[], R]) -> R:
    # thread_time excludes waits for the interpreter, which the client did not cause.
    def timed() -> tuple[R, float]:
        began_s = time.thread_time()
        result = work()
        return result, time.thread_time() - began_s

    result, took_s = await threads(timed)
    spent(took_s)
    return result


def is_large(answer: Any) -> bool:
    """Return whether a response has too many elements to be encoded on the event loop.

    Nested elements count.
    """
    count, left = 0, [answer]
    while left:
        part = left.pop()
        kind: Any = type(part)
        # An explicit stack, because answers nest and recursion would be slower on the common path.
        for name, has_arrays in _array_fields(kind):
            value = getattr(part, name)
            if isinstance(value, tuple):
                count += len(value)
                # Stop at the limit, so the check itself stays short for huge answers.
                if count > _ON_LOOP.elements:
                    return True
                if has_arrays:
                    left.extend(value)
            elif has_arrays:
                left.append(value)
    return False


@cache
def _array_fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Return the fields that contain arrays, and whether their elements contain arrays too.

    Looked up once for each class: a response of all partitions has three arrays for each of them.
    """
    found = []
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        has_arrays = bool(_array_fields(entity_in(field.type)))
        if has_arrays or get_origin(without_none(field.type)[0]) is tuple:
            found.append((field.name, has_arrays))
    return tuple(found)
