"""What Spark does in a Python process around each piece of work, spared where it does nothing.

Spark keeps its Python processes, those that plan and those that run tasks, and around each piece
of work it tells the import system to forget what it knows and collects garbage. Both cost by what
was imported: the directories of Spark's own zip files are read again once for each package in
them, and every object of numpy, pyarrow and numba is looked at. Together that was two thirds of
what a task of 64 MiB cost.
"""

import gc
import sys
from pathlib import Path
from zipimport import zipimporter

_frozen = False


def settle() -> None:
    """Call it when a piece of work is done: what is loaded by then stays, and is looked at no more.

    The importers of Spark's own zip files, which do not change while it runs, are dropped from the
    import system's cache; it makes one again when it needs one."""
    global _frozen  # noqa: PLW0603 - of this process, as what it is about
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and _is_sparks(finder.archive):
            sys.path_importer_cache.pop(path, None)
    if not _frozen:
        # Once: what is garbage by then is never freed, and of each time that would be a leak.
        gc.collect()
        gc.freeze()
        _frozen = True


def _is_sparks(archive: str) -> bool:
    """``…/python/lib/pyspark.zip`` or ``py4j-…-src.zip``, as a worker's path has them; a zip file
    that a job brings may be replaced while it runs."""
    path = Path(archive)
    return path.parts[-3:-1] == ("python", "lib") and (
        path.name == "pyspark.zip" or (path.name.startswith("py4j-"))
    )
