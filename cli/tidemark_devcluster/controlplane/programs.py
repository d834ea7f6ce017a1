"""Select the programs of the control plane: the project's own binary, or those that the user names.

``KUBEBUILDER_ASSETS`` is the variable of Kubernetes' own test tools: a folder with ``etcd``,
``kube-apiserver`` and ``kubectl``. Both choices take the same flags and write the same files, so
the launcher does not distinguish them.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark_devcluster.toolchain.errors import ToolchainError
from tidemark_devcluster.toolchain.programs import ensure_controlplane

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
