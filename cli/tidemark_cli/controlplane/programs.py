"""Which programs make the control plane: this project's own binary, or the ones named by the user.

``KUBEBUILDER_ASSETS`` is what Kubernetes' own test tools use: a folder with ``etcd``,
``kube-apiserver`` and ``kubectl``. Both choices take the same flags and write the same files, so
that the launcher knows no difference.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark_cli.toolchain import ToolchainError, ensure_controlplane

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
ASSETS = ("etcd", "kube-apiserver", "kubectl")


@dataclass(frozen=True, slots=True)
class Programs:
    """The first words of two commands: the server, and kubectl."""

    serve: tuple[str, ...]
    kubectl: tuple[str, ...]


def find_programs(environ: Mapping[str, str] = os.environ) -> Programs:
    """The programs to use; builds the own binary where it is missing. Raises ToolchainError."""
    folder = environ.get(ASSETS_VARIABLE)
    if folder:
        return from_assets(Path(folder))
    binary = str(ensure_controlplane())
    return Programs(serve=(binary, "serve"), kubectl=(binary, "kubectl"))


def from_assets(folder: Path) -> Programs:
    """The separate programs in ``folder``."""
    missing = [name for name in ASSETS if not os.access(folder / name, os.X_OK)]
    if missing:
        raise ToolchainError(
            f"{ASSETS_VARIABLE} is {folder}, which has no {', '.join(missing)}: name a folder with "
            f"{', '.join(ASSETS)}, or unset it"
        )
    module = "tidemark_cli.controlplane.assets"
    return Programs(
        serve=(sys.executable, "-m", module, "--assets", str(folder.resolve())),
        kubectl=(str(folder / "kubectl"),),
    )
