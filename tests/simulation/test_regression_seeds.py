"""Every seed that has found something runs again, see :mod:`regression_seeds`."""

import pytest

from tests.simulation.cluster import simulate
from tests.simulation.regression_seeds import KEPT, Kept
from tests.simulation.runs import story

pytestmark = pytest.mark.full


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: str(kept.seed))
def test_regression_seed_has_no_violation(kept: Kept) -> None:
    outcome = simulate(kept.seed, kept.profile)
    assert outcome.violation is None, f"{kept.found} ({kept.rule})\n{story(outcome)}"
