"""A few tests of other people's suites, so that what `make conformance` has once found to be right
stays so. A suite that was never run as a whole against ours is left out here.
"""

from pathlib import Path

import pytest
from local_cluster import RunningCluster

from tests.suites import allowed_failures
from tests.suites.outcomes import Result, SuiteOutcome
from tests.suites.short_selection import SHORT, has_been_run, selected
from tests.suites.targets import Tidemark

pytestmark = pytest.mark.full


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name == "java-tools" else []) for name in SHORT],
)
def test_selected_tests_of_suite_pass(cluster: RunningCluster, tmp_path: Path, name: str) -> None:
    if not has_been_run(name):
        pytest.skip(f"make conformance SUITE={name} has not been run yet")
    suite, tests = selected(name)
    may_fail = allowed_failures.read(name)
    tests = [test for test in tests if test not in may_fail]
    results: list[Result] = []
    # The suite sees only bootstrap servers, as for a cluster it did not start.
    target = Tidemark(cluster.local, cluster.bootstrap.split(","))
    suite.run(tests, target, tmp_path, results.append)
    # Go runs those that may run side by side behind all others.
    assert sorted(result.test for result in results) == sorted(tests)
    log = (tmp_path / "output.log").read_text("utf-8", errors="replace")
    assert [result for result in results if result.outcome is not SuiteOutcome.PASSED] == [], log[
        -5000:
    ]
