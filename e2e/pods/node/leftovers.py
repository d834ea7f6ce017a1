"""What outlives the namespaces of a run: its folder, and its cgroups. They go with the run.

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
PREFIX = "tidemark-e2e-"
CGROUP_TIMEOUT_S = 10
#: Of a build of an image, which goes on to its end.
OTHERS_TIMEOUT_S = 15 * 60
POLL_S = 0.1


def folder_of(cache: Path, pid: int) -> Path:
    """Of the run whose starter is ``pid``."""
    return cache / f"{PREFIX}{pid}"


def layout_of(run_folder: Path, side: str) -> Layout:
    """Of one side of the run that has this folder."""
    return Layout(run_folder / side, f"/{run_folder.name}-{side}")


@contextlib.contextmanager
def folder_made(cache: Path) -> Iterator[Path]:
    """The folder of the run that this process starts; with the block it goes, and all of the run's
    cgroups, also where this process is killed. So does what is there of runs that have ended."""
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
    names = {path.name for path in [*cache.glob(f"{PREFIX}*"), *_cgroups(f"{PREFIX}*")]}
    runs = {name.removeprefix(PREFIX).partition("-")[0] for name in names}
    for pid in runs:
        if pid.isdigit() and int(pid) != os.getpid() and Path("/proc", pid).exists():
            continue
        _remove(cache / f"{PREFIX}{pid}")


def _remove(folder: Path) -> None:
    for path in [*_cgroups(folder.name), *_cgroups(f"{folder.name}-*")]:
        _remove_cgroup(path)
    shutil.rmtree(folder, ignore_errors=True)


def _cgroups(pattern: str) -> list[Path]:
    """In the one hierarchy of version 2, or in each of version 1."""
    return [*CGROUPS.glob(pattern), *CGROUPS.glob(f"*/{pattern}")]


def _remove_cgroup(top: Path) -> None:
    """From the leaves up; the kernel takes a moment to let go of processes that were killed."""
    deadline_s = time.monotonic() + CGROUP_TIMEOUT_S
    while top.exists() and time.monotonic() < deadline_s:
        folders = [path for path in top.rglob("*") if path.is_dir()]
        for path in [*sorted(folders, reverse=True), top]:
            with contextlib.suppress(OSError):
                path.rmdir()
        if top.exists():
            time.sleep(POLL_S)


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
