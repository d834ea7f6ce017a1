"""How many bytes of requests that have begun to arrive, and not ended, the broker holds.

They count from their first byte: many connections that each send all but the end of a large request
would else fill the memory with what nobody ever answers. Above the limit only small requests are
read on, and two large ones at a time: one that misses little, and one that misses much. So nobody
with a request of ordinary size waits for those who send as much as they may. Addresses have their
turns one after another, and of an address by turns the request that misses least and the one that
waits for longest. While others wait a turn has a limited time, so that whoever does not go on keeps
nobody waiting for long. Nothing is refused: who waits is not read from, and TCP holds the sender
back.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

#: Requests of up to so many bytes are always read to their end.
SMALL_BYTES = 64 * 1024
#: Read at a time of a connection while the limit is reached.
CAUTIOUS_BYTES = 16 * 1024
#: Up to so many missing bytes are little: producers send a megabyte at most unless told otherwise.
LITTLE_BYTES = 2 * 1024 * 1024
#: Time for a large request whose turn it is, and per byte that was still missing.
TURN_S = 1.0
TURN_BYTES_PER_S = 16 * 1024 * 1024
#: So often it is given ``TURN_S`` more, if so much has come since: links may be slow, or this loop.
RENEWALS_MAX = 4
RENEWAL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """One connection, as it waits: ``resume`` reads on, ``give_up`` ends it."""

    address: str
    resume: Callable[[], None]
    give_up: Callable[[], None]


class UnfinishedFrames:
    """Of all connections of a broker. The loop thread owns it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._little = _Line()
        self._much = _Line()
        self.used_bytes = 0

    @property
    def exhausted(self) -> bool:
        """Is what they may take taken?"""
        return self.used_bytes >= self._limit

    def held(self, change_bytes: int) -> None:
        """So many bytes more (or fewer) are held of frames that have not ended."""
        self.used_bytes += change_bytes
        if change_bytes < 0 and not self.exhausted:
            for reader in (*self._little.dissolved(), *self._much.dissolved()):
                reader.resume()

    def may_read(self, reader: Reader, frame_bytes: int, missing_bytes: int) -> bool:
        """May a connection be read on that is in a frame of that length? If not, it is resumed once
        it may."""
        if frame_bytes <= SMALL_BYTES or not self.exhausted:
            return True
        for line in (self._little, self._much):
            if line.goes_on(reader, missing_bytes):
                return True
        line = self._little if missing_bytes <= LITTLE_BYTES else self._much
        return line.may_read(reader, missing_bytes)

    def has_turn(self, reader: Reader) -> bool:
        """Is it read though the limit is reached?"""
        return reader is self._little.turn or reader is self._much.turn

    @property
    def is_waited_for(self) -> bool:
        """Would somebody be read who is not?"""
        return self._little.is_waited_for or self._much.is_waited_for

    def left(self, reader: Reader) -> None:
        """Its frame has ended, or its connection, or something else keeps it from being read."""
        self._little.left(reader)
        self._much.left(reader)


class _Line:
    """Those who wait for one turn."""

    def __init__(self) -> None:
        self.turn: Reader | None = None
        self._waiting: dict[Reader, int] = {}
        #: When an address had its last turn, or came to wait for its first; in halves of turns.
        self._last: dict[str, int] = {}
        self._turns = 0
        self._renewals = 0
        self._missing_bytes = self._looked_at_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def goes_on(self, reader: Reader, missing_bytes: int) -> bool:
        """Has it the turn? Then so much is left of it."""
        if reader is not self.turn:
            return False
        self._missing_bytes = missing_bytes
        return True

    def may_read(self, reader: Reader, missing_bytes: int) -> bool:
        if self.turn is None:
            self._begin(reader, missing_bytes)
            return True
        self._waiting.setdefault(reader, missing_bytes)
        # Before whoever has the turn, and behind all who wait already.
        self._last.setdefault(reader.address, 2 * self._turns - 1)
        return False

    def left(self, reader: Reader) -> None:
        self._waiting.pop(reader, None)
        if reader is self.turn:
            self._end()
            self._next()

    def dissolved(self) -> list[Reader]:
        """Nobody has to wait any longer; those who did."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._last.clear()
        self._end()
        return waiting

    def _next(self) -> None:
        if not self._waiting:
            self._last.clear()
            return
        waiting, last = self._waiting, self._last
        address = min((each.address for each in waiting), key=lambda each: last[each])
        own = [each for each in waiting if each.address == address]
        following = own[0] if self._turns % 2 else min(own, key=lambda each: waiting[each])
        self._begin(following, waiting.pop(following))
        # Later: it may have to leave the line at once, and so may all the others after it.
        asyncio.get_running_loop().call_soon(following.resume)

    def _begin(self, reader: Reader, missing_bytes: int) -> None:
        self.turn = reader
        self._turns += 1
        self._last[reader.address] = 2 * self._turns
        self._renewals = 0
        self._missing_bytes = self._looked_at_bytes = missing_bytes
        self._allow(TURN_S + missing_bytes / TURN_BYTES_PER_S)

    def _allow(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        came, self._looked_at_bytes = (
            self._looked_at_bytes - self._missing_bytes,
            self._missing_bytes,
        )
        if self.turn is None or not self._waiting:
            self._allow(TURN_S)
        elif came >= RENEWAL_BYTES and self._renewals < RENEWALS_MAX:
            self._renewals += 1
            self._allow(TURN_S)
        else:
            self.turn.give_up()

    def _end(self) -> None:
        self.turn = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
