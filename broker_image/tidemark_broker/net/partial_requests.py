"""Memory of incomplete requests over all connections.

Bytes count from the first one. Many connections that each send all but the end of a large request
would otherwise fill the memory. Above the limit only small requests are read, and two large ones at
a time: one with few missing bytes, and one with many. A request of ordinary size therefore never
waits for maximal ones. Addresses take turns. Within an address the request with the fewest missing
bytes and the longest waiting one alternate. While others wait, a turn has a time limit, so that a
stalled sender delays the others only briefly. No request is rejected: a waiting connection is not
read, and TCP slows its sender down.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

#: Requests of at most this size are always read to their end.
SMALL_BYTES = 64 * 1024
#: Bytes read at a time from a connection while the limit is reached.
CAUTIOUS_BYTES = 16 * 1024
#: Up to this number of missing bytes a request is in the short line. Producers send at most a
#: megabyte by default.
LITTLE_BYTES = 2 * 1024 * 1024
#: Time for a large request in its turn, plus time per missing byte.
TURN_S = 1.0
TURN_BYTES_PER_S = 16 * 1024 * 1024
#: Number of extensions by ``TURN_S``, each for the bytes below: links may be slow, or this loop.
RENEWALS_MAX = 4
RENEWAL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class FrameReader:
    """A waiting connection: ``resume`` reads on, ``give_up`` closes it."""

    address: str
    resume: Callable[[], None]
    give_up: Callable[[], None]


class UnfinishedFrames:
    """Incomplete requests of all connections of a broker. Used from the loop thread only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._short_line = _WaitingLine()
        self._long_line = _WaitingLine()
        self.used_bytes = 0

    @property
    def exhausted(self) -> bool:
        """True if the limit is reached."""
        return self.used_bytes >= self._limit

    def add(self, change_bytes: int) -> None:
        """Add or remove bytes of incomplete frames."""
        self.used_bytes += change_bytes
        # Below the limit turns are not needed, so all waiting connections resume.
        if change_bytes < 0 and not self.exhausted:
            for reader in (*self._short_line.dissolve(), *self._long_line.dissolve()):
                reader.resume()

    def may_read(self, reader: FrameReader, frame_bytes: int, missing_bytes: int) -> bool:
        """Return whether a connection may read on in a frame of that length.

        If not, it is resumed later.
        """
        if frame_bytes <= SMALL_BYTES or not self.exhausted:
            return True
        for line in (self._short_line, self._long_line):
            if line.continues(reader, missing_bytes):
                return True
        line = self._short_line if missing_bytes <= LITTLE_BYTES else self._long_line
        return line.may_read(reader, missing_bytes)

    def has_turn(self, reader: FrameReader) -> bool:
        """True if the connection is read although the limit is reached."""
        return reader is self._short_line.turn or reader is self._long_line.turn

    @property
    def has_waiters(self) -> bool:
        """True if a connection waits for a turn."""
        return self._short_line.has_waiters or self._long_line.has_waiters

    def remove(self, reader: FrameReader) -> None:
        """Remove a connection whose frame is complete, or that cannot be read for another
        reason.
        """
        self._short_line.remove(reader)
        self._long_line.remove(reader)


class _WaitingLine:
    """Queue of connections whose large request waits for memory; one of them is read at a time.

    ``turn`` is the connection that is being read, None if no large request is incomplete.
    """

    def __init__(self) -> None:
        self.turn: FrameReader | None = None
        self._waiting: dict[FrameReader, int] = {}
        #: Time of an address's last turn, or of its arrival in the line, in half turns.
        self._last: dict[str, int] = {}
        self._turns = 0
        self._renewals = 0
        self._missing_bytes = self._last_missing_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiting)

    def continues(self, reader: FrameReader, missing_bytes: int) -> bool:
        """Return whether the connection has the turn, and update its missing bytes."""
        if reader is not self.turn:
            return False
        self._missing_bytes = missing_bytes
        return True

    def may_read(self, reader: FrameReader, missing_bytes: int) -> bool:
        if self.turn is None:
            self._begin_turn(reader, missing_bytes)
            return True
        self._waiting.setdefault(reader, missing_bytes)
        # Odd values sort a new address behind earlier arrivals and before the turn's owner.
        self._last.setdefault(reader.address, 2 * self._turns - 1)
        return False

    def remove(self, reader: FrameReader) -> None:
        self._waiting.pop(reader, None)
        if reader is self.turn:
            self._end_turn()
            self._start_next_turn()

    def dissolve(self) -> list[FrameReader]:
        """End the turn and return the connections that waited."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._last.clear()
        self._end_turn()
        return waiting

    def _start_next_turn(self) -> None:
        if not self._waiting:
            self._last.clear()
            return
        waiting, last = self._waiting, self._last
        # The address whose last turn is longest ago is next, however many connections it has.
        address = min((key.address for key in waiting), key=lambda key: last[key])
        own = [reader for reader in waiting if reader.address == address]
        following = own[0] if self._turns % 2 else min(own, key=lambda reader: waiting[reader])
        self._begin_turn(following, waiting.pop(following))
        # In a later iteration of the event loop, since this connection may leave the queue at once,
        # and so may all that follow.
        asyncio.get_running_loop().call_soon(following.resume)

    def _begin_turn(self, reader: FrameReader, missing_bytes: int) -> None:
        self.turn = reader
        self._turns += 1
        self._last[reader.address] = 2 * self._turns
        self._renewals = 0
        self._missing_bytes = self._last_missing_bytes = missing_bytes
        self._start_timer(TURN_S + missing_bytes / TURN_BYTES_PER_S)

    def _start_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        """Extend the turn of a connection that makes progress; else close it for the others."""
        received_bytes, self._last_missing_bytes = (
            self._last_missing_bytes - self._missing_bytes,
            self._missing_bytes,
        )
        if self.turn is None or not self._waiting:
            self._start_timer(TURN_S)
        elif received_bytes >= RENEWAL_BYTES and self._renewals < RENEWALS_MAX:
            self._renewals += 1
            self._start_timer(TURN_S)
        else:
            self.turn.give_up()

    def _end_turn(self) -> None:
        self.turn = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
