"""Mute of a connection whose client exceeds its quotas (KIP-219).

During the mute nothing is read from the connection and no request starts; running requests
continue. A client with an exceeded quota is also muted on a new connection, before its first
Produce starts. Otherwise each new connection would get one Produce for free.
"""

import asyncio
from collections.abc import Callable

from tidemark.wire.receiver import Frame

#: Shorter mutes are skipped.
_MUTE_MIN_S = 0.001
#: Longest mute before a first request. Clients time out after 30 s by default, and would restart
#: the wait on a new connection.
FIRST_MAX_S = 10.0
#: Interval in which a first mute is computed again, since other clients may have stopped.
_RECOMPUTE_S = 1.0


class ChannelMute:
    """Mute of one connection because of exceeded quotas. ``over`` is called when a mute ends."""

    __slots__ = ("_first_until_s", "_loop", "_over", "_timer", "_until_s", "before_first")

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
        self._over = over
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0
        #: Returns the seconds to wait before a request, of which at least the header is given, or
        #: None if the request needs no mute. The first value bounds the total.
        self.before_first: Callable[[Frame], float | None] | None = None
        self._first_until_s: float | None = None

    @property
    def is_on(self) -> bool:
        """True while muted. Not derived from the clock, because a uvloop timer may fire early."""
        return self._timer is not None

    @property
    def is_first(self) -> bool:
        """True if no request of the connection has started yet."""
        return self._first_until_s is not None and self.before_first is not None

    def begin(self, for_s: float) -> None:
        """Mute for at least that long from now."""
        until_s = self._loop.time() + for_s
        if self._timer is not None:
            # A mute is never shortened by another request.
            if until_s <= self._until_s:
                return
            self._timer.cancel()
        self._until_s = until_s
        self._timer = self._loop.call_at(until_s, self._end)

    def must_wait(self, request: Frame) -> bool:
        """Return whether this request must wait for a mute before it may start, and start the mute.

        Used before the first Produce of a connection, since other connections of the client may
        have exceeded the quota. Must be called again after the mute: the wait is computed again, at
        most :data:`FIRST_MAX_S` seconds in total.
        """
        for_s = None if self.before_first is None else self.before_first(request)
        if for_s is None:
            return False
        now_s = self._loop.time()
        if self._first_until_s is None:
            self._first_until_s = now_s + min(for_s, FIRST_MAX_S)
        # Muted for at most one second at a time, because other connections of the client may have
        # closed.
        left_s = min(for_s, self._first_until_s - now_s, _RECOMPUTE_S)
        # The wait is over. From here on only the mutes that responses start apply.
        if left_s < _MUTE_MIN_S:
            self.before_first = None
            return False
        self.begin(left_s)
        return True

    def cancel(self) -> None:
        """Cancel the mute when the connection closes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._over()
