"""Select the programs of the control plane, and run its kubectl.

They are in the project's own binary, or the user names them.

``KUBEBUILDER_ASSETS`` is the variable of Kubernetes' own test tools: a folder with ``etcd``,
``kube-apiserver`` and ``kubectl``. Both choices take the same flags and write the same files, so
the launcher does not distinguish them.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.build import ensure_controlplane

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
ASSETS = ("etcd", "kube-apiserver", "kubectl")


@dataclass(frozen=True, slots=True)
class Programs:
    """Command prefixes of the server and of kubectl."""

    serve: tuple[str, ...]
    kubectl: tuple[str, ...]


def find_programs(environ: Mapping[str, str] = os.environ) -> Programs:
    """Return the programs to use; builds the own binary if it is missing. Raises ToolchainError."""
    folder = environ.get(ASSETS_VARIABLE)
    if folder:
        return from_assets(Path(folder))
    binary = str(ensure_controlplane())
    return Programs(serve=(binary, "serve"), kubectl=(binary, "kubectl"))


def from_assets(folder: Path) -> Programs:
    """Return the separate programs in ``folder``."""
    missing = [name for name in ASSETS if not os.access(folder / name, os.X_OK)]
    if missing:
        raise ToolchainError(
            f"{ASSETS_VARIABLE} is {folder}, which lacks {', '.join(missing)}: set it to a folder "
            f"with {', '.join(ASSETS)}, or unset it"
        )
    module = "tidemark_devcluster.controlplane.assets"
    return Programs(
        serve=(sys.executable, "-m", module, "--assets", str(folder.resolve())),
        kubectl=(str(folder / "kubectl"),),
    )


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
