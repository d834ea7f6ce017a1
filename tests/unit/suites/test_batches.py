"""No test is lost, however its program ends, and no process outlives its program."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.suites import child_processes
from tests.suites.batches import Program, SuiteBatch, run
from tests.suites.child_processes import Child
from tests.suites.outcomes import Result, SuiteOutcome
from tests.suites.outputs import Began, GoTest

PASSED, FAILED = SuiteOutcome.PASSED, SuiteOutcome.FAILED

#: Program that runs tests as Go does. The name of a test determines what it does.
PROGRAM = """
import os, sys, time
for test in sys.argv[1:]:
    print(f"\\x16=== RUN   {test}", flush=True)
    if test == "TestHangs":
        time.sleep(60)
    if test == "TestCrashes":
        os._exit(3)
    fails = test in ("TestFails", "TestPanics")
    print(f"\\x16--- {'FAIL' if fails else 'PASS'}: {test} (0.01s)", flush=True)
    if test == "TestPanics":
        os._exit(2)
"""


def ran(
    tests: Sequence[str], folder: Path, source: str = PROGRAM
) -> dict[str, tuple[SuiteOutcome, str]]:
    """Return the outcome and the message of each test."""
    results: list[Result] = []
    program = Program(
        command=lambda some: [sys.executable, "-c", source, *some],
        reader=GoTest(),
        folder=folder,
    )
    log = folder / "output.log"
    run(program, tests, limit_s=lambda _: 0.7, log=log, report=results.append)
    assert len(results) == len({result.test for result in results})
    return {result.test: (result.outcome, result.said) for result in results}


def test_program_that_completes_is_started_once(tmp_path: Path) -> None:
    assert ran(["TestA", "TestFails", "TestB"], tmp_path) == {
        "TestA": (PASSED, ""),
        "TestFails": (FAILED, ""),
        "TestB": (PASSED, ""),
    }
    assert (tmp_path / "output.log").read_text().count("=== RUN") == 3


def test_tests_after_a_hang_or_a_crash_run(tmp_path: Path) -> None:
    assert ran(["TestA", "TestHangs", "TestB", "TestCrashes", "TestC"], tmp_path) == {
        "TestA": (PASSED, ""),
        "TestHangs": (FAILED, "took longer than 1 s"),
        "TestB": (PASSED, ""),
        "TestCrashes": (FAILED, "the program ended with status 3 before the test did"),
        "TestC": (PASSED, ""),
    }


def test_panic_is_not_blamed_on_the_next_test(tmp_path: Path) -> None:
    assert ran(["TestA", "TestPanics", "TestB"], tmp_path) == {
        "TestA": (PASSED, ""),
        "TestPanics": (FAILED, ""),
        "TestB": (PASSED, ""),
    }


def test_tests_after_a_silent_hang_run(tmp_path: Path) -> None:
    """Rust's program prints nothing until a test has ended."""
    source = PROGRAM.replace('print(f"\\x16=== RUN   {test}", flush=True)', "pass")
    assert "=== RUN" not in source
    assert ran(["TestHangs", "TestA", "TestCrashes", "TestB"], tmp_path, source) == {
        "TestHangs": (FAILED, "took longer than 1 s"),
        "TestA": (PASSED, ""),
        "TestCrashes": (FAILED, "the program ended with status 3 before the test did"),
        "TestB": (PASSED, ""),
    }


def test_remains_of_an_ended_test_are_repaired_before_each_start(tmp_path: Path) -> None:
    starts: list[int] = []
    program = Program(
        command=lambda some: [sys.executable, "-c", PROGRAM, *some],
        reader=GoTest(),
        folder=tmp_path,
        prepare=lambda: starts.append(len(starts)),
    )
    tests = ["TestA", "TestCrashes", "TestB"]
    run(program, tests, limit_s=lambda _: 9, log=tmp_path / "log", report=lambda _: None)
    assert starts == [0, 1]


