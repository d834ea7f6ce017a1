"""Verdict of ``/healthz``: whether reconciliation advances, not whether the process exists.

It fails in four cases: nothing was reconciled for too long although something waits, one key is
stuck, the Lease is held and no term starts for a reason that no condition shows, or a watch is
silent. The operator's own writes have to come back over the watch, first its epoch in the Cluster's
status, and so have changes that a full listing finds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.message_text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Inputs of the verdict, in seconds.

    ``since_pass_s``: since the last key was reconciled. ``without_term_s``: how long the Lease has
    been held without a term, None with one. ``excuse``: why that is no fault of the process (a
    Cluster's conditions show it, or there is no Cluster). ``silent``: the kind whose watch has been
    overdue longest, and for how long.
    """

    leads: bool
    since_pass_s: float
    head_age_s: float
    depth: int
    without_term_s: float | None = None
    excuse: str = ""
    silent: tuple[str, float] | None = None


def verdict(pulse: Pulse, stand_still_s: float) -> tuple[bool, str]:
    """Return whether the process is healthy, and the reason in one line, for /healthz.

    ``stand_still_s``: time without progress after which a leader counts as unhealthy.
    """
    # A follower has nothing to reconcile.
    if not pulse.leads:
        return True, "ok: another operator leads"
    if pulse.without_term_s is not None:
        return _without_term(pulse.without_term_s, pulse.excuse, stand_still_s)
    # A leader must make progress with its queue, and its watches must deliver its own writes.
    if pulse.head_age_s > stand_still_s:
        return False, f"a key has been queued or in process for {pulse.head_age_s:.0f} s"
    if pulse.depth and pulse.since_pass_s > stand_still_s:
        return (
            False,
            (
                f"{count(pulse.depth, 'key', 'is')} queued and none was reconciled for "
                f"{pulse.since_pass_s:.0f} s"
            ),
        )
    if pulse.silent is not None and pulse.silent[1] > stand_still_s:
        kind, since_s = pulse.silent
        return (
            False,
            (
                f"the watch of {kind} objects has been silent for {since_s:.0f} s "
                "although an event is due"
            ),
        )
    return True, f"ok: leading, {count(pulse.depth, 'key')} queued"


def _without_term(since_s: float, excuse: str, stand_still_s: float) -> tuple[bool, str]:
    if excuse:
        return True, f"ok: holding the Lease without a term: {excuse}"
    if since_s > stand_still_s:
        return False, f"the Lease has been held for {since_s:.0f} s, but no term has started"
    return True, "ok: taking over"


class Echoes:
    """Echoes of writes in watches, by kind.

    Writes that change nothing must not be noted, because the API server emits no event for them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._delivered_s: dict[str, float] = {}
        self._awaited_s: dict[str, float] = {}

    def begins(self) -> float:
        """Return the time before a write: its echo may arrive before its answer."""
        return self._clock()

    def wrote(self, kind: str, began_s: float) -> None:
        """Note a write that changed an object and started at that time."""
        # A change that arrived after the start may be the echo already.
        if self._delivered_s.get(kind, -1.0) < began_s:
            self._awaited_s.setdefault(kind, began_s)

    def delivered(self, kind: str) -> None:
        """Note that the watch of a kind has delivered something."""
        self._delivered_s[kind] = self._clock()
        self._awaited_s.pop(kind, None)

    def silent(self) -> tuple[str, float] | None:
        """Return the kind that has been awaited longest, and for how long.

        None if there is none.
        """
        if not self._awaited_s:
            return None
        kind = min(self._awaited_s, key=self._awaited_s.__getitem__)
        return kind, self._clock() - self._awaited_s[kind]
