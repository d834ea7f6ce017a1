"""Results of benchmarks: rounds and ratios, the file, and the page that is generated from it."""

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import results
from tests.benchmarks.page import MeasuredSection, Section, _rounded, page, render
from tests.benchmarks.results import SUSTAINED, Provenance, Results, load, one_line, ratios
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


def provenance() -> Provenance:
    """Provenance of an unchanged checkout."""
    return Provenance(
        commit="0123456789abcdef",
        committed="2026-01-31",
        is_changed=False,
        kernel="6.1",
        cores=2,
        processor="a processor",
        load=0.1,
        versions={"kafka": "4.3.1", "java": "17"},
    )


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
    # The version of Python is not enough: a build without optimisation is slower.
    assert found.versions["python"].startswith(f"{platform.python_version()} (GCC ")
    assert found.python_call_ns is not None
    assert found.python_call_ns > 1


def test_parts_of_a_result_have_the_same_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_output", lambda *command: "" if "status" in command else "x")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    written = three_rounds()
    written.write()
    resumed = Results(benchmark="latency", rounds=3)
    resumed.resume()
    assert resumed.figures == written.figures
    # Another build of the same version of Python.
    monkeypatch.setattr(platform, "python_compiler", lambda: "another compiler")
    with pytest.raises(ValueError, match="another compiler"):
        resumed.resume()


def test_page_shows_the_build_of_python_where_it_is_recorded() -> None:
    section = Section(name="latency", title="Latency", command="make bench-latency")
    old = replace(provenance(), versions={"kafka": "4.3.1", "python": "3.11.7"})
    new = replace(
        old,
        versions={"kafka": "4.3.1", "python": "3.11.2 (GCC 12.2.0)"},
        python_call_ns=82.5,
    )
    assert "python 3.11.7." in page([MeasuredSection(section, old, three_rounds())])
    text = page([MeasuredSection(section, new, three_rounds())])
    assert "python 3.11.2 (GCC 12.2.0), 82.5 ns for each call." in text


def test_page_begins_with_what_apache_kafka_does_better_in_every_round() -> None:
    found = three_rounds()
    section = Section(name="latency", title="Latency", command="make bench-latency")
    measured = MeasuredSection(section, provenance(), found)
    # Kafka's p99 is higher in the first round.
    assert "In none of the measures below in every round." in page([measured])
    found.add(NAME, OURS, 1, {"p99 ms": 8.0, "rate/s": 500.0})
    found.add(NAME, KAFKA, 1, {"p99 ms": 4.0, "rate/s": 1000.0})
    found.add(NAME, OURS, 3, {"p99 ms": 9.0})
    text = page([measured])
    rows = [
        f"| Latency | {NAME} | rate/s | 2.00 |",
        f"| Latency | {NAME} | p99 ms | 2.00 |",
    ]
    assert "\n".join(rows) in text
    assert text.index(rows[0]) < text.index("## Latency")
    assert "9.00, 4.00<br>2.00 (1.50 to 3.00)" in text


def test_checked_in_page_is_that_of_the_checked_in_results() -> None:
    folder = Path(__file__).parents[3] / "docs" / "benchmarks"
    files = render(folder)
    assert files
    assert {path: path.read_text(encoding="utf-8") for path in files} == files


def test_pictures_do_not_depend_on_the_processor() -> None:
    """One coordinate differs in its last digit, and with it the identifier."""
    intel = '<path clip-path="url(#pfe67374e4a)" d="L 519.504448 253.998979"/>'
    amd = '<path clip-path="url(#pd90218619d)" d="L 519.504447 253.998979"/>'
    assert _rounded(intel) == _rounded(amd) == '<path clip-path="url(#id0)" d="L 519.50 254.00"/>'
