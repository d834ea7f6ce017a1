"""Notebooks of examples/ run from their first cell to their last, and leave what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.test_examples import ROOT, topic_names
from tests.conformance.local_cluster import RunningCluster
from tests.table_jars import MavenMissing, jars
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.java import JavaMissing, find_java

NOTEBOOKS = ROOT / "examples" / "notebooks"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_delays_step_by_step(local_cluster: RunningCluster, tmp_path: Path) -> None:
    try:
        find_java()
        jars(Format.ICEBERG)
    except (JavaMissing, MavenMissing) as error:
        pytest.skip(str(error))
    # The notebook has to delete the topics that it creates.
    before = topic_names(local_cluster)
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebooks", str(NOTEBOOKS / "delays.ipynb")],
        cwd=ROOT,
        env={
            **os.environ,
            "TIDEMARK_DIR": str(local_cluster.local.layout.root),
            "OUTPUT": str(tmp_path),
            "MPLBACKEND": "agg",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "30,000 rows" in done.stdout
    assert "0 offsets behind" in done.stdout
    assert (tmp_path / "delays.png").read_bytes().startswith(PNG)
    assert topic_names(local_cluster) == before
