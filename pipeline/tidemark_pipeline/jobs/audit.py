"""Audit a topic on Spark.

Executors read whole segments, so the audit takes the time of reading the tier once, divided by the
number of cores.
"""

from pyspark.sql import SparkSession

from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import open_tier
from tidemark.tier.stores.config import RemoteStorage
from tidemark_pipeline.audit.segments import TASK_BYTES, AuditReport, TaskResult, plan, run_task


def audit(
    session: SparkSession,
    storage: RemoteStorage,
    topic: TopicObject,
    task_bytes: int = TASK_BYTES,
) -> AuditReport:
    """Verify every live segment of a topic, in Spark tasks of about ``task_bytes``.

    Raises StoreUnavailable if the store fails, wrapped in Spark's error if it fails for an
    executor. In both cases the audit has no result.
    """
    planned = plan(open_tier(storage), topic, task_bytes)
    done: list[TaskResult] = []
    # A topic without segments needs no Spark job. Otherwise each task is a partition of its own,
    # so that executors share the work evenly.
    if planned.tasks:
        shares = session.sparkContext.parallelize(planned.tasks, len(planned.tasks))
        done = shares.map(lambda task: run_task(storage, task)).collect()
    return AuditReport.of(topic, planned, done)
