"""Results of benchmarks: rounds and ratios, and the file."""

import os
from pathlib import Path

import pytest

from tests.benchmarks import results
from tests.benchmarks.results import SUSTAINED, Results, load, one_line, ratios
from tests.benchmarks.sides import KAFKA, OURS

NAME = "1,000/s, RF 1, 1 partition, linger 0 ms, after rest"


def three_rounds() -> Results:
    """Three rounds of one measure. Ours does not sustain the rate in the last two."""
    found = Results(benchmark="latency", rounds=3, setting={"seconds": 10})
    for number, (ours, theirs) in enumerate(((2.0, 4.0), (9.0, 3.0), (6.0, 6.0)), 1):
        for side, value in ((OURS, ours), (KAFKA, theirs)):
            figures = {"p99 ms": value, "failed": 0.0}
            figures[SUSTAINED] = float(side == KAFKA or number == 1)
            found.add(NAME, side, number, figures)
    return found


def test_ratios_are_of_rounds_with_their_range() -> None:
    header, measure, p99, failed, unsustained = three_rounds().lines()
    assert header.split()[:3] == ["medians", "Tidemark", "Apache"]
    assert measure == NAME
    # Medians of 2, 9, 6 and of 4, 3, 6; ratios 0.5, 3 and 1.
    assert p99.split(maxsplit=5) == ["p99", "ms", "6.00", "4.00", "1.00", "(0.50 to 3.00)"]
    assert failed.split() == ["failed", "0.00", "0.00", "-"]
    assert unsustained == "  Tidemark did not sustain the rate in 2 rounds"


def test_ratio_needs_both_sides_of_a_round() -> None:
    sides = {OURS: {1: {"a": 3.0}, 2: {"a": 5.0}}, KAFKA: {1: {"a": 2.0}, 3: {"a": 1.0}}}
    assert ratios(sides, "a") == [1.5]
    assert ratios(sides, "b") == []
    assert ratios({OURS: {1: {"a": 1.0}}, KAFKA: {1: {"a": 0.0}}}, "a") == []


def test_a_round_is_one_line() -> None:
    assert one_line({"a MB/s": 1234.5, "b": 0.125, SUSTAINED: 1}) == "a MB/s 1,234.50  b 0.12"


def test_results_are_bound_to_commit_machine_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Java is not needed for this.
    monkeypatch.setattr(results, "_output", lambda *command: f"{command[0]} said this")
    monkeypatch.setattr(results, "FOLDER", tmp_path / "folder")
    written = three_rounds()
    written.write()
    # Any output of ``git status`` means changes.
    with pytest.raises(ValueError, match="commit them, and measure again"):
        load(written.path())
    monkeypatch.setattr(
        results, "_output", lambda *command: "" if "status" in command else f"{command[0]} said"
    )
    written.write()
    found, read = load(written.path())
    assert read == written
    assert (found.commit, found.cores) == ("git said", os.cpu_count())
    assert found.versions["franz-go"].startswith("v1.")
