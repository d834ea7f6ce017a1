"""A leader that stood still for longer than its session cannot know whether it still leads.

The controller has given it up meanwhile, and what it was last told of its roles may be from before:
an append with acks=1 that it takes would be cut off, what it gives to consumers may be another
leader's past. So it answers nothing as leader until the controller has told it anew who leads: a
whole snapshot of a session that began after it woke up, and a heartbeat of that session that is
answered "not fenced". Only its own standing still counts (time that passed while the loop did not
turn). A controller that is away stops nobody: brokers go on with the last persisted ISR.
"""

from math import inf


class Stall:
    """Rules with the clock as an argument: monotonic seconds. The loop thread owns it."""

    __slots__ = ("_session_s", "_turned_s", "_woke_s")

    def __init__(self) -> None:
        self._session_s = inf
        self._turned_s = inf
        self._woke_s: float | None = None

    @property
    def _silent_from_s(self) -> float:
        """A session behind the last turn of the loop; that turn counts even if the session's length
        became known only after it."""
        return self._turned_s + self._session_s

    def session_of(self, session_s: float) -> None:
        """How long the controller waits for a sign of life. Before it is known nothing is a
        stall."""
        self._session_s = session_s

    def turned(self, now_s: float) -> None:
        """The loop has turned; if it had not for longer than a session, it has just woken up."""
        if now_s > self._silent_from_s:
            self._woke_s = now_s
        self._turned_s = now_s

    def must_be_silent(self, now_s: float) -> bool:
        """Must it answer nothing as leader? Also in the very turn in which it wakes up."""
        return self._woke_s is not None or now_s > self._silent_from_s

    def heard(self, session_began_s: float) -> bool:
        """The controller said, in a session that began then, that this broker's states are in force
        and that it is not fenced. False: that session is older than the stall, so it says
        nothing."""
        if self._woke_s is None:
            return True
        if session_began_s < self._woke_s:
            return False
        self._woke_s = None
        return True
