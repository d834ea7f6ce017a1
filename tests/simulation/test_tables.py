"""Many short runs of a topic and its table, the same seed twice, and every planted bug found."""

import os

import pytest

from tests.effort import examples
from tests.simulation.planted_tables import TABLE_BUGS, TableBug
from tests.simulation.runs import story, table_outcomes
from tests.simulation.tables import simulate_tables

SEEDS = examples(60)
FOUND_WITHIN = 500


def test_table_seeds_neither_skip_nor_lose_records() -> None:
    ended = list(table_outcomes(range(SEEDS), os.cpu_count() or 1))
    failed = [story(outcome) for outcome in ended if outcome.violation is not None]
    assert not failed, "\n\n".join(failed[:3])
    for figure in ("exported", "refused", "restored"):
        assert sum(outcome.figures[figure] for outcome in ended) > SEEDS // 4


def test_table_seed_gives_the_same_run() -> None:
    one, again = simulate_tables(7), simulate_tables(7)
    assert (one.events, one.figures) == (again.events, again.figures)
    assert one.events


@pytest.mark.full
@pytest.mark.parametrize("bug", TABLE_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_table_bug_is_detected(bug: TableBug) -> None:
    for seed in range(FOUND_WITHIN):
        with bug.plant():
            outcome = simulate_tables(seed)
        if outcome.violation is not None:
            return
    pytest.fail(f"{bug.name}: not found in {FOUND_WITHIN} seeds")
