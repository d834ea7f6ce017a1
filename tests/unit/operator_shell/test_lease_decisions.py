"""Lease decisions: a pure function of the record and the local monotonic clock."""

import datetime as dt
from typing import Any

import pytest

from tidemark_operator.leadership.lease import (
    Create,
    LeaseName,
    LeaseTimes,
    Observation,
    Renew,
    Take,
    Wait,
    decide,
    lease_body,
    observe,
    released,
)

NAME = LeaseName("n", "l", "me")
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def lease(holder: str, *, renewed: str = "t1", transitions: int = 3) -> dict[str, Any]:
    spec = {
        "holderIdentity": holder,
        "renewTime": renewed,
        "leaseTransitions": transitions,
        "leaseDurationSeconds": 15,
    }
    return {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "7"}, "spec": spec}


def test_missing_lease_is_created() -> None:
    assert decide(None, "me", None, 0.0) == Create()


def test_own_lease_is_renewed_without_a_transition() -> None:
    assert decide(lease("me"), "me", Observation(("me", "t1", 3), 0.0), 1.0) == Renew(3)


def test_released_lease_is_taken_at_once() -> None:
    assert decide(lease(""), "me", Observation(("", "t1", 3), 5.0), 5.0) == Take(4)


def test_foreign_lease_is_taken_after_its_duration_on_the_local_clock() -> None:
    foreign = lease("other")
    seen = observe(foreign, None, 100.0)
    # The wait runs from the local observation at 100 s, not from renewTime.
    assert decide(foreign, "me", seen, 100.0) == Wait("other", 115.0)
    assert decide(foreign, "me", observe(foreign, seen, 115.0), 115.0) == Wait("other", 115.0)
    assert decide(foreign, "me", observe(foreign, seen, 115.1), 115.1) == Take(4)


def test_a_renewal_restarts_the_wait_whatever_its_timestamp() -> None:
    seen = observe(lease("other", renewed="t1"), None, 100.0)
    # Clocks of other machines may be wrong: only the change of renewTime counts.
    renewed = lease("other", renewed="1970-01-01T00:00:00Z")
    seen = observe(renewed, seen, 114.0)
    assert decide(renewed, "me", seen, 120.0) == Wait("other", 129.0)
    assert decide(renewed, "me", seen, 129.5) == Take(4)


def test_written_lease_keeps_resource_version_and_counts_transitions() -> None:
    times = LeaseTimes.of_duration(4.2)
    body = lease_body(NAME, times, NOW, transitions=4, stored=lease("other"))
    assert body["metadata"]["resourceVersion"] == "7"
    assert body["spec"]["leaseTransitions"] == 4
    assert body["spec"]["leaseDurationSeconds"] == 5, "never less than we count ourselves"
    assert body["spec"]["acquireTime"] == body["spec"]["renewTime"]
    # A renewal keeps acquireTime and moves renewTime.
    later = lease_body(NAME, times, NOW + dt.timedelta(seconds=9), transitions=4, stored=body)
    assert later["spec"]["acquireTime"] == body["spec"]["acquireTime"]
    assert later["spec"]["renewTime"] != body["spec"]["renewTime"]


def test_a_released_lease_has_no_holder() -> None:
    assert released(lease("me"), NOW)["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("duration_s", [1.0, 3.0, 15.0])
def test_the_usual_proportions_leave_room_for_a_second_try(duration_s: float) -> None:
    times = LeaseTimes.of_duration(duration_s)
    assert times.request_timeout_s + times.retry_s < times.renew_deadline_s < times.duration_s


def test_times_under_which_two_would_lead_are_refused() -> None:
    with pytest.raises(ValueError, match="renew deadline"):
        LeaseTimes(duration_s=10, renew_deadline_s=10, retry_s=2, request_timeout_s=4)
    with pytest.raises(ValueError, match="request timeout"):
        LeaseTimes(duration_s=15, renew_deadline_s=10, retry_s=2, request_timeout_s=10)
