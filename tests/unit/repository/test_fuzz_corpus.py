"""Replay the earlier findings of fuzzing and a few random inputs."""

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import CORPUS, TARGETS, FuzzCase, case_of, new_case

FINDINGS = sorted(CORPUS.glob("*.txt"))


@pytest.mark.parametrize("path", FINDINGS, ids=[path.stem for path in FINDINGS])
def test_earlier_finding_stays_fixed(path: Path) -> None:
    case_of(path.read_text("utf-8")).run()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_random_cases_of_a_target(name: str) -> None:
    """Some cases are accepted and some are refused: otherwise the target would test nothing."""
    cases = [new_case(TARGETS[name], random.Random(seed)) for seed in range(100)]
    assert len({case.run() for case in cases}) == 2


@pytest.mark.parametrize("data", [b"", b"\x00\xff", bytes(1000)])
def test_case_is_stored_as_text(data: bytes) -> None:
    for case in (FuzzCase("batch", "", data), FuzzCase("log", "0.log killed", data)):
        assert case_of(case.text()) == case
