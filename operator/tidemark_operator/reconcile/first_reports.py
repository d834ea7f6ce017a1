"""The first moment of a term: until every live broker has said what it was told, nobody is told
anything new.

Slices that a take-over finds may be older than what brokers were told, and the first broker that
comes may be the one that knows least. So until each broker that counts as live has registered once,
or is given up as its session ends, no new process is admitted (that changes rows), no snapshot is
sent, nothing is made or moved. Between two sound terms that takes as long as the slowest broker
needs to come back, and those that are there go on serving meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterable


class FirstReports:
    """Of one term; belongs to the main loop."""

    def __init__(self) -> None:
        self._awaited: set[int] = set()
        self._all = asyncio.Event()
        self._all.set()

    def expect(self, node_ids: Iterable[int]) -> None:
        """The term begins: these are live."""
        self._awaited.update(node_ids)
        self._settle()

    def presented(self, node_id: int) -> None:
        """A broker has said what it was told, or cannot."""
        self._awaited.discard(node_id)
        self._settle()

    def look_again(self, is_live: Callable[[int], bool]) -> None:
        """Brokers may have been fenced, or removed."""
        self._awaited = set(filter(is_live, self._awaited))
        self._settle()

    def give_up(self) -> None:
        """They have been waited for long enough."""
        self._awaited.clear()
        self._settle()

    def _settle(self) -> None:
        if self._awaited:
            self._all.clear()
        else:
            self._all.set()

    @property
    def are_in(self) -> bool:
        """Whether nobody is waited for."""
        return self._all.is_set()

    async def wait(self) -> None:
        """Until nobody is waited for."""
        await self._all.wait()
