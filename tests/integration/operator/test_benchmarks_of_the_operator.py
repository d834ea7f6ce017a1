"""``make bench-operator`` and ``make bench-lives`` at small sizes: the printed lines are right."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import operator, topic_churn
from tests.benchmarks.pod_limits import CGROUPS, MEBIBYTE, Limits, limited
from tidemark_devcluster.controlplane.launcher import ControlPlane

pytestmark = pytest.mark.full


@pytest.mark.usefixtures("kubeconfig")
async def test_operator_benchmark_reports_creation_changes_and_disablements(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    # Small sizes: this verifies the lines of the report, not the speed.
    sizes = operator.OperatorBenchSizes(
        topics=6, changes=4, storm=24, disabled=3, settle_s=1, rest_s=1
    )
    lines = await operator.measure(control_plane, tmp_path, sizes)
    assert any(line.startswith("6 Topics accepted in ") for line in lines)
    assert {"6 topics POST", "6 topics APPLY"} <= set(lines)
    assert any(line.startswith("one change among them: p50 ") for line in lines)
    (storm,) = (line for line in lines if "nothing lost" in line)
    assert storm.startswith("24 changes in ")
    (disabled,) = (line for line in lines if "disabled at once" in line)
    assert disabled.startswith("3 disabled at once")
    assert "3 disabled" in disabled
    assert any(line.startswith("at rest, 1 s: writes but the Lease's: ") for line in lines)


@pytest.mark.usefixtures("kubeconfig")
async def test_churn_benchmark_leaves_no_rows(control_plane: ControlPlane, tmp_path: Path) -> None:
    sizes = topic_churn.ChurnSizes(lives=5, wave=3, settle_s=0)
    line = await topic_churn.measure(control_plane, tmp_path, sizes)
    assert line.startswith("5 lives in waves of 3: ")
    assert line.endswith("; 0 rows are left")


def test_benchmark_limits_are_those_of_the_chart() -> None:
    assert str(Limits.of_the_operator()) == "512 MiB, no limit of CPU"
    assert str(Limits.of_the_operator(cpus=0)) == "512 MiB, 0.25 cores"


@pytest.mark.skipif(
    not any(os.access(path, os.W_OK) for path in (CGROUPS, CGROUPS / "memory"))
    or os.geteuid() != 0,
    reason="only root makes a cgroup",
)
@pytest.mark.parametrize(("mebibytes", "status"), [(16, 0), (128, -signal.SIGKILL)])
def test_process_above_the_memory_limit_of_a_pod_is_killed(mebibytes: int, status: int) -> None:
    with limited(Limits(64 * MEBIBYTE, cpus=1)) as cgroup:
        # Touch every page, so that the memory is resident and counts against the limit.
        command = [sys.executable, "-c", f"bytearray({mebibytes} * 2**20)[::4096]"]
        ended = subprocess.run(cgroup.command(command), check=False, timeout=60)
        # 16 MiB fit into 64 MiB; 128 MiB are killed by the kernel.
        assert ended.returncode == status
        assert cgroup.killed() == (status != 0)
        assert mebibytes <= cgroup.most_mb() <= 64 or status
        assert 0 <= cgroup.held_up() <= 1
    # The cgroup's folders are removed afterwards.
    assert not any(folder.exists() for folder in cgroup.folders.values())


def test_slope_excludes_the_first_quarter() -> None:
    # 1 MiB for each 100 lives is 10.24 KiB for each life; the first quarter is a warm-up.
    steady = [(number * 100, 100.0 + number) for number in range(1, 9)]
    assert topic_churn.slope_kb(steady) == pytest.approx(10.24)
    assert topic_churn.slope_kb([(100, 50.0), *steady[1:]]) == pytest.approx(10.24)
    # A single sample gives NaN, which differs from itself.
    assert topic_churn.slope_kb([(100, 50.0)]) != topic_churn.slope_kb([(100, 50.0)]), (
        "no messages can be sent"
    )
