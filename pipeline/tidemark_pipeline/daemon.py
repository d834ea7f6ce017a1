"""The process that Spark's Python workers are forked from, with their modules already loaded.

Spark starts a daemon for the workers that run tasks and runs it as long as the session. Workers
are forked from it, again after each minute without a task. Spark's own daemon loads nothing of this
package. Each worker then imports numpy, pyarrow and numba and loads the compiled decoder. That
takes more than a second of a core, as much as two million records. With
``spark.python.daemon.module`` set to this module it is done once, before the fork. Workers that
plan a query always start from Spark's own daemon (Spark's PythonPlannerRunner).
"""

import gc
import socket

from pyspark import daemon

from tidemark.freed_memory import keep_freed_memory
from tidemark_pipeline.read.workers import drop_archive_importers

_run_worker = daemon.worker


def main() -> None:
    """Serve until Spark closes standard input, as Spark's own daemon does."""
    # Before the first thread, which would get a heap for itself. The decoder's imports start
    # threads, so they come later.
    keep_freed_memory()
    from tidemark_pipeline.read.task_execution import load_decoder

    load_decoder()
    drop_archive_importers()
    # Objects in the permanent generation are not visited, so their pages stay shared after a fork.
    gc.collect()
    gc.freeze()
    daemon.worker = _worker
    daemon.manager()  # type: ignore[no-untyped-call]


def _worker(connection: socket.socket, authenticated: bool) -> int:
    """Run a worker until Spark closes its connection.

    Spark closes a Unix domain socket before the worker has written its last bytes, and Spark's own
    daemon would then print a stack trace at the end of each session.
    """
    try:
        return int(_run_worker(connection, authenticated))  # type: ignore[no-untyped-call]
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    main()
