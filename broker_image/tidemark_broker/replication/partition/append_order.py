"""Batches that are looked into before they are appended keep their place, and nobody else's.

A producer's batches are appended in the order in which they came. Where one has to be looked into
first, in a thread, those that come behind it from the same client wait for it; those of others do
not, or whoever sends such batches would hold up all who write to the partition. A place is taken
at once, without waiting for anything, so that the order of places is the order of the calls.
"""

import asyncio


class Turn:
    """One place in the line of a peer; :meth:`end` must follow."""

    __slots__ = ("_before", "_over", "_peer", "_turns")

    def __init__(self, turns: "Turns", peer: str, before: asyncio.Future[None] | None) -> None:
        self._turns = turns
        self._peer = peer
        self._before = before
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def over(self) -> asyncio.Future[None]:
        """Done when the next one may go."""
        return self._over

    async def come(self) -> None:
        """Wait for those in front."""
        if self._before is not None:
            await asyncio.wait([self._before])

    def end(self) -> None:
        """Let the next one go. Once is enough, more does no harm."""
        if not self._over.done():
            self._over.set_result(None)
            self._turns.ended(self._peer, self)


class Turns:
    """The lines of one partition, by peer; there is one only while it has somebody in it."""

    def __init__(self) -> None:
        self._last: dict[str, Turn] = {}

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, peer: str) -> bool:
        return peer in self._last

    def take(self, peer: str) -> Turn:
        """The place behind all that this peer has in line."""
        last = self._last.get(peer)
        turn = self._last[peer] = Turn(self, peer, None if last is None else last.over)
        return turn

    def ended(self, peer: str, turn: Turn) -> None:
        """Called by the turn."""
        if self._last.get(peer) is turn:
            del self._last[peer]
