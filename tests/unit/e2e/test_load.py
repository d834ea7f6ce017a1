"""Verdict on a load of `make e2e`: every acknowledged record is accounted for."""

import json

import pytest

from e2e.pods.load import Outcome, judge
from e2e.pods.progress import Failed

WELL = {
    "acknowledged": 3,
    "next": 7,
    "longest_s": 1.5,
    "failed": 0,
    "failures": [],
    "missing": 0,
    "wrong": [],
    "committed": {"0": 2, "1": 1},
}


def test_figures_are_those_of_the_program() -> None:
    assert judge(json.dumps(WELL)) == Outcome(3, 7, 1.5, {0: 2, 1: 1})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"failed": 2, "failures": ["4: timed out"]}, "2 sends failed: 4: timed out"),
        ({"missing": 1}, "1 acknowledged records were not read"),
        ({"wrong": ["partition 0, offset 3: expected 2"]}, "offset 3: expected 2"),
        ({"acknowledged": 0}, "nothing was written"),
    ],
    ids=["failed", "missing", "wrong", "nothing"],
)
def test_failure_of_a_client_ends_the_run(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(Failed, match=complaint):
        judge(json.dumps(WELL | change))
