"""Stall detection: a leader that was paused for long enough may be superseded.

The controller has given up on it meanwhile, and its last known roles may be outdated. An append
with acks=1 would be truncated later, and a consumer could read another leader's past. So the broker
serves nothing as leader until the controller has confirmed its roles. That takes a full snapshot of
a session that started after the pause, and a heartbeat of that session with the answer "not
fenced". Only the broker's own pause counts: the whole process was paused, or its loop was blocked
for a whole session. Without a session only the latter counts. An unreachable controller stops no
broker: all continue with the last persisted ISR.
"""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class _Beats:
    """Heartbeats since a turn of the loop. The size does not grow with their number."""

    #: Time of the turn that they follow.
    turned_s: float
    #: Time of the last one.
    last_s: float
    #: Longest time between two of them, or between the turn and the first one.
    longest_s: float


class Stall:
    """Rules with the time as an argument, in monotonic seconds.

    Owned by the loop's thread, except :meth:`beat`.
    """

    __slots__ = ("_beats", "_loop_max_s", "_pause_max_s", "_turned_s", "_woke_s")

    def __init__(self) -> None:
        self._loop_max_s = self._pause_max_s = inf
        self._turned_s = inf
        #: Replaced as a whole by the thread of the heartbeats.
        self._beats = _Beats(inf, inf, 0.0)
        self._woke_s: float | None = None

    def limit(self, *, pause_max_s: float, loop_max_s: float) -> None:
        """Set the longest times in seconds in which the controller elects no other leader.

        ``pause_max_s``: of a pause of the whole process. ``loop_max_s``: of a blocked loop, while
        heartbeats are sent. Until they are known nothing counts as a stall. The turn before
        counts.
        """
        self._pause_max_s, self._loop_max_s = pause_max_s, loop_max_s

    def session_ended(self, now_s: float) -> None:
        """Allow a pause as long as that of a blocked loop until the next session.

        Without heartbeats the two cannot be distinguished, and a missing controller stops no
        leader.
        """
        # A stall until now is one by the limits of the session.
        self.turned(now_s)
        self._pause_max_s = self._loop_max_s

    def beat(self, now_s: float) -> None:
        """Record an attempt to send a heartbeat. Called from any one thread."""
        turned_s, beats = self._turned_s, self._beats
        # The first one after a turn. A turn that happens meanwhile discards this record.
        if beats.turned_s != turned_s:
            beats = _Beats(turned_s, turned_s, 0.0)
        # This thread may have been paused since ``now_s``, and the loop has turned first.
        longest_s = max(beats.longest_s, now_s - beats.last_s)
        self._beats = _Beats(turned_s, max(beats.last_s, now_s), longest_s)

    def turned(self, now_s: float) -> None:
        """Record a turn of the loop. After a gap longer than a limit the stall begins."""
        # The controller may have elected another leader meanwhile.
        if self._has_stalled(now_s):
            self._woke_s = now_s
        self._turned_s = now_s

    def must_be_silent(self, now_s: float) -> bool:
        """Return whether the broker must not serve as leader, even in the turn in which it
        wakes up.
        """
        return self._woke_s is not None or self._has_stalled(now_s)

    def _has_stalled(self, now_s: float) -> bool:
        """Return whether the time since the last turn contains a stall."""
        gap_s = now_s - self._turned_s
        # Nearly always: this is called for each request.
        if gap_s <= self._pause_max_s:
            return False
        # A blocked loop does not stop heartbeats, so the controller keeps the session.
        beats, pause_s = self._beats, gap_s
        if beats.turned_s == self._turned_s:
            pause_s = max(beats.longest_s, now_s - beats.last_s)
        return gap_s > self._loop_max_s or pause_s > self._pause_max_s

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
