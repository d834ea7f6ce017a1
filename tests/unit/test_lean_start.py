"""Programs start without what they may never need."""

import inspect
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tidemark_cli.main import Commands, PluginCommands


@pytest.mark.parametrize("server", ["tidemark_broker", "tidemark_operator"])
def test_a_server_does_not_import_hypothesis(server: str) -> None:
    command = (sys.executable, "-X", "importtime", "-m", server, "--help")
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "kio.static._phantom" in imported
    assert "hypothesis.core" not in imported


#: Runs a server and sends it a signal as soon as it imports its own modules.
SIGNALLED_EARLY = """
import os, runpy, sys
server, module, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
class Telling:
    def find_spec(self, name, path, target=None):
        if name == f"{server}.{module}":
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Telling())
sys.argv = [server, "--config", "/nothing"]
runpy.run_module(server, run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("server", "module"), [("tidemark_broker", "main"), ("tidemark_operator", "process")]
)
def test_a_server_that_still_imports_ends_on_a_signal(
    server: str, module: str, number: int
) -> None:
    """A handler ends it with a status of its own: without a handler, process 1 would not end."""
    command = (sys.executable, "-c", SIGNALLED_EARLY, server, module, str(int(number)))
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


CONTROL = "tidemark.wire.control"
MODEL = "tidemark_operator.controller.state.model"
SPEC = "tidemark_operator.resources.schema"
BUILD = "tidemark_devcluster.toolchain.build"
#: Packages and modules that slow a command's start: Spark, Kafka's schema and nodes, the importers,
#: the models of the resources, what builds Go programs.
HEAVY = {
    "hypothesis",
    "kio",
    "kubernetes",
    "numba",
    "pyarrow",
    "pyspark",
    "textual",
    "urllib3",
    "yaml",
    "tidemark_cli.imports",
    "tidemark_devcluster.kafka_nodes",
    "tidemark_pipeline.session",
    BUILD,
    CONTROL,
    MODEL,
    SPEC,
}
#: Each command, as its help starts it, and the slow modules that it needs all the same.
STARTS: dict[str, set[str]] = {
    "": set(),
    "up": set(),
    "down": set(),
    "env": set(),
    "kubectl": {BUILD},
    "cache": set(),
    "broker": set(),
    "broker kill": set(),
    "status": set(),
    "why": set(),
    "check": set(),
    "report": set(),
    "top": {"kio", CONTROL},
    "produce": set(),
    "consume": set(),
    "topics": set(),
    "topics describe": set(),
    "groups": set(),
    "groups reset": set(),
    "sweep": {SPEC},
    "rewrap": {SPEC},
    "restore": {SPEC},
    "import": {"kio", "yaml", CONTROL, MODEL, SPEC, "tidemark_cli.imports"},
    "demo": {"kio", "pyarrow", BUILD, SPEC},
    "spark": {"kio", CONTROL, SPEC},
}
STARTED = """
import sys, tidemark_cli.main
try:
    tidemark_cli.main.app(sys.argv[1:], prog_name="tidemark")
finally:
    print(*(name for name, module in sys.modules.items() if module), file=sys.stderr)
"""


@pytest.mark.parametrize("command", STARTS)
def test_a_command_imports_only_what_it_needs(command: str) -> None:
    started = (sys.executable, "-c", STARTED, *command.split(), "--help")
    finished = subprocess.run(started, capture_output=True, text=True, timeout=60, check=True)
    imported = set(finished.stderr.split())
    assert "tidemark_cli.main" in imported
    assert imported & HEAVY <= STARTS[command]


PLUGIN_ALONE = """
import sys
sys.modules["tidemark_devcluster"] = None  # as if it were not installed
from tidemark_cli.main import plugin
plugin(sys.argv[1:], prog_name="kubectl-tidemark")
"""


@pytest.mark.parametrize("command", PluginCommands.rows)
def test_the_plugin_needs_no_development_cluster(command: str, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    started = (sys.executable, "-c", PLUGIN_ALONE, command, "--kubeconfig", str(missing))
    finished = subprocess.run(started, capture_output=True, text=True, timeout=60, check=False)
    assert "the file does not exist" in " ".join(finished.stderr.split())
    assert finished.returncode == 1


def test_every_command_of_the_help_is_bounded() -> None:
    assert Commands.rows.keys() <= STARTS.keys()


@pytest.mark.parametrize("name", Commands.rows)
def test_the_help_of_all_commands_shows_the_summary_of_each(name: str) -> None:
    row = Commands.rows[name]
    found = row.load()
    text = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
    assert row.summary == " ".join(str(text).split("\n\n")[0].split())


def test_planning_on_spark_imports_no_decoder() -> None:
    """Spark starts three processes for each query before any executor reads a row."""
    load = "import sys, tidemark_pipeline.source; print(*sys.modules)"
    finished = subprocess.run(
        (sys.executable, "-c", load), capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.split(".")[0] for name in finished.stdout.split()}
    assert "tidemark_pipeline" in loaded
    assert not loaded & {"numba", "kio"}


def test_imported_objects_are_frozen_for_the_collector() -> None:
    script = (
        "import gc\n"
        "from tidemark.lean_start import importing\n"
        "with importing():\n"
        "    assert not gc.isenabled()\n"
        "    import json\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1000)\n"
        "print(any(each is json for each in gc.get_objects()))\n"
    )
    finished = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, timeout=60, check=True
    )
    assert finished.stdout.split() == ["True", "True", "False"]


def test_a_broker_with_many_live_objects_rarely_looks_at_all_of_them() -> None:
    """Half a million objects are what the connections and requests of 5,000 members add."""
    script = (
        "import gc\n"
        "from tidemark_broker.main import collect_rarely\n"
        "collect_rarely()\n"
        "before = gc.get_stats()[2]['collections']\n"
        "live = [[] for _ in range(500_000)]\n"
        "print(gc.get_stats()[2]['collections'] - before, gc.get_stats()[1]['collections'] > 10)\n"
    )
    finished = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, timeout=60, check=True
    )
    assert finished.stdout.split() == ["0", "True"]
