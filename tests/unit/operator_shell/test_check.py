"""Output of ``helm test`` for an unhealthy installation, and its timeout.

``tests/conformance/test_check.py`` runs all of it on real operators and brokers.
"""

from typing import Any

import pytest

from tidemark_operator import check
from tidemark_operator.settings import BadSettings

READY = {"type": "Ready", "status": "True", "reason": "Ready", "observedGeneration": 2}


def cluster(
    *conditions: dict[str, Any], registered: int = 3, fenced: int = 0, generation: int = 2
) -> dict[str, Any]:
    status = {
        "conditions": list(conditions),
        "brokers": {"registered": registered, "fenced": fenced},
    }
    return {"metadata": {"generation": generation}, "status": status}


NOT_READY = {
    "type": "Ready",
    "status": "False",
    "reason": "TierUnavailable",
    "message": "no bucket",
}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (cluster(READY), ""),
        (cluster(READY, registered=4), ""),
        (cluster(READY, fenced=1), "2 of 3 brokers are registered"),
        (cluster(NOT_READY), "TierUnavailable: no bucket"),
        (cluster(READY, generation=3), "the operator has not observed the latest change yet"),
        (cluster(), "no operator has observed it yet"),
        ({"metadata": {"generation": 1}}, "no operator has observed it yet"),
    ],
    ids=["ready", "more brokers", "fenced", "not ready", "stale status", "new", "without status"],
)
def test_cluster_is_ready_with_all_brokers_at_its_latest_generation(
    body: dict[str, Any], complaint: str
) -> None:
    assert check.cluster_complaint(body, 3) == complaint


def test_failures_are_reported_for_each_check_within_one_time_limit() -> None:
    attempts: list[str] = []

    def never(name: str) -> check.InstallationCheck:
        return check.InstallationCheck(name, lambda: attempts.append(name) or "no")  # type: ignore[func-returns-value]

    output: list[str] = []
    # A time limit of zero still runs each check once, so that each failure is named.
    passed = check.run(
        [never("one"), check.InstallationCheck("two", str), never("three")], 0.0, output.append
    )
    assert not passed
    assert output == ["FAILED: one: no", "ok: two", "FAILED: three: no"]
    assert attempts == ["one", "three"]


def test_check_that_passes_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PAUSE_S", 0.001)
    # The third attempt passes, well within the time limit.
    answers = iter(["not yet", "not yet", ""])
    output: list[str] = []
    assert check.run([check.InstallationCheck("it", lambda: next(answers))], 60.0, output.append)
    assert output == ["ok: it"]


@pytest.mark.parametrize("text", ["TLS://b:9092", "PLAINTEXT://b", "b:9092"])
def test_a_listener_is_a_protocol_and_an_address(text: str) -> None:
    with pytest.raises(BadSettings, match="write PROTOCOL://host:port"):
        check.checks(["--namespace=n", "--cluster=c", f"--listener={text}"])
    assert check.main(["--namespace=n", "--cluster=c", f"--listener={text}"]) == check.EXIT_USAGE
