"""What ``/healthz`` says: whether reconciling moves, not whether the process exists.

It fails when nothing was reconciled for too long although something waits, or when one key is stuck.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What ``/healthz`` judges, in seconds. ``since_pass_s``: since the last key was reconciled."""

    leads: bool
    since_pass_s: float
    head_age_s: float
    depth: int


def verdict(pulse: Pulse, stand_still_s: float) -> tuple[bool, str]:
    """Whether the process is well, and one line that says why."""
    if not pulse.leads:
        return True, "ok: another operator leads"
    if pulse.head_age_s > stand_still_s:
        return False, f"one key has been waiting or worked on for {pulse.head_age_s:.0f} s"
    if pulse.depth and pulse.since_pass_s > stand_still_s:
        return (
            False,
            f"{pulse.depth} keys wait and none was reconciled in {pulse.since_pass_s:.0f} s",
        )
    return True, f"ok: leading, {pulse.depth} keys waiting"
