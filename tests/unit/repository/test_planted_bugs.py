"""Planted bugs replace functions that exist.

Finding them takes minutes. A renamed function is noticed here within a second.
"""

import pytest

from tests.simulation.planted_bugs import BUGS, Bug
from tests.simulation.planted_tables import TABLE_BUGS, TableBug


@pytest.mark.parametrize("bug", [*BUGS, *TABLE_BUGS], ids=lambda bug: bug.name)
def test_planted_bug_replaces_existing_code(bug: Bug | TableBug) -> None:
    with bug.plant():
        pass
