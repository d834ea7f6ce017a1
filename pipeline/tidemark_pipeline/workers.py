"""What Spark does in a Python process around each piece of work, spared where it does nothing.

Spark keeps its Python processes, those that plan and those that run tasks, and around each piece
of work it tells the import system to forget what it knows and collects garbage. Both cost by what
was imported: the directories of Spark's own archives are read again once for each package in
them (the jar of its core, which Spark puts on the path of each worker, has ten thousand entries),
and every object of numpy, pyarrow and numba is looked at. Together that was more than what a task
of 64 MiB cost otherwise.
"""

import gc
import sys
from pathlib import Path
from zipimport import zipimporter

_frozen = False


def settle() -> None:
    """Call it when a piece of work is done: what is loaded by then stays, and nobody looks at it
    again."""
    global _frozen  # noqa: PLW0603 - of this process, as what it is about
    forget_archives()
    if not _frozen:
        # Once: what is garbage by then is never freed, and of each time that would be a leak.
        gc.collect()
        gc.freeze()
        _frozen = True


def forget_archives() -> None:
    """The importers of Spark's own archives, which do not change while it runs, are dropped from
    the import system's cache; it makes one again when it needs one."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and _is_sparks(finder.archive):
            sys.path_importer_cache.pop(path, None)


def _is_sparks(archive: str) -> bool:
    """``…/python/lib/pyspark.zip``, ``py4j-…-src.zip`` or ``…/jars/spark-core_….jar``, as the path
    of a worker has them; an archive that a job brings may be replaced while it runs."""
    path = Path(archive)
    if path.parts[-3:-1] == ("python", "lib"):
        return path.name == "pyspark.zip" or path.name.startswith("py4j-")
    return path.parent.name == "jars" and path.name.startswith("spark-core_")
