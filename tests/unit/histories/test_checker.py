"""The checker finds nothing in a sound history, and every planted violation."""

import cProfile
from collections.abc import Callable

import pytest

from tests.histories.checker import check
from tests.histories.levels import ALLOWED, MEANING
from tests.unit.histories.perfect_cluster import history
from tests.unit.histories.planted_violations import PLANTED, History, duplicate

STEPS = 700


@pytest.mark.parametrize("seed", range(10))
def test_sound_history_has_no_violation(seed: int) -> None:
    events = history(seed, STEPS)
    report = check(events)
    assert not report.violations, "\n".join(report.proofs(events))
    figures = report.figures
    # The history proves nothing unless transactions have ended in every way.
    for outcome in ("committed", "aborted", "unknown"):
        assert figures[f"transactions {outcome}"] > 2
    assert figures["polls"] > 100


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "plant", "others"), PLANTED, ids=[plant.__name__ for _, plant, _ in PLANTED]
)
def test_planted_violation_is_found(
    name: str, plant: Callable[[History], History], others: frozenset[str], seed: int
) -> None:
    events = plant(history(seed, STEPS))
    report = check(events)
    found = {anomaly.name for anomaly in report.violations}
    assert name in found, report.line()
    # The anomaly may imply others, but no more than are listed.
    assert found <= {name} | others, "\n".join(report.proofs(events))
    assert all(anomaly.operations for anomaly in report.violations)
    assert f"{name} " in report.line()
    assert any(line.startswith("  {") for line in report.proofs(events))


def test_every_anomaly_is_planted_or_always_allowed() -> None:
    """Every transaction may cause G0, which `test_levels.py` covers."""
    assert {name for name, _, _ in PLANTED} | {"G0"} == set(MEANING)
    assert frozenset().union(*ALLOWED.values()) <= set(MEANING)


def test_figures_of_many_histories_are_summed() -> None:
    one = check(duplicate(history(1, STEPS))).all_figures()
    total = one
    for _ in range(9):
        total += one
    assert (one.violations, total.violations) == ({"duplicate": 1}, {"duplicate": 10})
    assert total.counted == {name: 10 * number for name, number in one.counted.items()}
    assert list(total.counted) == list(one.counted)


def test_cost_of_a_check_is_linear() -> None:
    calls = [_calls_of(history(1, steps)) for steps in (1_000, 10_000)]
    # With quadratic cost the factor would be 100.
    assert calls[1] < 15 * calls[0]


def _calls_of(events: History) -> int:
    """Return the number of function calls of a check, including built-in functions."""
    profile = cProfile.Profile()
    profile.runcall(check, events)
    return sum(entry.callcount for entry in profile.getstats())
