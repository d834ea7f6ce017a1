"""Cleanup of what outlives the namespaces of a run: its folder, and its containers' cgroups.

The starter removes them at its end, unless ``kill -9`` kills it. A guard in a session of its own
covers that case: it waits until its standard input ends with the starter and until no process of
the run is left, then removes the leftovers. If the machine goes down with both, the next run
removes them.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.pods.node.layout import Layout

CGROUPS = Path("/sys/fs/cgroup")
#: Below which containerd has all of Kubernetes' containers, whosever they are.
PARENT = "k8s.io"
#: Where each side's containerd has a folder for each container and each pod, by its id.
CONTAINERS = "*/data/containerd/io.containerd.grpc.v1.cri/*/*"
PREFIX = "tidemark-e2e-"
CGROUPS_TIMEOUT_S = 10
#: An image build, which continues to its end.
OTHERS_TIMEOUT_S = 15 * 60
POLL_S = 0.1


def folder_of(cache: Path, pid: int) -> Path:
    """Return the folder of the run whose starter is ``pid``."""
    return cache / f"{PREFIX}{pid}"


def layout_of(run_folder: Path, side: str) -> Layout:
    """Return the layout of one side of the run in this folder."""
    return Layout(run_folder / side)


@contextlib.contextmanager
def folder_made(cache: Path) -> Iterator[Path]:
    """The folder of the run that this process starts; with the block it goes, and its containers'
    cgroups, also where this process is killed. So does what is left of runs that have ended."""
    _remove_of_ended(cache)
    folder = folder_of(cache, os.getpid())
    folder.mkdir(mode=0o700, parents=True)
    # The guard has a session of its own, so a signal to the run's process group does not reach it.
    guard = subprocess.Popen(
        [sys.executable, "-m", "e2e.pods.node.leftovers", str(folder)],
        stdin=subprocess.PIPE,
        # A reader of the run's output must not have to wait for the guard.
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
    try:
        yield folder
    finally:
        _remove(folder)
        guard.stdin.close()
        guard.wait()


def _remove_of_ended(cache: Path) -> None:
    for folder in cache.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX)
        ended = pid.isdigit() and not Path("/proc", pid).exists()
        if ended or folder == folder_of(cache, os.getpid()):
            _remove(folder)


def _remove(folder: Path) -> None:
    """The kernel takes a moment to let go of processes that were killed."""
    # Containers are known by their folders, and their cgroups by the same ids.
    left = [path for item in folder.glob(CONTAINERS) for path in _cgroups(item.name)]
    parents = {path.parent for path in left}
    deadline_s = time.monotonic() + CGROUPS_TIMEOUT_S
    while (left := [path for path in left if not _removed(path)]) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    for path in parents:
        _removed(path)
    shutil.rmtree(folder, ignore_errors=True)


def _cgroups(name: str) -> list[Path]:
    """Return the cgroups of a container: one in version 2, one for each hierarchy in version 1."""
    return [*CGROUPS.glob(f"{PARENT}/{name}"), *CGROUPS.glob(f"*/{PARENT}/{name}")]


def _removed(path: Path) -> bool:
    """Remove a cgroup if it is empty; return whether it no longer exists."""
    with contextlib.suppress(FileNotFoundError):
        try:
            path.rmdir()
        except OSError:
            return False
    return True


# ------------------------------------------------------------ the guard


def guard(folder: Path) -> None:
    """Wait until standard input ends and no process names the folder, then remove the leftovers."""
    while os.read(0, 1024):
        pass
    # A build that continues still writes to the folder.
    deadline_s = time.monotonic() + OTHERS_TIMEOUT_S
    while folder.exists() and _named(folder) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    _remove(folder)


def _named(folder: Path) -> bool:
    """Whether the words of any other process have it."""
    word = f"{folder}/".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in path.read_bytes():
                return True
    return False


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
