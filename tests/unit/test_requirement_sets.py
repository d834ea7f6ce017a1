"""The requirement sets of single commands are parts of the one lock."""

import pytest

from tools.requirement_sets import FOLDER, SETS, render


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_the_part_of_the_lock_that_its_command_needs(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == render(SETS[name]), "run: make pins"


def test_the_set_of_spark_has_what_map_in_arrow_requires() -> None:
    # PySpark checks for pandas at run time and does not require it as a package.
    assert "\npandas==" in (FOLDER / "spark.txt").read_text(encoding="utf-8")
