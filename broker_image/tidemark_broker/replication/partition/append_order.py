"""Order of batches whose records are read before the append.

A producer's batches are appended in the order of their arrival. If one must be read first, in a
thread, later batches of the same client wait for it. Batches of other clients do not wait, since
otherwise one client could delay all writers of the partition. A place in the order is taken at
once, without an await, so the order of places is the order of the calls.
"""

import asyncio


class Turn:
    """One place in the queue of a peer; the caller must call :meth:`end`."""

    __slots__ = ("_before", "_over", "_peer", "_turns")

    def __init__(
        self, turns: "AppendOrder", peer: str, before: asyncio.Future[None] | None
    ) -> None:
        self._turns = turns
        self._peer = peer
        self._before = before
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def over(self) -> asyncio.Future[None]:
        """Future that is done when the next turn may proceed."""
        return self._over

    async def wait(self) -> None:
        """Wait for the turns before this one."""
        if self._before is not None:
            await asyncio.wait([self._before])

    def end(self) -> None:
        """Let the next turn proceed. Repeated calls are harmless."""
        if not self._over.done():
            self._over.set_result(None)
            self._turns.ended(self._peer, self)


class AppendOrder:
    """Queues of one partition by peer; a queue exists only while it is not empty."""

    def __init__(self) -> None:
        self._last: dict[str, Turn] = {}

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, peer: str) -> bool:
        return peer in self._last

    def take(self, peer: str) -> Turn:
        """Take the place after all others of this peer."""
        last = self._last.get(peer)
        turn = self._last[peer] = Turn(self, peer, None if last is None else last.over)
        return turn

    def ended(self, peer: str, turn: Turn) -> None:
        """Remove a queue whose last turn ended."""
        if self._last.get(peer) is turn:
            del self._last[peer]
