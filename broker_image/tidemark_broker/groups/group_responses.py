"""Answers to members that wait for their group, a few at a time.

A generation begins for all of its members at once, which may be thousands. Each answer wakes a
connection, which writes it: all in one turn of the loop, nobody else would be served meanwhile.
"""

import asyncio
import collections
from collections.abc import Callable
from typing import Any, TypeVar

A = TypeVar("A")

#: In one turn of the loop.
AT_ONCE = 100


class Answers:
    """Of one broker's groups. Belongs to its loop."""

    def __init__(self) -> None:
        self._due: collections.deque[tuple[asyncio.Future[Any], Any]] = collections.deque()

    def into(self, answer: "asyncio.Future[A]") -> Callable[[A], None]:
        """What to call with the answer: it comes soon. Whoever asked may have gone."""

        def tell(value: A) -> None:
            if not self._due:
                asyncio.get_running_loop().call_soon(self._some)
            self._due.append((answer, value))

        return tell

    def _some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._due))):
            answer, value = self._due.popleft()
            if not answer.done():
                answer.set_result(value)
        if self._due:
            asyncio.get_running_loop().call_soon(self._some)
