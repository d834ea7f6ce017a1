"""What outlives the namespaces of a run: its folder, and its containers' cgroups. They go with the
run.

The starter removes them at its end, whatever that is, but for one: who is killed by ``kill -9``
removes nothing. So a guard stands beside each run, in a session of its own. It waits for the
starter to end, by a standard input that ends with it, and for whoever is left of the run; then it
removes what is there. A machine that went down with both leaves it to the next run.
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
#: Of a build of an image, which goes on to its end.
OTHERS_TIMEOUT_S = 15 * 60
POLL_S = 0.1


def folder_of(cache: Path, pid: int) -> Path:
    """Of the run whose starter is ``pid``."""
    return cache / f"{PREFIX}{pid}"


def layout_of(run_folder: Path, side: str) -> Layout:
    """Of one side of the run that has this folder."""
    return Layout(run_folder / side)


@contextlib.contextmanager
def folder_made(cache: Path) -> Iterator[Path]:
    """The folder of the run that this process starts; with the block it goes, and its containers'
    cgroups, also where this process is killed. So does what is left of runs that have ended."""
    _remove_of_ended(cache)
    folder = folder_of(cache, os.getpid())
    folder.mkdir(mode=0o700, parents=True)
    guard = subprocess.Popen(
        [sys.executable, "-m", "e2e.pods.node.leftovers", str(folder)],
        stdin=subprocess.PIPE,
        # Whoever reads what the run says does not wait for the guard.
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
    left = [path for each in folder.glob(CONTAINERS) for path in _cgroups(each.name)]
    parents = {path.parent for path in left}
    deadline_s = time.monotonic() + CGROUPS_TIMEOUT_S
    while (left := [path for path in left if not _removed(path)]) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    for path in parents:
        _removed(path)
    shutil.rmtree(folder, ignore_errors=True)


def _cgroups(name: str) -> list[Path]:
    """Of a container: in the one hierarchy of version 2, or in each of version 1."""
    return [*CGROUPS.glob(f"{PARENT}/{name}"), *CGROUPS.glob(f"*/{PARENT}/{name}")]


def _removed(path: Path) -> bool:
    """Whether a cgroup is gone, as one is that nothing is in."""
    with contextlib.suppress(FileNotFoundError):
        try:
            path.rmdir()
        except OSError:
            return False
    return True


# ------------------------------------------------------------ the guard


def guard(folder: Path) -> None:
    """Until standard input ends, and nobody is left who names the folder."""
    while os.read(0, 1024):
        pass
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
