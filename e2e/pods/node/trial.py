"""Whether this machine lets the namespaces of a node be made and prepared, tried before anything
is built for one: a container may lack the rights, or its kernel a part of it."""

import sys
from pathlib import Path

from e2e.pods.commands import run
from e2e.pods.node.layout import Layout
from e2e.pods.node.sandbox import UNSHARE, prepare


def ensure_namespaces(layout: Layout) -> None:
    """Make them, prepare them, and let them go. Raises CommandFailed with what was refused."""
    trial = ("-m", "e2e.pods.node.trial", str(layout.root / "trial"), layout.cgroup)
    run([*UNSHARE, sys.executable, *trial])


if __name__ == "__main__":
    prepare(Layout(Path(sys.argv[1]), sys.argv[2]))
