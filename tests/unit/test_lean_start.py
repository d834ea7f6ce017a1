"""Servers start without what only tests need."""

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
