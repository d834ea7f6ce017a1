"""Run the kubectl that is part of the control plane."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tidemark_devcluster.controlplane.programs import find_programs

OUTPUT_TIMEOUT_S = 120.0


def kubectl(arguments: Sequence[str], *, kubeconfig: Path) -> int:
    """Run kubectl on this process's terminal and return its exit status."""
    return subprocess.call(_command(arguments), env=_environ(kubeconfig))


def run_kubectl(
    arguments: Sequence[str],
    *,
    kubeconfig: Path,
    stdin: str | None = None,
    timeout_s: float = OUTPUT_TIMEOUT_S,
) -> "subprocess.CompletedProcess[str]":
    """Run kubectl with captured output and return its exit status and output.

    A nonzero status raises nothing. Raises subprocess.TimeoutExpired after ``timeout_s`` seconds.
    """
    return subprocess.run(
        _command(arguments),
        env=_environ(kubeconfig),
        input=stdin,
        # Without input kubectl must not read this process's terminal.
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def _command(arguments: Sequence[str]) -> list[str]:
    return [*find_programs().kubectl, *arguments]


def _environ(kubeconfig: Path) -> dict[str, str]:
    # A variable instead of a flag: flags before a plugin's name would hide it from kubectl.
    return {**os.environ, "KUBECONFIG": str(kubeconfig)}
