"""Summary of ``make conformance`` for suites that run as usual."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.suites import __main__ as command
from tests.suites import allowed_failures
from tests.suites.outcomes import Report, Result, SuiteOutcome
from tests.suites.packages import Missing
from tests.suites.recorded_results import KAFKAS, OURS, Recorded, load
from tests.suites.targets import Wants

PASSED, FAILED, SKIPPED = SuiteOutcome.PASSED, SuiteOutcome.FAILED, SuiteOutcome.SKIPPED


class StubSuite:
    """A suite of one test for each outcome."""

    name, title, wants = "made", "made 1", Wants()

    def __init__(self, **outcomes: SuiteOutcome) -> None:
        self._outcomes = outcomes
        self.tests = list(outcomes)

    def prepare(self) -> "StubSuite":
        return self

    def run(self, tests: Sequence[str], _: Any, folder: Path, report: Report) -> None:
        assert folder.is_absolute()
        for test in tests:
            report(Result(test, self._outcomes[test], said="why" * (test == "c")))


class Absent(StubSuite):
    """Suite that cannot be installed."""

    def prepare(self) -> "StubSuite":
        raise Missing("there is no cargo")


@contextmanager
def no_cluster(_: Path, __: Wants) -> Iterator[None]:
    yield None


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clusters, and the files of the repository."""
    (tmp_path / "results.json").write_text("{}")
    (tmp_path / "made.txt").write_text("")
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(command, "tidemark", no_cluster)
    monkeypatch.setattr(command, "apache_kafka", no_cluster)
    monkeypatch.setattr(
        command.allowed_failures, "read", lambda name: allowed_failures.parse(_list(tmp_path, name))
    )
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)


def _list(folder: Path, name: str) -> str:
    return (folder / f"{name}.txt").read_text()


def ran(
    monkeypatch: pytest.MonkeyPatch, folder: Path, suite: StubSuite, *arguments: str
) -> tuple[int, dict[str, Recorded]]:
    """Return the exit status and the records."""
    monkeypatch.setattr(command, "SUITES", {"made": suite})
    status = command.main([*arguments, "--logs", str(folder / "logs")])
    records = load((folder / "results.json").read_text())
    return status, dict(records["made"].sides) if "made" in records else {}


def test_run_with_expected_results_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made.txt").write_text("b  # a reason\n")
    status, records = ran(monkeypatch, tmp_path, StubSuite(a=PASSED, b=FAILED))
    assert (status, records) == (0, {OURS: Recorded(1, ("b",), ())})
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "1 suite: 1 passed, 1 failed, 0 skipped; as it should be"


def test_a_failure_that_is_not_listed_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = ran(monkeypatch, tmp_path, StubSuite(a=PASSED, c=FAILED))
    output = capsys.readouterr().out
    assert status == 1
    assert "c failed and is not listed" in output
    assert "    why" in output
    assert output.splitlines()[-1].endswith("1 to look at")


def test_tests_that_kafka_does_not_pass_do_not_fail_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, records = ran(monkeypatch, tmp_path, StubSuite(a=PASSED, b=FAILED), "--kafka")
    assert (status, list(records)) == (0, [KAFKAS])
    # The run against Kafka has recorded that b fails there too.
    status, records = ran(monkeypatch, tmp_path, StubSuite(a=PASSED, b=FAILED))
    assert (status, sorted(records)) == (0, [KAFKAS, OURS])


def test_a_part_of_a_suite_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made.txt").write_text("b  # a reason\n")
    assert ran(monkeypatch, tmp_path, StubSuite(a=PASSED, b=FAILED), "--only", "^a$") == (0, {})
    with pytest.raises(SystemExit):
        ran(monkeypatch, tmp_path, StubSuite(a=PASSED), "--only", "nothing")


def test_missing_suite_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, records = ran(monkeypatch, tmp_path, Absent())
    assert (status, records) == (1, {})
    assert capsys.readouterr().out.splitlines() == [
        "made: cannot be run here: there is no cargo",
        "0 suites: 0 passed, 0 failed, 0 skipped; as it should be; not run: made",
    ]


def test_tests_that_passed_only_when_run_again_are_named_in_the_last_line() -> None:
    results = [Result("a", FAILED), Result("b", PASSED), Result("a", PASSED), Result("c", FAILED)]
    assert command.retried_tests(results) == ["a"]
    ended = command.Ended(Recorded.of(results), (), command.retried_tests(results))
    assert command.summary([ended], []).endswith("; passed only when run again: a")
