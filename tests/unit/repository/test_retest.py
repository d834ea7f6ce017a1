"""Selection of the tests that are run once more."""

import json

import pytest

from tools.retest import failed, verdict


@pytest.mark.parametrize(
    ("remembered", "run"),
    [
        ("a.py::test_b@cluster", "a.py::test_b"),
        ("a.py::test_b[x@y]", "a.py::test_b[x@y]"),
        ("a.py::test_b[x@y]@cluster", "a.py::test_b[x@y]"),
        ("a.py::test_b", "a.py::test_b"),
    ],
)
def test_group_is_removed_from_a_name(remembered: str, run: str) -> None:
    assert failed(json.dumps({remembered: True})) == [run]


def test_last_line_names_the_tests_that_needed_a_retry() -> None:
    assert verdict(["a.py::b", "c.py::d"], 0) == "passed only when run again: a.py::b, c.py::d"
    assert verdict(["a.py::b"], 1).startswith("failed again")
