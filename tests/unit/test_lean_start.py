"""Programs start without what they may never need."""

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("server", ["tidemark_broker", "tidemark_operator"])
def test_a_server_does_not_import_hypothesis(server: str) -> None:
    command = (sys.executable, "-X", "importtime", "-m", server, "--help")
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()}
    assert "kio.static._phantom" in imported
    assert "hypothesis.core" not in imported


#: Runs a server, which is told to end when it imports what it is made of.
TOLD_EARLY = """
import os, runpy, sys
server, number = sys.argv[1], int(sys.argv[2])
class Telling:
    def find_spec(self, name, path, target=None):
        if name == f"{server}.main":
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Telling())
sys.argv = [server, "--config", "/nothing"]
runpy.run_module(server, run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("server", ["tidemark_broker", "tidemark_operator"])
def test_a_server_that_still_imports_ends_when_it_is_told(server: str, number: int) -> None:
    """By a handler (a status of its own), for without one process 1 does not end."""
    command = (sys.executable, "-c", TOLD_EARLY, server, str(int(number)))
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_the_command_line_does_not_load_the_screen() -> None:
    """Only ``tidemark top`` on a terminal has one."""
    load = "import sys, tidemark_cli.main, tidemark_cli.kubectl_plugin; print(*sys.modules)"
    said = subprocess.run(
        (sys.executable, "-c", load), capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(said.stdout.split())
    assert "tidemark_cli.commands.top" in loaded
    assert not {name for name in loaded if name.split(".")[0] == "textual"}


def test_planning_on_spark_imports_no_decoder() -> None:
    """Spark starts three processes for each query before any executor reads a row."""
    load = "import sys, tidemark_pipeline.source; print(*sys.modules)"
    said = subprocess.run(
        (sys.executable, "-c", load), capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.split(".")[0] for name in said.stdout.split()}
    assert "tidemark_pipeline" in loaded
    assert not loaded & {"numba", "kio"}


def test_what_is_imported_is_looked_at_by_no_collection() -> None:
    script = (
        "import gc\n"
        "from tidemark.lean_start import importing\n"
        "with importing():\n"
        "    assert not gc.isenabled()\n"
        "    import json\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1000)\n"
        "print(any(each is json for each in gc.get_objects()))\n"
    )
    said = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split() == ["True", "True", "False"]
