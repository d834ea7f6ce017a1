"""Published jars: Maven's output is counted, missing programs are named, and sets are complete."""

from pathlib import Path

import pytest

from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.settings import KAFKA, LocalClusterSettings
from tidemark_devcluster.toolchain import ToolchainError, maven
from tidemark_devcluster.toolchain.progress import PlainProgress

JARS = maven.JarSet(name="apache-kafka", version="1.2.3", version_property="kafka.version", jars=2)
JAVA = "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n"
FETCHES = """#!/bin/sh
for each; do case "$each" in -DoutputDirectory=*) folder="${each#-DoutputDirectory=}";; esac; done
mkdir -p "$folder"; echo "$@" > "$folder/arguments"
"""
FAILS = "#!/bin/sh\necho '[ERROR] no route to host'; echo '[INFO] hint'; exit 1\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder in which programs are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for tool in ("mkdir", "sh"):
        (folder / tool).symlink_to(f"/bin/{tool}")
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    (folder / name).chmod(0o755)


def ensure(tmp_path: Path) -> Path:
    with (tmp_path / "said").open("w", encoding="utf-8") as output:
        return maven.ensure_jars(JARS, progress=PlainProgress(output), cache=tmp_path / "cache")


def test_jars_are_counted_and_errors_kept() -> None:
    reports: list[tuple[str, float]] = []
    lines = [
        "[INFO] Downloading from central: https://repo.example/a.jar\n",
        "[INFO] Downloaded from central: https://repo.example/a.jar (1 MB at 2 MB/s)\n",
        "[INFO] Downloaded from central: https://repo.example/a.pom (1 kB at 2 kB/s)\n",
        "[INFO] Downloaded from central: https://repo.example/b.jar (1 MB at 2 MB/s)\n",
        "[ERROR] c.jar: not found\n",
    ]
    last = maven.follow(lines, 4, lambda detail, fraction: reports.append((detail, fraction)))
    assert reports == [("1 jars", 0.25), ("2 jars", 0.5)]
    assert list(last) == ["[ERROR] c.jar: not found"]


def test_without_java_the_error_names_the_installation(path: Path, tmp_path: Path) -> None:
    with pytest.raises(maven.MavenMissing, match="no java on the PATH; install Java 17"):
        ensure(tmp_path)


def test_without_maven_the_error_names_the_installation(path: Path, tmp_path: Path) -> None:
    program(path, "java", JAVA)
    with pytest.raises(maven.MavenMissing, match=r"Maven .*apt install maven"):
        ensure(tmp_path)


def test_fetched_jars_are_found_without_maven(path: Path, tmp_path: Path) -> None:
    program(path, "java", JAVA)
    program(path, "mvn", FETCHES)
    folder = ensure(tmp_path)
    assert "-Dkafka.version=1.2.3" in (folder / "arguments").read_text(encoding="utf-8")
    # Without Maven, only the cache can have the jars.
    (path / "mvn").unlink()
    assert ensure(tmp_path) == folder


def test_a_local_cluster_reports_missing_java_before_it_starts_anything(
    path: Path, tmp_path: Path
) -> None:
    """With jars in the cache, this would only be noticed once the control plane runs."""
    layout = Layout(tmp_path / "cluster")
    layout.create()
    settings = LocalClusterSettings("c", "default", "directory", "", 1, 2, KAFKA)
    cluster = LocalCluster(layout, settings, print)
    with pytest.raises(maven.MavenMissing, match="no java on the PATH"):
        cluster.start(brokers=1)
    assert not layout.control_plane.exists()


def test_mavens_output_is_reported_on_failure(path: Path, tmp_path: Path) -> None:
    program(path, "java", JAVA)
    program(path, "mvn", FAILS)
    with pytest.raises(ToolchainError, match="no route to host") as raised:
        ensure(tmp_path)
    assert not isinstance(raised.value, maven.MavenMissing)
    # An incomplete set is not left in the cache.
    assert not [path_ for path_ in (tmp_path / "cache" / "jars").rglob("*") if path_.is_file()]


@pytest.mark.parametrize("jars", [maven.KAFKA, maven.spark_kafka("4.1.3")])
def test_each_pom_takes_the_version_that_it_is_given(jars: maven.JarSet) -> None:
    text = jars.pom.read_text(encoding="utf-8")
    assert f"${{{jars.version_property}}}" in text
    assert f">{jars.version}<" not in text
