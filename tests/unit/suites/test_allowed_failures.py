"""The list of what may fail only shrinks."""

import pytest

from tests.suites import allowed_failures
from tests.suites.allowed_failures import AllowedError, SuiteVerdict
from tests.suites.catalogue import SUITES
from tests.suites.outcomes import Result, SuiteOutcome

PASSED, FAILED, SKIPPED = SuiteOutcome.PASSED, SuiteOutcome.FAILED, SuiteOutcome.SKIPPED
WHY = "not built yet"


def judged(
    outcomes: dict[str, SuiteOutcome],
    *listed: str,
    kafka: dict[str, SuiteOutcome] | None = None,
    whole: bool = True,
) -> SuiteVerdict:
    results = [Result(test, outcome) for test, outcome in outcomes.items()]
    return allowed_failures.judge(results, dict.fromkeys(listed, WHY), kafka=kafka, whole=whole)


def test_failing_tests_must_be_listed() -> None:
    assert judged({"a": FAILED, "b": PASSED}).failed == ["a"]
    assert judged({"a": FAILED, "b": PASSED}, "a").lines() == []


def test_listed_tests_must_not_pass() -> None:
    assert judged({"a": PASSED}, "a").lines() == ["a is listed and passed: take its line out"]


def test_what_is_listed_must_be_there_where_all_was_run() -> None:
    assert judged({"a": PASSED}, "gone").missing == ["gone"]
    assert judged({"a": PASSED}, "gone", whole=False).lines() == []


@pytest.mark.parametrize("theirs", [FAILED, SKIPPED])
def test_what_kafka_does_not_pass_does_not_apply(theirs: SuiteOutcome) -> None:
    for ours in (FAILED, SKIPPED, PASSED):
        assert judged({"a": ours}, kafka={"a": theirs}).lines() == []


def test_what_kafka_passes_must_not_be_skipped() -> None:
    assert judged({"a": SKIPPED}, kafka={}).skipped == ["a"]
    assert judged({"a": SKIPPED}, "a", kafka={}).lines() == []
    assert judged({"a": SKIPPED}, kafka=None).lines() == []


def test_a_passing_test_has_to_be_removed_from_the_failures() -> None:
    assert judged({"a": PASSED}, "a", kafka={"a": FAILED}).passed == ["a"]


def test_each_line_has_a_reason() -> None:
    text = "TestA  # share groups are not served\n\nx.py::test_b[1-#2]  # why # not\n"
    assert allowed_failures.parse(text) == {
        "TestA": "share groups are not served",
        "x.py::test_b[1-#2]": "why # not",
    }


@pytest.mark.parametrize(
    "text", ["TestA\n", "TestA  # \n", "  # why\n", "b  # x\na  # x\n", "a  # x\na  # y\n"]
)
def test_a_line_that_is_not_right_is_refused(text: str) -> None:
    with pytest.raises(AllowedError, match=r"line [12]"):
        allowed_failures.parse(text)


@pytest.mark.parametrize("suite", SUITES)
def test_the_list_of_each_suite_is_right(suite: str) -> None:
    assert all(allowed_failures.read(suite).values())


def test_no_list_is_of_no_suite() -> None:
    assert {path.stem for path in allowed_failures.FOLDER.iterdir()} == set(SUITES)