def test_a_program_that_runs_no_test_is_started_twice(tmp_path: Path) -> None:
    source = "print('cannot connect'); raise SystemExit(2)"
    found = ran([f"Test{number}" for number in range(500)], tmp_path, source)
    assert set(found.values()) == {(FAILED, "the program ended with status 2 before the test did")}
    # The second start shows that no test is to blame, and there is no third one.
    assert (tmp_path / "output.log").read_text().count("cannot connect") == 2


def test_child_processes_end_with_their_program(tmp_path: Path) -> None:
    source = "import subprocess; child = subprocess.Popen(['sleep', '60'])\n"
    source += "print(child.pid, flush=True); child.wait()"
    with Child(
        [sys.executable, "-c", source], folder=tmp_path, environ={}, errors=tmp_path / "errors"
    ) as child:
        grandchild = int(child.output.readline())
        assert child.alive
    # The kernel ends a process a moment after its signal.
    deadline = time.monotonic() + 10
    while _runs(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.abort()", -6)]
)
def test_a_status_is_reported_more_than_once(tmp_path: Path, code: str, status: int) -> None:
    os.environ.pop("PYTHONFAULTHANDLER", None)
    with Child(
        [sys.executable, "-c", code], folder=tmp_path, environ={}, errors=tmp_path / "errors"
    ) as child:
        assert child.wait(10) == child.wait(10) == status
        assert not child.alive


def test_a_program_that_does_not_stop_on_request_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_processes, "_STOP_S", 0.3)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf += "print('deaf', flush=True); time.sleep(60)"
    command, errors = [sys.executable, "-c", deaf], tmp_path / "errors"
    with Child(command, folder=tmp_path, environ={}, errors=errors) as child:
        assert child.output.readline() == b"deaf\n"
        assert child.stop() is None
        assert not child.alive


# ---------------------------------------------------------------- pending tests


def test_continuing_test_is_the_late_one() -> None:
    """Go's parallel tests begin, wait until the others have ended, and continue."""
    batch = SuiteBatch(["TestA", "TestB", "TestC"])
    batch.started(0)
    for now, event in enumerate((Began("TestA"), Began("TestB"), Result("TestB", PASSED)), 1):
        batch.read(event, now)
    batch.read(Began("TestA"), 10)
    assert batch.current == "TestA"
    # The test continued at 10 s, so that 3 s of its 5 s are left at 12 s.
    assert batch.late_s(5, 12) == 3
    (lost,) = batch.lost("late", 15)
    assert (lost.test, lost.outcome, lost.seconds) == ("TestA", FAILED, 5)
    assert batch.left == ["TestC"]


def test_next_test_runs_without_a_start_line() -> None:
    batch = SuiteBatch(["a", "b"])
    batch.started(0)
    assert batch.current == "a"
    batch.read(Result("a", PASSED), 1)
    assert batch.current == "b"


def test_passed_test_may_fail_in_its_teardown() -> None:
    batch = SuiteBatch(["a", "b"])
    batch.started(0)
    assert batch.read(Result("a", PASSED), 1) == Result("a", PASSED)
    assert batch.read(Result("a", FAILED), 2) == Result("a", FAILED)
    assert batch.read(Result("a", PASSED), 3) is None
    assert batch.left == ["b"]


def test_results_of_unknown_tests_are_ignored() -> None:
    batch = SuiteBatch(["a"])
    batch.started(0)
    assert batch.read(Result("unknown", PASSED), 1) is None
    assert batch.left == ["a"]


def test_a_test_that_runs_again_does_not_count_as_lost() -> None:
    batch = SuiteBatch(["a", "b"])
    batch.started(0)
    batch.read(Result("a", PASSED), 1)
    # The program is started again, and repeats a test that has passed.
    batch.started(2)
    batch.read(Began("a"), 3)
    assert [result.test for result in batch.lost("crashed", 4)] == ["b"]
    assert batch.left == []
