"""The requirement sets of single commands are parts of the one lock."""

import pytest

from tests.requirement_sets import FOLDER, SETS, render


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_the_part_of_the_lock_that_its_command_needs(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == render(SETS[name]), "run: make pins"
