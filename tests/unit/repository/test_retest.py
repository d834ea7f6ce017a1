"""Which tests are run once more."""

import json

import pytest

from tests.retest import failed


@pytest.mark.parametrize(
    ("remembered", "run"),
    [
        ("a.py::test_b@cluster", "a.py::test_b"),
        ("a.py::test_b[x@y]", "a.py::test_b[x@y]"),
        ("a.py::test_b[x@y]@cluster", "a.py::test_b[x@y]"),
        ("a.py::test_b", "a.py::test_b"),
    ],
)
def test_a_group_is_no_part_of_a_name(remembered: str, run: str) -> None:
    assert failed(json.dumps({remembered: True})) == [run]
