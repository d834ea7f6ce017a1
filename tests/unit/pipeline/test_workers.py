"""Work that a Python worker of Spark skips after a task, observed in a process of its own."""

import subprocess
import sys

SETTLED = """
import gc, importlib, sys, zipfile
from pathlib import Path

folder = Path(sys.argv[1])
names = [
    "python/lib/pyspark.zip",
    "python/lib/py4j-0.10.9.9-src.zip",
    "python/lib/job.zip",
    "jars/spark-core_2.13-4.1.3.jar",
    "jars/job.jar",
]
for number, name in enumerate(names):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for each in "ab":
            archive.writestr(f"package{number}/{each}.py", "X = 1")
        archive.writestr(f"package{number}/__init__.py", "")
    sys.path.append(str(folder / name))
    importlib.import_module(f"package{number}.a")

def kept():
    cached = list(sys.path_importer_cache)
    return {n for n, name in enumerate(names) if any(name in path for path in cached)}

from tidemark_pipeline.read.workers import freeze_loaded_objects

assert kept() == {0, 1, 2, 3, 4}
freeze_loaded_objects()
assert kept() == {2, 4}, "Spark's own are dropped, a job's are not"
frozen = gc.get_freeze_count()
assert frozen > 1000
# What is not loaded yet is found all the same. It is frozen, too, after the work that loads it.
importlib.import_module("package0.b")
loaded_later = [[] for _ in range(1000)]
freeze_loaded_objects()
assert kept() == {2, 4}
assert gc.get_freeze_count() > frozen + 900
# Work that loads nothing freezes nothing.
frozen = gc.get_freeze_count()
rows = [[] for _ in range(1000)]
freeze_loaded_objects()
assert gc.get_freeze_count() == frozen, "garbage of later tasks is collected"
"""


def test_worker_keeps_only_caches_of_the_job(tmp_path: object) -> None:
    subprocess.run([sys.executable, "-c", SETTLED, str(tmp_path)], check=True)
