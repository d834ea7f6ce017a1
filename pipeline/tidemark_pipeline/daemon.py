"""The process that Spark's Python workers are forked from, with what they need loaded already.

Spark starts one for each kind of worker, keeps it as long as the session lasts, and forks workers
from it, again after each minute without a task. By itself it has loaded nothing of ours: each
worker then imports numpy, pyarrow and numba and loads the compiled decoder, which is more than a
second of a core, as much as two million records cost. Set ``spark.python.daemon.module`` to this
module and it is done once, before the fork.
"""

import gc
import sys

from pyspark import daemon

from tidemark_pipeline.workers import forget_archives

#: What runs tasks; the other kinds of worker plan them.
_TASKS = "pyspark.worker"


def main() -> None:
    """Serve until Spark closes standard input, as Spark's own daemon does."""
    if sys.argv[1:] == [_TASKS]:
        from tidemark_pipeline.task_execution import load_decoder

        load_decoder()
    else:
        import tidemark_pipeline.source  # noqa: F401 - for those who are forked
    forget_archives()
    # Nobody's garbage collection looks at it, and no page of it is copied by that.
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
