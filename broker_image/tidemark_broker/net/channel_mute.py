"""When a connection rests: its client has used too much of its quotas (KIP-219).

So long nothing more is read from it, and nothing begun; what is under way goes on. A client whose
quota is used up rests on a new connection too, before its first Produce is begun: otherwise each
new connection would bring one for nothing.
"""

import asyncio
from collections.abc import Callable

from tidemark.wire.receiver import Frame

#: Shorter ones are none.
_LEAST_S = 0.001
#: Nobody rests for longer before a first request: clients give one up after 30 s unless told
#: otherwise, and a new one would begin to wait anew.
FIRST_MAX_S = 10.0
#: After so long it is asked again whether a first rest has to last: others may have stopped.
_ASK_AGAIN_S = 1.0


class Rest:
    """Of one connection; ``over`` is called at its end."""

    __slots__ = ("_first_until_s", "_loop", "_over", "_timer", "_until_s", "before_first")

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
        self._over = over
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0
        #: For how many seconds it has to rest before a request, of which at least the header is
        #: given; None: this is not the one. It never rests for longer than it is told at first.
        self.before_first: Callable[[Frame], float | None] | None = None
        self._first_until_s: float | None = None

    @property
    def is_on(self) -> bool:
        """Not asked of the clock: a timer of uvloop's may come before its time."""
        return self._timer is not None

    @property
    def is_first(self) -> bool:
        """Nothing of its was begun before."""
        return self._first_until_s is not None and self.before_first is not None

    def begin(self, for_s: float) -> None:
        """At least for so long from now."""
        until_s = self._loop.time() + for_s
        if self._timer is not None:
            if until_s <= self._until_s:
                return
            self._timer.cancel()
        self._until_s = until_s
        self._timer = self._loop.call_at(until_s, self._end)

    def comes_first(self, request: Frame) -> bool:
        """Does it rest before this request? Then it has begun to."""
        for_s = None if self.before_first is None else self.before_first(request)
        if for_s is None:
            return False
        now_s = self._loop.time()
        if self._first_until_s is None:
            self._first_until_s = now_s + min(for_s, FIRST_MAX_S)
        left_s = min(for_s, self._first_until_s - now_s, _ASK_AGAIN_S)
        if left_s < _LEAST_S:
            self.before_first = None
            return False
        self.begin(left_s)
        return True

    def cancel(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._over()
