"""Progress of Spark's running stages, reported periodically while a job runs.

Spark's own bar overwrites the terminal's last line and writes nothing to a file. This module calls
back instead, so that the caller chooses the output.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from pyspark import SparkContext

EVERY_S = 5.0


@contextlib.contextmanager
def reporting_stages(
    context: SparkContext, say: Callable[[int, int], None], every_s: float = EVERY_S
) -> Iterator[None]:
    """Report the progress of Spark's running stages while the ``with`` block runs.

    Calls ``say(done, all)`` with numbers of tasks, from another thread, at most every ``every_s``
    seconds, and only with numbers that have changed.
    """
    done = threading.Event()

    def watch() -> None:
        tracker = context.statusTracker()
        reported = None
        # The wait doubles as the interval, so that the thread ends at once when the job does.
        while not done.wait(every_s):
            stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
            running = [stage for stage in stages if stage is not None]
            counts = (
                sum(stage.numCompletedTasks for stage in running),
                sum(stage.numTasks for stage in running),
            )
            # Between two stages nothing runs. A repeated line would look like a second job.
            if running and counts != reported:
                say(*counts)
                reported = counts

    # The block itself waits for Spark, so another thread reports.
    watcher = threading.Thread(target=watch, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
