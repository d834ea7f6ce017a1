"""Request phase of a connection to the control listener.

A few requests are read ahead and answered in order, as in Kafka. A heartbeat counts when it is
read, even if its answer waits behind that of an AlterPartition.

The owner of a broker's certificate may still be a broker that malfunctions. Until it has shown the
secret of a session, its requests must be small and arrive soon. Only a few large requests of all
senders are read at a time, each within limited time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from tidemark.wire import control, framing
from tidemark.wire.streams import read_body, read_length
from tidemark_operator.listener.frames import Request, Response, decode_request

#: Requests are small; a complete BrokerStatus of 10,000 partitions has about 2 MB.
REQUEST_BYTES_MAX = 16 * 1024 * 1024
#: A registration, and other requests before the secret was shown.
UNPROVEN_BYTES_MAX = 64 * 1024
#: Longest idle time of a connection that has not shown the secret.
UNPROVEN_IDLE_S = 60.0
#: Longest time for a request to arrive after its length.
WHOLE_WITHIN_S = 30.0
#: Larger requests are read a few at a time.
LARGE_BYTES = 1024 * 1024
LARGE_AT_ONCE = 4


class Intake:
    """Limits of all connections of the listener."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def read(self, reader: asyncio.StreamReader, *, proven: bool) -> bytes | None:
        """Return the next request's frame, None at the end.

        Raises ``FrameError``, ``TimeoutError``.
        """
        async with asyncio.timeout(None if proven else UNPROVEN_IDLE_S):
            limit = REQUEST_BYTES_MAX if proven else UNPROVEN_BYTES_MAX
            size = await read_length(reader, limit)
        if size is None:
            return None
        # Wait for a turn before the buffer is allocated.
        async with self._turn(size), asyncio.timeout(WHOLE_WITHIN_S):
            return await read_body(reader, size)

    def _turn(self, size: int) -> AbstractAsyncContextManager[None]:
        return self._large if size > LARGE_BYTES else nullcontext()


R = TypeVar("R")
PIPELINED_MAX = 64
ANSWER_TIMEOUT_S = 60.0

Answer = Response | Awaitable[Response]
Answers = asyncio.Queue[tuple[int, Answer]]


@dataclass(frozen=True, slots=True)
class Attached:
    """An Attach that was accepted and answered: the roles are reversed now."""

    request: control.AttachRequest
    controller_epoch: int


async def serve_requests(
    read: Callable[[], Awaitable[bytes | None]],
    writer: asyncio.StreamWriter,
    answer: Callable[[Request], Answer],
) -> Attached | None:
    """Serve a broker's requests until its connection ends, or an Attach request is accepted.

    Returns the accepted Attach, after which the operator sends commands over this connection; None
    after ``read`` has returned None for the end. ``answer`` returns a response or an awaitable for
    it. Responses are written in the order of the requests, while later requests are already read.
    Raises :class:`framing.FrameError`, ``TimeoutError`` or ``ConnectionError``.
    """
    answers: Answers = asyncio.Queue(PIPELINED_MAX)
    writing = asyncio.create_task(_write(answers, writer))
    try:
        while True:
            frame = await _unless_failed(writing, read())
            if frame is None:
                # All pending answers are written before the connection is closed.
                await _unless_failed(writing, answers.join())
                return None
            received = decode_request(frame)
            given = answer(received.request)
            # A full queue stops the reading, so a fast sender is throttled.
            await _unless_failed(writing, answers.put((received.correlation_id, given)))
            if isinstance(given, control.AttachResponse):
                # Commands may follow only after the answers of the request phase.
                await _unless_failed(writing, answers.join())
                return _attached(received.request, given)
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        # Nothing waits for the remaining answers: their work is cancelled.
        while not answers.empty():
            _discard(answers.get_nowait()[1])


def _attached(request: Request, given: control.AttachResponse) -> Attached | None:
    if given.error_code != 0 or not isinstance(request, control.AttachRequest):
        return None
    return Attached(request, given.controller_epoch)


async def _unless_failed(writing: asyncio.Task[None], work: Awaitable[R]) -> R:
    """Return the result of ``work``, or raise the error of the writing side if that fails first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, writing}, return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            writing.result()
        return await task
    finally:
        task.cancel()


async def _write(answers: Answers, writer: asyncio.StreamWriter) -> None:
    while True:
        correlation_id, answer = await answers.get()
        if isinstance(answer, Awaitable):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await answer
        writer.write(framing.encode_response(answer, correlation_id))
        await writer.drain()
        answers.task_done()


def _discard(answer: Answer) -> None:
    if isinstance(answer, asyncio.Future):
        answer.cancel()
