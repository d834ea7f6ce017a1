"""The folder of a local cluster: found from below, measured, and removed without other files."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark_cli.main import app
from tidemark_cli.sizes import bytes_of, size_text
from tidemark_cli.tier.tables import spark_log
from tidemark_devcluster.layout import Layout, nearest
from tidemark_devcluster.settings import LocalClusterSettings
from tidemark_devcluster.toolchain.cache import locked, user_cache
from tidemark_devcluster.toolchain.packages import ensure_spark

DIRECTORY = Path(".tidemark")


@pytest.fixture
def cluster(tmp_path: Path) -> Layout:
    """Return the layout of a cluster that does not run."""
    layout = Layout(tmp_path / "project" / DIRECTORY)
    layout.create()
    LocalClusterSettings("tidemark", "default", "directory", "", 1025, 1026).save(layout)
    return layout


def test_cluster_is_found_from_a_subfolder(
    cluster: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = cluster.root.parent / "examples" / "01"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert nearest(DIRECTORY).resolve() == cluster.root
    # A cluster of the working directory itself takes precedence.
    (below / DIRECTORY).mkdir()
    assert nearest(DIRECTORY) == DIRECTORY


def test_folder_without_a_cluster_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert nearest(DIRECTORY) == DIRECTORY
    assert nearest(tmp_path / "named") == tmp_path / "named"


def test_down_says_what_stays_and_how_to_remove_it(cluster: Layout) -> None:
    (cluster.root / "tier").mkdir()
    (cluster.root / "tier" / "segment").write_bytes(bytes(12_000_000))
    done = CliRunner().invoke(app, ["down", "--dir", str(cluster.root)])
    assert done.exit_code == 0, done.output
    assert (
        f"{cluster.root} keeps 12 MB of data; remove it with: tidemark down --purge" in done.output
    )
    done = CliRunner().invoke(app, ["down", "--purge", "--dir", str(cluster.root)])
    assert "removed the cluster" in done.output
    assert not cluster.root.exists()


def test_purge_leaves_files_of_other_programs(cluster: Layout) -> None:
    (cluster.root / "thesis.txt").write_text("mine")
    done = CliRunner().invoke(app, ["down", "--purge", "--dir", str(cluster.root)])
    assert "the folder stays, as other files are in it" in done.output
    assert [path.name for path in cluster.root.iterdir()] == ["thesis.txt"]


def test_env_of_a_cluster_that_is_down_says_how_to_start_it(cluster: Layout) -> None:
    done = CliRunner().invoke(app, ["env", "--dir", str(cluster.root)])
    assert done.exit_code == 1
    assert "start the cluster with: tidemark up" in done.output


def test_no_broker_is_added_before_those_of_the_start(cluster: Layout) -> None:
    """Refuse, because it would take the id of one that ``tidemark up`` is about to create."""
    done = CliRunner().invoke(app, ["broker", "add", "--dir", str(cluster.root)])
    assert done.exit_code == 1
    assert "has no brokers yet: run `tidemark up`, or wait until it is ready" in " ".join(
        done.output.split()
    )


def test_cache_is_listed_and_cleared_unless_a_build_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Without Go its shared caches, which may be large, are not measured.
    monkeypatch.setenv("PATH", "")
    program = user_cache() / "bin" / "program"
    program.parent.mkdir(parents=True)
    program.write_bytes(bytes(3_400_000))
    done = CliRunner().invoke(app, ["cache"])
    assert f"3.4 MB  {program.parent}" in done.output
    lock = user_cache() / "locks" / "program.lock"
    with locked(lock, on_wait=lambda: None):
        done = CliRunner().invoke(app, ["cache", "--clear"])
        assert done.exit_code == 1
        assert "a build is running" in done.output
        assert program.exists()
    done = CliRunner().invoke(app, ["cache", "--clear"])
    assert done.exit_code == 0, done.output
    assert not user_cache().exists()


def test_compiled_decoders_are_in_the_listed_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("PATH", "")
    ensure_spark(print)
    (user_cache() / "numba").mkdir(parents=True)
    assert os.environ["NUMBA_CACHE_DIR"] == str(user_cache() / "numba")
    assert f"{user_cache() / 'numba'}" in CliRunner().invoke(app, ["cache"]).output


def test_log_of_spark_is_one_of_the_clusters_logs(
    cluster: Layout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So that ``down --purge`` removes it."""
    assert spark_log(None, cluster.root) == cluster.log("spark")
    assert str(cluster.log("spark")) in capsys.readouterr().err
    assert spark_log(tmp_path / "mine.log", cluster.root) == tmp_path / "mine.log"
    monkeypatch.chdir(tmp_path)
    assert spark_log(None, Path(".tidemark")) == Path("spark.log")


def test_sizes_are_those_of_files_in_decimal_units(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(700))
    # Only the link itself is counted, not the folder that it names.
    (tmp_path / "link").symlink_to("/usr")
    assert 700 <= bytes_of(tmp_path) < 1000
    assert bytes_of(tmp_path / "missing") == 0
    sizes = {12: "12 bytes", 1500: "1.5 kB", 250_000_000: "250 MB", 5_900_000_000: "5.9 GB"}
    assert {size: size_text(size) for size in sizes} == sizes
