"""Record of the runs, and the page generated from it."""

from pathlib import Path

from tests.suites import page
from tests.suites.catalogue import SUITES
from tests.suites.outcomes import Result, SuiteOutcome
from tests.suites.recorded_results import KAFKAS, OURS, Recorded, SuiteRecord, dumped, load, noted

PASSED, FAILED, SKIPPED = SuiteOutcome.PASSED, SuiteOutcome.FAILED, SuiteOutcome.SKIPPED
ROOT = Path(__file__).parents[3]
NO_REASONS: dict[str, dict[str, str]] = {name: {} for name in SUITES}


def row(text: str, title: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_last_result_of_a_test_counts() -> None:
    results = [Result("a", PASSED), Result("a", FAILED), Result("b", PASSED), Result("c", SKIPPED)]
    assert Recorded.of(results) == Recorded(1, ("a",), ("c",))


def test_records_are_read_back() -> None:
    tidemarks, kafkas = Recorded(3, ("x",), ("y",)), Recorded(5, (), ())
    records = noted({}, "s", "suite 1", OURS, tidemarks)
    records = noted(records, "s", "suite 1", KAFKAS, kafkas)
    assert load(dumped(records)) == records
    assert records["s"].sides == {OURS: tidemarks, KAFKAS: kafkas}


def test_figures_of_another_version_are_removed() -> None:
    records = noted({}, "s", "suite 1", KAFKAS, Recorded(5, (), ()))
    records = noted(records, "s", "suite 2", OURS, Recorded(3, (), ()))
    assert records["s"] == SuiteRecord("suite 2", {OURS: Recorded(3, (), ())})


def test_page_lists_what_applies() -> None:
    record = SuiteRecord(
        "franz",
        {
            OURS: Recorded(60, ("both", "mine"), ("skipped",)),
            KAFKAS: Recorded(61, ("both",), ("skipped",)),
        },
    )
    reasons = {**NO_REASONS, "franz-go": {"mine": "a reason"}}
    text = page.page({"franz-go": record}, reasons)
    assert row(text, "franz") == ["61", "60", "1", "2", "61 of 63, 1 failed"]
    assert "- franz: `mine`: a reason" in text


def test_a_suite_that_was_not_run_is_reported() -> None:
    text = page.page({}, NO_REASONS)
    for suite in SUITES.values():
        assert row(text, suite.title)[0] == "not run yet"
    assert "Nothing." in text


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "reference" / "compatibility.md").read_text() == page.current(), (
        "make compatibility"
    )
