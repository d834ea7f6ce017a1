"""Replay the earlier findings of fuzzing and a few random inputs."""

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import CORPUS, TARGETS, FuzzCase, case_of, new_case

KEPT = sorted(CORPUS.glob("*.txt"))


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_what_was_found_is_found_no_more(path: Path) -> None:
    case_of(path.read_text("utf-8")).run()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_cases_by_chance(name: str) -> None:
    """Some are taken and some are not, or the target would try nothing."""
    cases = [new_case(TARGETS[name], random.Random(seed)) for seed in range(100)]
    assert len({case.run() for case in cases}) == 2


@pytest.mark.parametrize("data", [b"", b"\x00\xff", bytes(1000)])
def test_a_case_is_kept_as_text(data: bytes) -> None:
    for case in (FuzzCase("batch", "", data), FuzzCase("log", "0.log killed", data)):
        assert case_of(case.text()) == case
