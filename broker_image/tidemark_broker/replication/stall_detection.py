"""Stall detection: a leader that was paused for longer than its session may be superseded.

The controller has given up on it meanwhile, and its last known roles may be outdated. An append
with acks=1 would be truncated later, and a consumer could read another leader's past. So the broker
serves nothing as leader until the controller has confirmed its roles. That takes a full snapshot of
a session that started after the pause, and a heartbeat of that session with the answer "not
fenced". Only the broker's own pause counts (time in which the loop did not run). An unreachable
controller stops no broker: all continue with the last persisted ISR.
"""

from math import inf


class Stall:
    """Rules with the time as an argument, in monotonic seconds. Owned by the loop thread."""

    __slots__ = ("_session_s", "_turned_s", "_woke_s")

    def __init__(self) -> None:
        self._session_s = inf
        self._turned_s = inf
        self._woke_s: float | None = None

    @property
    def _silent_from_s(self) -> float:
        """Time of the last turn plus a session.

        That turn counts even if the session's length became known after it.
        """
        return self._turned_s + self._session_s

    def session_of(self, session_s: float) -> None:
        """Set the session timeout of the controller.

        Until it is known nothing counts as a stall.
        """
        self._session_s = session_s

    def turned(self, now_s: float) -> None:
        """Record a turn of the loop. After a gap longer than a session the stall begins."""
        # The gap exceeds the session: the controller may have elected another leader.
        if now_s > self._silent_from_s:
            self._woke_s = now_s
        self._turned_s = now_s

    def must_be_silent(self, now_s: float) -> bool:
        """Return whether the broker must not serve as leader, even in the turn in which it
        wakes up.
        """
        return self._woke_s is not None or now_s > self._silent_from_s

    def confirmed(self, session_began_s: float) -> bool:
        """Record a confirmation of this broker's roles by a session that started at
        ``session_began_s``.

        Return False if that session is older than the stall, so that it confirms nothing.
        """
        if self._woke_s is None:
            return True
        if session_began_s < self._woke_s:
            return False
        self._woke_s = None
        return True
