"""Audit a topic on Spark: executors read the segments whole, so the time is that of reading the
tier once, divided by the cores."""

from pyspark.sql import SparkSession

from tidemark.tier.config import RemoteStorage
from tidemark.tier.open import open_tier
from tidemark.tier.topics import TopicObject
from tidemark_pipeline.audit import TASK_BYTES, AuditReport, Checked, plan, run_task


def audit(
    session: SparkSession,
    storage: RemoteStorage,
    topic: TopicObject,
    task_bytes: int = TASK_BYTES,
) -> AuditReport:
    """Every live segment of a topic, ``task_bytes`` and a segment at a time.

    Raises StoreUnavailable where the store fails, wrapped in Spark's error where it fails for an
    executor: then nothing is known."""
    planned = plan(open_tier(storage), topic, task_bytes)
    done: list[Checked] = []
    if planned.tasks:
        shares = session.sparkContext.parallelize(planned.tasks, len(planned.tasks))
        done = shares.map(lambda task: run_task(storage, task)).collect()
    return AuditReport.of(topic, planned, done)
