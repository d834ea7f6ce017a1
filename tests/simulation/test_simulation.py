"""Many short runs of the simulated cluster, the same seed twice, and every planted bug found."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.simulation.__main__ import story
from tests.simulation.cluster import Outcome, Profile, simulate
from tests.simulation.planted import BUGS, Bug

SEEDS = 200
FOUND_WITHIN = 500
SHORT = Profile(
    first_fault_s=4.0,
    trouble_s=9.0,
    last_produce_s=3.0,
    fault_s=0.7,
    user_s=2.0,
    produce_s=0.15,
    settle_s=90.0,
    unclean=False,
)
#: The users of the time when the seeds below were found: a seed is a run only with its profile.
_USERS = {"delete records": 2, "tiering": 1.5}
#: Seeds that have found something, by what it was; they run always.
KEPT: tuple[tuple[str, int, Profile], ...] = (
    ("a deletion is acknowledged past an eligible leader", 194, Profile(users=_USERS)),
    (
        "a log start is on record before the records below are durable",
        29,
        dataclasses.replace(SHORT, users=_USERS),
    ),
    (
        "a power cut takes the name of the journal of log starts",
        142,
        dataclasses.replace(SHORT, users=_USERS),
    ),
    ("log starts after an unclean election", 308, Profile(users=_USERS)),
    ("files below the log start after Retain", 68, Profile()),
)
ROOT = Path(__file__).parents[2]


def _short(seed: int) -> Outcome:
    outcome = simulate(seed, SHORT)
    if outcome.violation is None:
        outcome.events.clear()
    return outcome


def test_no_seed_violates_an_invariant_and_every_one_settles() -> None:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(_short, range(SEEDS), chunksize=5))
    failed = [story(outcome) for outcome in outcomes if outcome.violation is not None]
    assert not failed, "\n\n".join(failed[:3])
    assert sum(outcome.figures["acknowledged"] for outcome in outcomes) > 10 * SEEDS
    assert sum(outcome.steps for outcome in outcomes) > 2000 * SEEDS


@pytest.mark.parametrize(
    ("seed", "profile"), [kept[1:] for kept in KEPT], ids=[kept[0] for kept in KEPT]
)
def test_a_seed_that_has_found_something_runs_clean(seed: int, profile: Profile) -> None:
    outcome = simulate(seed, profile)
    assert outcome.violation is None, story(outcome)


def _digest(outcome: Outcome) -> str:
    told = "\n".join([str(outcome.steps), str(outcome.figures), *outcome.events])
    return hashlib.sha256(told.encode()).hexdigest()


def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    here = _digest(simulate(7))
    assert here == _digest(simulate(7))
    script = (
        "from tests.simulation.cluster import simulate;"
        "from tests.simulation.test_simulation import _digest;"
        "print(_digest(simulate(7)))"
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


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug: Bug) -> None:
    for seed in range(FOUND_WITHIN):
        with bug.plant():
            outcome = simulate(seed, bug.profile)
        if outcome.violation is not None:
            assert outcome.violation[0] in bug.invariants, story(outcome)
            return
    pytest.fail(f"{bug.name}: not found in {FOUND_WITHIN} seeds")


def test_a_run_leaves_nothing_replaced() -> None:
    before = os.open, os.stat, Path.open
    simulate(3, dataclasses.replace(SHORT, trouble_s=4.0, settle=False))
    assert (os.open, os.stat, Path.open) == before
