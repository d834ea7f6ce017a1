"""``python3 -m tools.images PACKAGE`` in a Dockerfile: see the package's own text.

What pip has installed is in ``/app``, with the program; all files are given the time of
``SOURCE_DATE_EPOCH``.
"""

import compileall
import os
import py_compile
import sys
from pathlib import Path

from tools.images import debian, elf
from tools.images.image_check import SHOWN, ImageCheckResult, TrialFailed
from tools.images.packages import left_out
from tools.images.runtime import NotInBase, add_runtime, standard_library
from tools.images.tree import Tree, set_times

APP = Path("/app")
IMAGE = Path("/image")
LIBRARY = "tidemark"
MEGABYTE = 1_000_000


def main(package: str) -> None:
    """Make both folders. Raises NotInBase, TrialFailed."""
    os.umask(0o022)
    names = [LIBRARY, package]
    before = ImageCheckResult.here(APP, names)
    runtime, program = Tree(IMAGE / "runtime"), Tree(IMAGE / "program")
    program.add(APP, lambda path: left_out(path, before.loaded))
    add_runtime(runtime, program.root)
    records = debian.add_records(runtime)
    for tree, sources in ((runtime, standard_library()), (program, {APP})):
        elf.strip_all(tree.root)
        for folder in sorted(sources):
            compile_all(tree, folder)
    # One below the other for the trial, as they will be.
    (program.root / "app").rename(runtime.root / "app")
    if different := before.differences(ImageCheckResult.inside(runtime.root, APP, names)):
        raise TrialFailed("\n".join(different[:SHOWN]))
    (runtime.root / "app").rename(program.root / "app")
    set_times(IMAGE, int(os.environ["SOURCE_DATE_EPOCH"]))
    sizes = (f"{size(IMAGE / part) / MEGABYTE:.1f} MB {part}" for part in ("program", "runtime"))
    print(
        *sizes, f"{len(before.imports)} imports tried", f"of Debian: {' '.join(records)}", sep=", "
    )


def compile_all(tree: Tree, folder: Path) -> None:
    """Here, for nothing is written where it runs; by the sources' digests, not by their times.
    Raises TrialFailed."""
    done = compileall.compile_dir(
        tree.root / folder.resolve().relative_to("/"),
        quiet=1,
        stripdir=tree.root,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not done:
        raise TrialFailed(f"a source in {folder} is not compiled")


def size(folder: Path) -> int:
    """Bytes of all its files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (NotInBase, TrialFailed) as error:
        sys.exit(f"images: {error}")
