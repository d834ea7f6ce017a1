"""What to do about the Lease: a pure function of what was read, who asks, and the local clock.

The rule is client-go's, with two additions that its Python ports lack. Nobody's wall clock is
compared with another's: a candidate watches the record, and only a record that has not changed for
a whole lease duration *on the candidate's own monotonic clock* may be taken. And every take-over
counts in ``leaseTransitions``. The Lease only chooses; what fences is the controller epoch.
"""

import datetime as dt
from dataclasses import dataclass

from tidemark_operator.kube.kinds import LEASE, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds. ``renew_deadline_s``: a leader that could not renew for so long stops leading;
    below ``duration_s``, or two would lead. ``request_timeout_s`` lies below the deadline, so
    that one black-holed request leaves time for another. ``retry_s``: between two renewals, and
    between two looks of a candidate, who learns of the last renewal so much later at most."""

    duration_s: float = 10.0
    renew_deadline_s: float = 20 / 3
    retry_s: float = 1.0
    request_timeout_s: float = 2.5

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_deadline_s < self.duration_s:
            raise ValueError("the Lease requires 0 < retry < renew deadline < duration")
        if not 0 < self.request_timeout_s < self.renew_deadline_s:
            raise ValueError("the Lease's request timeout must be shorter than the renew deadline")

    @classmethod
    def of_duration(cls, duration_s: float) -> "LeaseTimes":
        """The proportions for another duration: within the deadline two requests may get no answer
        at all, and the deadline leaves a third of the duration to clocks that run apart."""
        return cls(
            duration_s=duration_s,
            renew_deadline_s=duration_s * 2 / 3,
            retry_s=duration_s / 10,
            request_timeout_s=duration_s / 4,
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """The record that a candidate saw last, and when (monotonic seconds) it first saw it."""

    record: tuple[str, str, int]
    since_s: float

    @property
    def holder(self) -> str:
        """Who holds it by this record; "" for nobody."""
        return self.record[0]


@dataclass(frozen=True, slots=True)
class Create:
    """There is no Lease: make one that we hold."""


@dataclass(frozen=True, slots=True)
class Take:
    """The Lease is free or has run out: write ourselves in, counting the transition."""

    transitions: int


@dataclass(frozen=True, slots=True)
class Renew:
    """It is ours: write a new renew time."""

    transitions: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Another holds it, and may be followed after ``until_s`` (monotonic) unless it renews."""

    holder: str
    until_s: float


Action = Create | Take | Renew | Wait


def observe(lease: Json, former: Observation | None, now_s: float) -> Observation:
    """Remember the record; the clock starts again whenever it differs from the last one."""
    spec = lease.get("spec") or {}
    record = (
        str(spec.get("holderIdentity") or ""),
        str(spec.get("renewTime") or ""),
        int(spec.get("leaseTransitions") or 0),
    )
    if former is not None and former.record == record:
        return former
    return Observation(record, now_s)


def decide(lease: Json | None, identity: str, former: Observation | None, now_s: float) -> Action:
    """The next step of a candidate or a leader. ``former`` is what ``observe`` gave for it."""
    if lease is None:
        return Create()
    spec = lease.get("spec") or {}
    holder = str(spec.get("holderIdentity") or "")
    transitions = int(spec.get("leaseTransitions") or 0)
    if holder == identity:
        return Renew(transitions)
    if not holder:
        return Take(transitions + 1)
    duration_s = float(spec.get("leaseDurationSeconds") or 0)
    since_s = now_s if former is None else former.since_s
    if now_s - since_s <= duration_s:
        return Wait(holder, since_s + duration_s)
    return Take(transitions + 1)


def lease_body(
    name: str,
    namespace: str,
    identity: str,
    *,
    transitions: int,
    times: LeaseTimes,
    now: dt.datetime,
    held: Json | None,
) -> Json:
    """The Lease to write: new, or ``held`` with its resourceVersion and a new record."""
    spec = dict((held or {}).get("spec") or {})
    stamp = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if spec.get("holderIdentity") != identity:
        spec["acquireTime"] = stamp
    spec |= {
        "holderIdentity": identity,
        # The API takes whole seconds only; a candidate must never count fewer than we do.
        "leaseDurationSeconds": max(1, int(-(-times.duration_s // 1))),
        "renewTime": stamp,
        "leaseTransitions": transitions,
    }
    metadata = dict(held["metadata"]) if held else {"name": name, "namespace": namespace}
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": metadata,
        "spec": spec,
    }


def released(lease: Json, now: dt.datetime) -> Json:
    """The Lease given up, so that the next leader need not wait for it to run out."""
    spec = dict(lease["spec"])
    stamp = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": stamp}
    return {**lease, "spec": spec}
