"""Accounting of a request for its client's quotas, and throttling of the client.

Time that a handler waits is not counted. Each of its steps on the loop is timed (KIP-124's request
time). The answer is sent at once and contains the throttle time, for which the connection is then
muted (KIP-219).
"""

import math
import time
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from types import coroutine
from typing import Any, TypeVar

from tidemark_broker.api.client import Client
from tidemark_broker.quotas.client_quotas import RequestQuotas
from tidemark_broker.quotas.table import QuotaKind

T = TypeVar("T")


class Throttle:
    """Accounting of one request. ``now`` returns seconds."""

    __slots__ = ("_began_s", "_client", "_counted_s", "_now", "_spent_s", "quotas")

    def __init__(
        self,
        client: Client,
        quotas: RequestQuotas,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.quotas = quotas
        self._client = client
        self._now = now
        #: Seconds that the request has used, and the part of them that the quota has counted.
        self._spent_s = self._counted_s = 0.0
        #: Start of the step in progress, None while the request waits.
        self._began_s: float | None = None

    async def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Serve the request and count its time, even if it fails."""
        try:
            return await self._timed(work)
        finally:
            self._count()
            if self.quotas.throttle_s > 0:
                self._client.rest(self.quotas.throttle_s)

    def add(self, spent_s: float) -> None:
        """Add time that a thread has spent on the request."""
        self._spent_s += spent_s

    def set_throttle_time(self, answer: Any) -> None:
        """Set the throttle time of the answer, if it has that field."""
        self._count()
        if self.quotas.throttle_s > 0 and hasattr(answer, "throttle_time"):
            answer.throttle_time = timedelta(milliseconds=math.ceil(self.quotas.throttle_s * 1000))

    def _count(self) -> None:
        # The time so far includes the step in progress, since the answer is built within one.
        spent_s = self._spent_s
        if self._began_s is not None:
            spent_s += self._now() - self._began_s
        self.quotas.use(QuotaKind.REQUEST, 100 * (spent_s - self._counted_s))
        self._counted_s = spent_s

    # A generator drives the coroutine step by step, which is the only place to time each step.
    @coroutine
    def _timed(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run a coroutine and add the time of each of its steps on the event loop to ``_spent_s``.

        A step is the code between two suspensions. The time of the suspensions does not count.
        """
        error: BaseException | None = None
        while True:
            self._began_s = self._now()
            try:
                # Run one step. It ends with the future that the coroutine awaits, or with the
                # result.
                awaited = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._spent_s += self._now() - self._began_s
                self._began_s = None
            error = None
            try:
                # Pass the future on to the event loop, which resumes here once it is done.
                yield awaited
            except BaseException as raised:  # noqa: BLE001 - the work's to handle, a cancellation too
                error = raised
