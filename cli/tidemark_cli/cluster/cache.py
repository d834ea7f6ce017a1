"""``tidemark cache``: list and clear what builds have left on this machine."""

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from tidemark_cli.common import console, fail
from tidemark_cli.sizes import bytes_of, size_text
from tidemark_devcluster.toolchain.cache import user_cache

GO_TIMEOUT_S = 30


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove the folders of Tidemark, which are built again.")
    ] = False,
) -> None:
    """List the caches of built and compiled programs with their sizes, or clear them."""
    root = user_cache()
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.exists() else []
    for folder in folders:
        _print(folder)
    # Go shares its caches with other projects, so they are shown but never removed.
    for folder in _go_caches():
        if folder.exists():
            _print(folder, "  (Go's, shared with other projects: go clean -cache -modcache)")
    if not clear:
        if folders:
            console.print("remove the first ones with: tidemark cache --clear")
        return
    locks = root / "locks"
    # A build holds a lock below this folder, and would fail if its files disappeared.
    if locks.exists() and _is_building(locks):
        fail("a build is running: wait for it, then repeat the command")
    shutil.rmtree(root, ignore_errors=True)
    console.print(f"removed {root}", markup=False, soft_wrap=True)


def _is_building(locks: Path) -> bool:
    """Return whether a process holds one of the locks."""
    for path in locks.iterdir():
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _print(folder: Path, note: str = "") -> None:
    line = f"{size_text(bytes_of(folder)):>10}  {folder}{note}"
    console.print(line, markup=False, soft_wrap=True)


def _go_caches() -> list[Path]:
    """Return Go's build and module caches, as ``go env`` names them; none without Go."""
    try:
        done = subprocess.run(
            ["go", "env", "GOCACHE", "GOMODCACHE"],
            capture_output=True,
            text=True,
            check=True,
            timeout=GO_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [Path(line) for line in done.stdout.split()]
