"""Parsers of test programs' output, with lines as the programs print them."""

import pytest

from tests.suites.librdkafka import LibrdkafkaTest
from tests.suites.outcomes import Result, SuiteOutcome
from tests.suites.outputs import Began, Event, GoTest, OutputReader, Pytest, RustTest

GO = [
    "\x16=== RUN   TestA",
    "\x16=== RUN   TestA/sub/x",
    "    x_test.go:3: hey",
    "\x16--- PASS: TestA/sub/x (0.00s)",
    "\x16=== NAME  TestA",
    "no newline\x16--- PASS: TestA (1.25s)",
    "\x16=== RUN   TestB",
    "\x16=== PAUSE TestB",
    "\x16=== CONT  TestB",
    "\x16--- SKIP: TestB (0.00s)",
    "\x16=== RUN   TestC",
    "--- PASS: TestC (0.00s)",
    "\x16--- FAIL: TestC (0.50s)",
    "panic: boom [recovered, repanicked]",
]
PYTEST = [
    "collecting ... collected 4 items",
    "",
    "test/integration/test_a.py::test_one[a b-None] PASSED                 [ 20%]",
    "test/integration/test_a.py::test_two SKIPPED (needs a JVM)            [ 40%]",
    "test/integration/test_a.py::TestX::test_three FAILED                  [ 60%]",
    "test/integration/test_a.py::test_four ERROR                           [ 80%]",
    "test/integration/test_a.py::test_five XFAIL (known)                   [ 90%]",
    "test/integration/test_a.py::test_six PASSED                           [100%]Done!",
    "FAILED test/integration/test_a.py::TestX::test_three - assert 0",
]
RUST = [
    "running 3 tests",
    "test test_one ... ok",
    "%3|17|FAIL| test two::test_two ... FAILED",
    "test test_three ... ignored, needs a broker",
    "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out",
]
RDKAFKA = [
    "\x1b[36m[<MAIN> /  0.000s] Setting test timeout to 10s * 1.0",
    "\x1b[36m[0001_multiobj   /  0.000s] ====== Running test 0001_multiobj ======",
    "\x1b[32m================= Test 0001_multiobj PASSED =================\x1b[0m",
    "[0005_order      /  0.000s] ================= Running test 0005_order =================",
    '\x1b[31m### Test "0005_order (sub one)" failed at 0005-order.c:42:dr_cb() at Mon Nov 23: ###',
    "[0019_list_groups /  0.000s] ===== Running test 0019_list_groups =====",
    "\x1b[33m[0019_list_groups /  0.100s] WARN: SKIPPING TEST: KAFKA_PATH missing",
    "================= Test 0019_list_groups SKIPPED =================",
]
PASSED, FAILED, SKIPPED = SuiteOutcome.PASSED, SuiteOutcome.FAILED, SuiteOutcome.SKIPPED
ROOT = "test/integration/test_a.py"


def read(reader: OutputReader, lines: list[str]) -> list[Event]:
    return [event for line in lines for event in reader.read(line)]


def test_only_outer_tests_of_go_count() -> None:
    assert read(GoTest(), GO) == [
        Began("TestA"),
        Result("TestA", PASSED, 1.25),
        Began("TestB"),
        # The test was paused, and continues.
        Began("TestB"),
        Result("TestB", SKIPPED),
        Began("TestC"),
        # A result without the marker byte is a test's own output.
        Result("TestC", FAILED, 0.5),
    ]


def test_verbose_lines_of_pytest_are_parsed() -> None:
    assert read(Pytest(), PYTEST) == [
        Result(f"{ROOT}::test_one[a b-None]", PASSED),
        Result(f"{ROOT}::test_two", SKIPPED),
        Result(f"{ROOT}::TestX::test_three", FAILED),
        Result(f"{ROOT}::test_four", FAILED),
        Result(f"{ROOT}::test_five", SKIPPED),
        Result(f"{ROOT}::test_six", PASSED),
    ]


def test_rusts_tests_are_named_after_their_program() -> None:
    assert read(RustTest("admin"), RUST) == [
        Result("admin::test_one", PASSED),
        Result("admin::two::test_two", FAILED),
        Result("admin::test_three", SKIPPED),
    ]


@pytest.mark.parametrize("reader", [GoTest(), Pytest(), RustTest("p")], ids=["go", "py", "rust"])
def test_other_lines_are_ignored(reader: OutputReader) -> None:
    assert read(reader, ["", "PASS", "test", "::", "--- PASS", "ok  \tpackage\t0.1s"]) == []


def test_librdkafkas_runner() -> None:
    assert read(LibrdkafkaTest(), RDKAFKA) == [
        Began("0001_multiobj"),
        Result("0001_multiobj", PASSED),
        Began("0005_order"),
        Result("0005_order", FAILED),
        Began("0019_list_groups"),
        Result("0019_list_groups", SKIPPED),
        # The runner reports the skipped test in two lines.
        Result("0019_list_groups", SKIPPED),
    ]
