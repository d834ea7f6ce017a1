"""Whether this machine lets the namespaces of a node be made and prepared, and cgroups of its
containers, tried before anything is built for one: a container may lack the rights, or its kernel a
part of it."""

import os
import sys
from pathlib import Path

from e2e.pods.commands import run
from e2e.pods.node.layout import Layout
from e2e.pods.node.leftovers import CGROUPS
from e2e.pods.node.sandbox import UNSHARE, prepare


def ensure_namespaces(layout: Layout) -> None:
    """Make them, prepare them, and let them go. Raises CommandFailed with what was refused."""
    run(
        [
            *UNSHARE,
            sys.executable,
            "-m",
            "e2e.pods.node.machine_check",
            str(layout.root),
            str(os.getpid()),
        ]
    )


def make_cgroups(name: str) -> None:
    """In every hierarchy of version 1 that is mounted, or in the one of version 2; they go at once.
    Raises OSError."""
    one = (CGROUPS / "cgroup.controllers").exists()
    tops = [CGROUPS] if one else [path.parent for path in CGROUPS.glob("*/cgroup.procs")]
    for top in tops:
        (top / name).mkdir()
        (top / name).rmdir()


if __name__ == "__main__":
    prepare(Layout(Path(sys.argv[1])))
    make_cgroups(f"tidemark-e2e-trial-{sys.argv[2]}")
