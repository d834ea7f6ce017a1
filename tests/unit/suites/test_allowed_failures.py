"""The list of allowed failures only shrinks."""

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


def test_listed_tests_must_exist_in_a_complete_run() -> None:
    assert judged({"a": PASSED}, "gone").missing == ["gone"]
    assert judged({"a": PASSED}, "gone", whole=False).lines() == []


@pytest.mark.parametrize("kafkas", [FAILED, SKIPPED])
def test_tests_that_kafka_does_not_pass_do_not_apply(kafkas: SuiteOutcome) -> None:
    for outcome in (FAILED, SKIPPED, PASSED):
        assert judged({"a": outcome}, kafka={"a": kafkas}).lines() == []


def test_tests_that_kafka_passes_must_not_be_skipped() -> None:
    assert judged({"a": SKIPPED}, kafka={}).skipped == ["a"]
    assert judged({"a": SKIPPED}, "a", kafka={}).lines() == []
    # Without a run against Kafka, nothing is known about the skipped test.
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
def test_malformed_line_is_refused(text: str) -> None:
    with pytest.raises(AllowedError, match=r"line [12]"):
        allowed_failures.parse(text)


@pytest.mark.parametrize("suite", SUITES)
def test_list_of_each_suite_is_valid(suite: str) -> None:
    assert all(allowed_failures.read(suite).values())


def test_every_list_belongs_to_a_suite() -> None:
    assert {path.stem for path in allowed_failures.FOLDER.iterdir()} == set(SUITES)
