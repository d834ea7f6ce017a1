"""Batches: many items of one kind in one request, each caller with its own answer.

While a request is in progress the next one fills, so that a single item is sent at once, and a
thousand cost a few requests. A request that fails as a whole fails for all its items.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from tidemark_operator.engines.base import EngineUnavailable

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

#: Wait of a batch's first item for others: short for a single one, longer among many, because
#: each request that changes something reaches every broker.
LINGER_S, AMONG_MANY_S = 0.01, 0.15
QUIET_S = 0.5


class Batches(Generic[K, V, R]):
    """Batches of one loop. A second request for a key waits for the former answer."""

    def __init__(
        self,
        send: Callable[[Mapping[K, V]], Awaitable[Mapping[K, R]]],
        *,
        at_most: int,
        weigh: Callable[[V], int] = lambda _: 1,
    ) -> None:
        """Prepare an empty queue of requests.

        ``send`` sends one request for many keys and raises ``EngineUnavailable``. ``at_most`` is
        the largest weight of a batch, where ``weigh`` gives the weight of one item; an item that
        exceeds it is sent alone.
        """
        self._send = send
        self._at_most = at_most
        self._weigh = weigh
        #: Items that are not sent yet, with the future that their caller waits for.
        self._waiting: dict[K, tuple[V, asyncio.Future[R]]] = {}
        self._task: asyncio.Task[None] | None = None  # Sends batches until nothing waits.
        self._last_s = float("-inf")  # Loop time of the last batch.

    async def ask(self, key: K, value: V) -> R:
        """Return the answer for a key. Raises ``EngineUnavailable``."""
        loop = asyncio.get_running_loop()
        # Two values for one key cannot share a request.
        while key in self._waiting:
            await asyncio.wait([self._waiting[key][1]])
        answer: asyncio.Future[R] = loop.create_future()
        self._waiting[key] = value, answer
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return await answer

    async def close(self) -> None:
        """Send nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, answer in self._waiting.values():
            answer.cancel()
        self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            quiet = asyncio.get_running_loop().time() - self._last_s > QUIET_S
            await asyncio.sleep(LINGER_S if quiet else AMONG_MANY_S)
            self._last_s = asyncio.get_running_loop().time()
            await self._one({key: self._waiting.pop(key) for key in self._next()})

    def _next(self) -> list[K]:
        """Return the first waiting keys, up to the weight of one request."""
        keys: list[K] = []
        weight = 0
        for key, (value, _) in self._waiting.items():
            weight += self._weigh(value)
            # The first item always goes, even if it is heavier than the limit.
            if keys and weight > self._at_most:
                break
            keys.append(key)
        return keys

    async def _one(self, batch: Mapping[K, tuple[V, "asyncio.Future[R]"]]) -> None:
        """Send one batch, and give each waiting caller its answer or an exception."""
        try:
            answers = await self._send({key: value for key, (value, _) in batch.items()})
        except BaseException as error:
            # Every waiting caller gets an exception, also if this task is cancelled.
            failed = error if isinstance(error, EngineUnavailable) else None
            for _, answer in batch.values():
                if not answer.done():
                    answer.set_exception(
                        failed or EngineUnavailable(f"the request was not sent: {error!r}")
                    )
            if failed is None:
                raise
            return
        for key, (_, answer) in batch.items():
            # A caller that was cancelled needs no answer.
            if answer.done():
                continue
            if key in answers:
                answer.set_result(answers[key])
            else:
                answer.set_exception(EngineUnavailable(f"no answer for {key}"))
