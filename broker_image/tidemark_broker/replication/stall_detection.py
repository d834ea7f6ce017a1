"""Stall detection: a leader that was paused for long enough may be superseded.

The controller has given up on it meanwhile, and its last known roles may be outdated. An append
with acks=1 would be truncated later, and a consumer could read another leader's past. So the broker
serves nothing as leader until the controller has confirmed its roles. That takes a full snapshot of
a session that started after the pause, and a heartbeat of that session with the answer "not
fenced".

The controller keeps a broker for the *lease*: the time of a silence that it tolerates. The lease
counts from the last heartbeat that it has answered. One that was sent and not answered may not have
arrived. An unreachable controller stops no broker: all continue with the last persisted ISR. So the
end of the lease is a stall only in a pause of this process, or if its loop was blocked for a whole
session. Without a session only the latter counts.
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
    #: Whether a pause before one of them has outlasted the lease.
    has_stalled: bool


class Stall:
    """Rules with the time as an argument, in monotonic seconds.

    Owned by the loop's thread, except :meth:`beat` and :meth:`answered`.
    """

    __slots__ = (
        "_answered_s", "_beats", "_lease_s", "_loop_max_s", "_pause_s", "_turned_s", "_woke_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self._loop_max_s = self._lease_s = inf
        #: Shortest time that counts as a pause of this process.
        self._pause_s = inf
        #: Time at which the last answered heartbeat was sent.
        self._answered_s = -inf
        self._turned_s = inf
        #: Replaced as a whole by the thread of the heartbeats.
        self._beats = _Beats(inf, inf, has_stalled=False)
        self._woke_s: float | None = None

    def limit(self, *, registered_s: float, lease_s: float, loop_max_s: float) -> None:
        """Set the longest times in seconds in which the controller elects no other leader.

        ``lease_s``: since the last answered heartbeat, or since the registration at
        ``registered_s``. ``loop_max_s``: of a blocked loop, while heartbeats are answered. Until
        they are known nothing counts as a stall. The turn before counts.
        """
        self._lease_s, self._loop_max_s = lease_s, loop_max_s
        # Heartbeats are sent four times in a lease.
        self._pause_s = lease_s / 2
        self.answered(registered_s)

    def session_ended(self, now_s: float) -> None:
        """Allow a pause as long as that of a blocked loop until the next session.

        Without heartbeats the two cannot be distinguished, and a missing controller stops no
        leader.
        """
        # A stall until now is one by the limits of the session.
        self.turned(now_s)
        self._pause_s = self._loop_max_s

    def beat(self, now_s: float) -> None:
        """Record an attempt to send a heartbeat. Called from any one thread.

        It shows that this process runs, even if no controller answers.
        """
        turned_s, beats = self._turned_s, self._beats
        # The first one after a turn. A turn that happens meanwhile discards this record.
        if beats.turned_s != turned_s:
            beats = _Beats(turned_s, turned_s, has_stalled=False)
        # This thread may have been paused since ``now_s``, and the loop has turned first.
        has_stalled = beats.has_stalled or self._outlasts_lease(beats.last_s, now_s)
        self._beats = _Beats(turned_s, max(beats.last_s, now_s), has_stalled)

    def answered(self, sent_s: float) -> None:
        """Extend the lease, since the heartbeat sent at ``sent_s`` has arrived.

        Called from the thread of :meth:`beat`.
        """
        self._answered_s = max(self._answered_s, sent_s)

    def turned(self, now_s: float) -> None:
        """Record a turn of the loop. After a stall the broker is silent."""
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
        gap_s, turned_s = now_s - self._turned_s, self._turned_s
        # Nearly always: this is called for each request.
        if gap_s <= self._pause_s:
            return False
        # A blocked loop does not stop heartbeats, which divide the time into shorter parts.
        beats = self._beats
        if beats.turned_s != turned_s:
            beats = _Beats(turned_s, turned_s, has_stalled=False)
        return (
            gap_s > self._loop_max_s
            or beats.has_stalled
            or self._outlasts_lease(beats.last_s, now_s)
        )

    def _outlasts_lease(self, since_s: float, now_s: float) -> bool:
        """Return whether this process was paused since then, and the lease is over now."""
        return now_s - since_s > self._pause_s and now_s - self._answered_s > self._lease_s

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
