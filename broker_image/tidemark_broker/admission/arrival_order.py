"""Order of arrival in which the work of one peer starts.

A producer's requests start, and its batches are appended, in the order of their arrival, although
each may wait for a thread or yield the event loop. Work of other peers does not wait, since
otherwise one client could delay all writers of a partition. A place is taken at once, without an
await, so the order of places is the order of the calls.
"""

import asyncio


class Place:
    """One place in the order of a peer; the caller must call :meth:`leave`."""

    __slots__ = ("_before", "_left", "_order", "_peer")

    def __init__(
        self, order: "ArrivalOrder", peer: str, before: asyncio.Future[None] | None
    ) -> None:
        self._order = order
        self._peer = peer
        self._before = before
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def left(self) -> asyncio.Future[None]:
        """Future that is done when the next place may proceed."""
        return self._left

    async def wait(self) -> None:
        """Wait until the previous place is left."""
        if self._before is not None:
            await asyncio.wait([self._before])

    def leave(self) -> None:
        """Let the next place proceed. Repeated calls are harmless."""
        if not self._left.done():
            self._left.set_result(None)
            self._order.left(self._peer, self)


class ArrivalOrder:
    """Orders by peer; an order exists only while a place in it is taken."""

    def __init__(self) -> None:
        self._last: dict[str, Place] = {}

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, peer: str) -> bool:
        return peer in self._last

    def take(self, peer: str = "") -> Place:
        """Take the place after all others of this peer."""
        last = self._last.get(peer)
        place = self._last[peer] = Place(self, peer, None if last is None else last.left)
        return place

    def left(self, peer: str, place: Place) -> None:
        """Remove an order whose last place is left."""
        if self._last.get(peer) is place:
            del self._last[peer]
