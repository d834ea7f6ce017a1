"""Each example does what its page says: its commands are run as they stand, on one cluster."""

import ast
import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conformance.local_cluster import RunningCluster
from tests.table_jars import MavenMissing, jars
from tidemark_cli.records.flights import load
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.java import JavaMissing, find_java

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = sorted(EXAMPLES.glob("[0-9][0-9]-*/README.md"))
NEED_JAVA = {"05-spark-job", "10-export", "11-export-resource", "12-delays-by-hour"}
#: The others are as long again: `make test-long` runs them.
SHORT = {"01-first-topic"}
#: Too dear for every run: `make export-kills` runs it.
ASKED_FOR = dict.fromkeys(("10-export", "11-export-resource"), "EXPORT_EXAMPLE")
_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_page(page: Path, cluster: RunningCluster, output: Path) -> str:
    """Run every command of a page; what they said. Fails at the first that does."""
    commands = "".join(_COMMANDS.findall(page.read_text(encoding="utf-8")))
    assert commands, f"{page} has no commands"
    # The page's own commands find the running cluster through these variables.
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TIDEMARK_DIR": str(cluster.local.layout.root),
        "BOOTSTRAP_SERVERS": cluster.bootstrap,
        "OUTPUT": str(output),
        "COLUMNS": "200",
    }
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", commands],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def topic_names(cluster: RunningCluster) -> set[str]:
    """Return the topics that users created; brokers create their own where a client names a
    group.
    """
    return {
        topic["metadata"]["name"]
        for topic in cluster.kube.objects("Topic")
        if "tidemark.dev/internal" not in topic["metadata"].get("labels", {})
    }


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(item, marks=[] if item.parent.name in SHORT else pytest.mark.long)
        for item in PAGES
    ],
    ids=lambda page: page.parent.name,
)
def test_example_commands_succeed(
    page: Path, local_cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ASKED_FOR.get(page.parent.name)
    if asked and not os.environ.get(asked):
        pytest.skip(f"run by make export-kills, which sets {asked}")
    if page.parent.name in NEED_JAVA:
        try:
            find_java()
            monkeypatch.setenv("ICEBERG_JAR", str(jars(Format.ICEBERG)[0]))
        except (JavaMissing, MavenMissing) as error:
            pytest.skip(str(error))
    before = topic_names(local_cluster)
    said = run_page(page, local_cluster, tmp_path / "output")
    assert EXPECTED[page.parent.name] in said
    LOOKED_AT.get(page.parent.name, lambda _: None)(tmp_path / "output")
    # Each cleans up after itself.
    assert topic_names(local_cluster) == before


def delays_are_those_of_the_flights(output: Path) -> None:
    """The query's answer, against what plain Python makes of the same flights."""
    by_hour: dict[str, list[int | None]] = {}
    for flight in map(json.loads, (flight.value for flight in load(30_000))):
        by_hour.setdefault(str(flight["hour"]), []).append(flight["dep_delay"])
    with (output / "delays.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["hour"]: row for row in csv.DictReader(file)}
    assert rows.keys() == by_hour.keys()
    for hour, delays in by_hour.items():
        known = [delay for delay in delays if delay is not None]
        row = rows[hour]
        assert int(row["flights"]) == len(delays)
        assert int(row["cancelled"]) == len(delays) - len(known)
        assert float(row["mean_delay"]) == pytest.approx(sum(known) / len(known), abs=0.051)
    assert (output / "delays.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


#: Of some, what they leave in their folder.
LOOKED_AT = {"12-delays-by-hour": delays_are_those_of_the_flights}
#: Beside the exit status of every command: what a reader is to see.
EXPECTED = {
    "01-first-topic": "read 1,000 records",
    "02-tiering-on-and-off": "Disabled (epoch 2)",
    "03-record-deletion": "read 2,000 records",
    "04-waiting-for-a-broker": "-1",
    "05-spark-job": "|AA     |635 ",
    "06-gitops-folder": "topic.tidemark.dev/searches condition met",
    "07-failure-drill": "read 2,000 records",
    "08-stock-clients": "900 records: {",
    "10-export": "UA\t552\t8.9",
    "11-export-resource": "db.departures",
    "12-delays-by-hour": "hours of 30000 flights",
}


def test_topics_of_examples_have_names_of_their_own() -> None:
    """Otherwise an example would meet the topic of another one, or of the quickstart."""
    folders: dict[str, set[str]] = {}
    for page in PAGES:
        for manifest in page.parent.glob("*.yaml"):
            for body in yaml.safe_load_all(manifest.read_text(encoding="utf-8")):
                if body["kind"] == "Topic":
                    folders.setdefault(body["metadata"]["name"], set()).add(page.parent.name)
        created = re.findall(r"clients\.py create (\S+)", page.read_text(encoding="utf-8"))
        for name in created:
            folders.setdefault(name, set()).add(page.parent.name)
    assert len(folders) > len(PAGES)
    assert not {name: found for name, found in folders.items() if len(found) > 1}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_commands_install_the_packages_of_a_script(page: Path) -> None:
    commands = "".join(_COMMANDS.findall(page.read_text(encoding="utf-8")))
    for script in re.findall(r"python (examples/\S+\.py)", commands):
        before = commands.split(script)[0]
        targets = ["run", *re.findall(r"^make (.+)$", before, re.MULTILINE)]
        installed = {
            line.partition("==")[0].replace("-", "_")
            for target in " ".join(targets).split()
            for line in (ROOT / "requirements" / f"{target}.txt").read_text().splitlines()
        }
        for node in ast.walk(ast.parse((ROOT / script).read_text(encoding="utf-8"))):
            modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            modules += [item.name for item in node.names] if isinstance(node, ast.Import) else []
            for name in {module.partition(".")[0] for module in modules}:
                assert name in sys.stdlib_module_names | installed, f"{script} needs {name}"


def test_every_example_is_run() -> None:
    assert {page.parent.name for page in PAGES} == set(EXPECTED)
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(name in listed for name in EXPECTED)
