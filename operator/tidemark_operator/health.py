"""What ``/healthz`` says: whether reconciling moves, not whether the process exists.

It fails when nothing was reconciled for too long although something waits, when one key is stuck,
when the Lease is held and no term begins for a reason that no condition tells, and when a watch is
silent: what the operator writes has to come back over it, its epoch in the Cluster's status first
of all, and so has what is found when everything is listed again.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What ``/healthz`` judges, in seconds. ``since_pass_s``: since the last key was reconciled.
    ``without_term_s``: how long the Lease has been held without a term, None with one; ``excuse``:
    why that is no fault of the process (a Cluster's conditions tell it, or there is no Cluster).
    ``silent``: the kind whose watch has brought nothing for longest although an object of it has
    changed, and for how long."""

    leads: bool
    since_pass_s: float
    head_age_s: float
    depth: int
    without_term_s: float | None = None
    excuse: str = ""
    silent: tuple[str, float] | None = None


def verdict(pulse: Pulse, stand_still_s: float) -> tuple[bool, str]:
    """Whether the process is well, and one line that says why."""
    if not pulse.leads:
        return True, "ok: another operator leads"
    if pulse.without_term_s is not None:
        return _without_term(pulse.without_term_s, pulse.excuse, stand_still_s)
    if pulse.head_age_s > stand_still_s:
        return False, f"a key has been queued or in process for {pulse.head_age_s:.0f} s"
    if pulse.depth and pulse.since_pass_s > stand_still_s:
        return (
            False,
            f"{pulse.depth} keys are queued and none was reconciled for {pulse.since_pass_s:.0f} s",
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
    return True, f"ok: leading, {pulse.depth} keys queued"


def _without_term(since_s: float, excuse: str, stand_still_s: float) -> tuple[bool, str]:
    if excuse:
        return True, f"ok: holding the Lease without a term: {excuse}"
    if since_s > stand_still_s:
        return False, f"the Lease has been held for {since_s:.0f} s, but no term has started"
    return True, "ok: taking over"


class Echoes:
    """Whether watches bring back what was written, by kind. Writes that change nothing are not to
    be told here: the API server makes no event of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_s: dict[str, float] = {}
        self._awaited_s: dict[str, float] = {}

    def begins(self) -> float:
        """The moment before a write: its echo may come sooner than its answer."""
        return self._clock()

    def wrote(self, kind: str, began_s: float) -> None:
        """An object was changed by a write that began then."""
        if self._heard_s.get(kind, -1.0) < began_s:
            self._awaited_s.setdefault(kind, began_s)

    def heard(self, kind: str) -> None:
        """The watch of a kind has brought something."""
        self._heard_s[kind] = self._clock()
        self._awaited_s.pop(kind, None)

    def silent(self) -> tuple[str, float] | None:
        """The kind that has been awaited for longest, and for how long; None: none is."""
        if not self._awaited_s:
            return None
        kind = min(self._awaited_s, key=self._awaited_s.__getitem__)
        return kind, self._clock() - self._awaited_s[kind]
