"""The main job as a user runs it, with fewer records: the demo's own checks decide."""

import subprocess
from pathlib import Path

import pytest

from e2e.commands import TIDEMARK


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tier", ["directory", pytest.param("s3", marks=pytest.mark.long)])
def test_every_demo_check_passes(tier: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*TIDEMARK, "demo", "--tier", tier, "--flights", "200000"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " 0 failed" in done.stdout
