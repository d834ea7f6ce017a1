"""Many short runs of the simulated cluster, the same seed twice, and every planted bug found."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import examples
from tests.simulation.cluster import SimulationOutcome, simulate
from tests.simulation.planted_bugs import BUGS, Bug
from tests.simulation.regression_seeds import SHORT
from tests.simulation.runs import outcomes, story

SEEDS = examples(20)
FOUND_WITHIN = 500
ROOT = Path(__file__).parents[2]


def test_random_seeds_violate_no_invariant_and_settle() -> None:
    ended = list(outcomes(range(SEEDS), os.cpu_count() or 1, SHORT))
    failed = [story(outcome) for outcome in ended if outcome.violation is not None]
    assert not failed, "\n\n".join(failed[:3])
    assert sum(outcome.figures["acknowledged"] for outcome in ended) > 10 * SEEDS
    assert sum(outcome.steps for outcome in ended) > 2000 * SEEDS


def _digest(outcome: SimulationOutcome) -> str:
    told = "\n".join([str(outcome.steps), str(outcome.figures), *outcome.events])
    return hashlib.sha256(told.encode()).hexdigest()


@pytest.mark.full
def test_seed_gives_the_same_run_in_every_process() -> None:
    here = _digest(simulate(7, SHORT))
    assert here == _digest(simulate(7, SHORT))
    script = (
        "from tests.simulation.cluster import simulate;"
        "from tests.simulation.test_simulation import SHORT, _digest;"
        "print(_digest(simulate(7, SHORT)))"
    )
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here


@pytest.mark.full
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_bug_is_detected(bug: Bug) -> None:
    for seed in range(bug.first, bug.first + FOUND_WITHIN):
        with bug.plant():
            outcome = simulate(seed, bug.profile)
        if outcome.violation is not None:
            assert outcome.violation[0] in bug.invariants, story(outcome)
            return
    pytest.fail(f"{bug.name}: not found in {FOUND_WITHIN} seeds")


def test_run_restores_replaced_functions() -> None:
    before = os.open, os.stat, Path.open
    simulate(3, dataclasses.replace(SHORT, trouble_s=4.0, settle=False))
    assert (os.open, os.stat, Path.open) == before
