"""Every seed that has found something runs again, see :mod:`kept`."""

import pytest

from tests.simulation.cluster import simulate
from tests.simulation.kept import KEPT, Kept
from tests.simulation.runs import story


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: str(kept.seed))
def test_what_a_seed_has_found_is_not_found_again(kept: Kept) -> None:
    outcome = simulate(kept.seed, kept.profile)
    assert outcome.violation is None, f"{kept.found} ({kept.rule})\n{story(outcome)}"
