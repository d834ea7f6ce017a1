"""Decision about the Lease: a pure function of the record, the identity and the local clock.

The rule is client-go's, with two additions that its Python ports lack. Wall clocks of two processes
are never compared: a candidate watches the record, and takes only a record that has not changed for
a whole lease duration *on the candidate's own monotonic clock*. Every takeover increments
``leaseTransitions``. The Lease only elects; the controller epoch fences.
"""

import datetime as dt
from dataclasses import dataclass

from tidemark_operator.clock import micro_time
from tidemark_operator.kube.kinds import LEASE, Json


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Name of the Lease, and the candidate's identity, which is unique per process start."""

    namespace: str
    name: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Times of the election, in seconds.

    - ``duration_s``: a record that has not changed for longer may be taken.
    - ``renew_deadline_s``: a leader that could not renew for this long stops leading. It is below
      ``duration_s``, otherwise two processes would lead.
    - ``request_timeout_s``: below the deadline, so that one black-holed request leaves time for
      another.
    - ``retry_s``: between two renewals, and between two reads of a candidate. A candidate notices a
      renewal this much later at most.
    """

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
        """Return the times in proportion to another duration.

        Two requests may time out within the deadline, and the deadline leaves a third of the
        duration for clocks that run at different speeds.
        """
        return cls(
            duration_s=duration_s,
            renew_deadline_s=duration_s * 2 / 3,
            retry_s=duration_s / 10,
            request_timeout_s=duration_s / 4,
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """Record that a candidate read last, and the monotonic time in seconds at which it first
    saw it.
    """

    record: tuple[str, str, int]
    since_s: float

    @property
    def holder(self) -> str:
        """Return the identity of the holder, "" if the Lease is free."""
        return self.record[0]


@dataclass(frozen=True, slots=True)
class Create:
    """There is no Lease: create it with this process as the holder."""


@dataclass(frozen=True, slots=True)
class Take:
    """The Lease is free or has expired: become its holder, counting the transition."""

    transitions: int


@dataclass(frozen=True, slots=True)
class Renew:
    """This process holds the Lease: write a new renew time."""

    transitions: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Another process holds the Lease; it may be taken after ``until_s`` (monotonic) unless
    renewed.
    """

    holder: str
    until_s: float


Action = Create | Take | Renew | Wait


def observe(lease: Json, former: Observation | None, now_s: float) -> Observation:
    """Return the observation of a record; its clock restarts whenever the record differs."""
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
    """Decide what to do with a Lease that was just read: create, take, renew or wait.

    ``lease``: None if it does not exist. ``former``: since when this process has seen this record
    (result of ``observe``). Clocks of other processes are not used.
    """
    if lease is None:
        return Create()
    spec = lease.get("spec") or {}
    holder = str(spec.get("holderIdentity") or "")
    transitions = int(spec.get("leaseTransitions") or 0)
    # The identity is unique per process start, so this is never the record of a former process.
    if holder == identity:
        return Renew(transitions)
    if not holder:
        return Take(transitions + 1)
    # The duration counts from when this process first saw the record, by its own clock.
    duration_s = float(spec.get("leaseDurationSeconds") or 0)
    since_s = now_s if former is None else former.since_s
    if now_s - since_s <= duration_s:
        return Wait(holder, since_s + duration_s)
    return Take(transitions + 1)


def lease_body(
    lease: LeaseName, times: LeaseTimes, now: dt.datetime, *, transitions: int, stored: Json | None
) -> Json:
    """Return the Lease to write: a new one, or ``stored`` with a new record of its holder.

    ``transitions``: number of changes of the holder so far.
    """
    spec = dict((stored or {}).get("spec") or {})
    stamp = micro_time(now)
    # The time of acquisition changes only with the holder.
    if spec.get("holderIdentity") != lease.identity:
        spec["acquireTime"] = stamp
    spec |= {
        "holderIdentity": lease.identity,
        # The API takes whole seconds only. Rounded up: a candidate never counts fewer than we do.
        "leaseDurationSeconds": max(1, int(-(-times.duration_s // 1))),
        "renewTime": stamp,
        "leaseTransitions": transitions,
    }
    metadata = stored["metadata"] if stored else {"name": lease.name, "namespace": lease.namespace}
    head = {"apiVersion": LEASE.api_version, "kind": LEASE.kind}
    return {**head, "metadata": dict(metadata), "spec": spec}


def released(lease: Json, now: dt.datetime) -> Json:
    """Return the Lease without a holder, so that the next leader need not wait for it to expire."""
    free = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_time(now)}
    return {**lease, "spec": {**lease["spec"], **free}}
