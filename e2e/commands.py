"""The command line as a user calls it, each command a process of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

TIDEMARK = (str(Path(sys.executable).with_name("tidemark")),)


def run(folder: Path, *arguments: str, stdin: str = "") -> str:
    """``tidemark ARGUMENTS`` on the cluster in ``folder``; its output. Fails with what it said."""
    done = subprocess.run(
        [*TIDEMARK, *arguments],
        env={**os.environ, "TIDEMARK_DIR": str(folder), "COLUMNS": "200"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Up:
    """``tidemark up --output json`` in the foreground, until Ctrl-C."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._said = folder.with_suffix(".err").open("ab+")
        # The output is a pipe, as for a script that reads the addresses.
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
        self._process = subprocess.Popen(
            [*TIDEMARK, "up", "--dir", str(folder), "--output", "json", *arguments],
            env=buffered,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def addresses(self) -> dict[str, Any]:
        """Addresses that the command prints once the cluster is ready."""
        assert self._process.stdout is not None
        lines = []
        # The JSON spans several lines, so it is parsed again with each one.
        for line in self._process.stdout:
            lines.append(line)
            try:
                value = json.loads("".join(lines))
            except ValueError:
                continue
            assert isinstance(value, dict)
            return value
        raise AssertionError(self._read_errors())

    def interrupt(self) -> int:
        """Ctrl-C; its exit status."""
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(60)
        finally:
            self.close()

    def ended(self) -> int:
        """Wait until the command ends by itself; return its exit status."""
        return self._process.wait(60)

    def close(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def _read_errors(self) -> str:
        self._said.seek(0)
        return self._said.read().decode()
