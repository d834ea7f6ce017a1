"""Reduce the work that Spark does in a Python process around each piece of work.

Spark reuses its Python processes, those that plan and those that run tasks. Around each piece of
work it clears the caches of the import system and collects garbage. Both costs grow with the
imported modules. The directories of Spark's own archives are read again for each package in them
(the jar of its core, which is on the path of each worker, has ten thousand entries), and every
object of numpy, pyarrow and numba is visited. Together that took longer than the rest of a task of
64 MiB.
"""

import gc
import sys
from pathlib import Path
from zipimport import zipimporter

#: Number of modules at the last freeze.
_modules_frozen = 0


def freeze_loaded_objects() -> None:
    """Exempt all loaded objects from later garbage collections. Call it after a piece of work."""
    global _modules_frozen  # noqa: PLW0603 - of this process, as what it is about
    drop_archive_importers()
    # Only after imports: cyclic garbage of frozen objects is never freed, so a call for each piece
    # of work would leak memory. A later piece may load more, such as the client of brokers.
    if len(sys.modules) > _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)


def drop_archive_importers() -> None:
    """Drop the importers of Spark's own archives from the import system's cache.

    The archives do not change while Spark runs. The import system creates an importer again when it
    needs one.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and _is_sparks(finder.archive):
            sys.path_importer_cache.pop(path, None)


def _is_sparks(archive: str) -> bool:
    """Return whether an archive is one of Spark's own on the path of a worker.

    These are ``…/python/lib/pyspark.zip``, ``py4j-…-src.zip`` and ``…/jars/spark-core_….jar``. An
    archive of the job may be replaced while it runs.
    """
    path = Path(archive)
    if path.parts[-3:-1] == ("python", "lib"):
        return path.name == "pyspark.zip" or path.name.startswith("py4j-")
    return path.parent.name == "jars" and path.name.startswith("spark-core_")
