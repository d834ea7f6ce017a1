"""Delivery of answers to waiting members, a few in each turn of the loop.

A generation starts for all members at once, which may be thousands. Each answer wakes a connection
that writes it. Delivered in one turn of the loop they would block all other clients.
"""

import asyncio
import collections
from collections.abc import Callable
from typing import Any, TypeVar

A = TypeVar("A")

#: Answers in one turn of the loop.
AT_ONCE = 100


class Answers:
    """Answers of one broker's groups. Used from its loop only."""

    def __init__(self) -> None:
        self._due: collections.deque[tuple[asyncio.Future[Any], Any]] = collections.deque()

    def into(self, answer: "asyncio.Future[A]") -> Callable[[A], None]:
        """Return a callback that delivers the answer soon.

        The client may have disconnected by then.
        """

        def deliver(value: A) -> None:
            # The first answer schedules the delivery of all that follow in this turn.
            if not self._due:
                asyncio.get_running_loop().call_soon(self._some)
            self._due.append((answer, value))

        return deliver

    def _some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._due))):
            answer, value = self._due.popleft()
            # The request may have timed out or been cancelled.
            if not answer.done():
                answer.set_result(value)
        if self._due:
            asyncio.get_running_loop().call_soon(self._some)
