"""How many bytes of requests that have begun to arrive, and not ended, the broker holds.

They count from their first byte: many connections that each send all but the end of a large request
would else fill the memory with what nobody ever answers. Above the limit only small requests are
read on, and one large one at a time, in the order in which they came to wait; that one has a
limited time, so that whoever does not go on keeps nobody waiting for long. Nothing is refused: who
waits is not read from, and TCP holds the sender back.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

#: Requests of up to so many bytes are always read to their end.
SMALL_BYTES = 64 * 1024
#: Read at a time of a connection while the limit is reached.
CAUTIOUS_BYTES = 16 * 1024
#: Time for a large request whose turn it is, and per byte that was still missing.
TURN_S = 5.0
TURN_BYTES_PER_S = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """One connection, as it waits: ``resume`` reads on, ``give_up`` ends it."""

    resume: Callable[[], None]
    give_up: Callable[[], None]


class UnfinishedFrames:
    """Of all connections of a broker. The loop thread owns it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: dict[Reader, int] = {}
        self._turn: Reader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.used_bytes = 0

    @property
    def exhausted(self) -> bool:
        """Is what they may take taken?"""
        return self.used_bytes >= self._limit

    def held(self, change_bytes: int) -> None:
        """So many bytes more (or fewer) are held of frames that have not ended."""
        self.used_bytes += change_bytes
        if change_bytes < 0 and not self.exhausted:
            waiting, self._waiting = self._waiting, {}
            self._end_turn()
            for reader in waiting:
                reader.resume()

    def may_read(self, reader: Reader, frame_bytes: int, missing_bytes: int) -> bool:
        """May a connection be read on that is in a frame of that length? If not, it is resumed once
        it may."""
        if frame_bytes <= SMALL_BYTES or not self.exhausted or reader is self._turn:
            return True
        if self._turn is None:
            self._begin_turn(reader, missing_bytes)
            return True
        self._waiting.setdefault(reader, missing_bytes)
        return False

    def left(self, reader: Reader) -> None:
        """Its frame has ended, or its connection."""
        self._waiting.pop(reader, None)
        if reader is self._turn:
            self._end_turn()
            if self._waiting:
                following = next(iter(self._waiting))
                self._begin_turn(following, self._waiting.pop(following))
                following.resume()

    def _begin_turn(self, reader: Reader, missing_bytes: int) -> None:
        self._turn = reader
        self._timer = asyncio.get_running_loop().call_later(
            TURN_S + missing_bytes / TURN_BYTES_PER_S, reader.give_up
        )

    def _end_turn(self) -> None:
        self._turn = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
