"""A job on Spark in a pod counts a topic: most of it from the store, the rest from brokers."""

import json
import time
from pathlib import Path
from typing import Any

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.client import BOOTSTRAP
from e2e.pods.images import SPARK
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed
from e2e.pods.stage import PARTITIONS, Stage

TOPIC = "counted"
JOB = "count"
PROGRAM = Path(__file__).parents[1] / "spark_program.py"


def _job(stage: Stage) -> None:
    stage.make_tiered_topic(TOPIC)
    stage.produce_to_tier(TOPIC)
    storage = stage.values["cluster"]["spec"]["remoteStorage"]["s3"]
    options = {
        "topic": TOPIC,
        "bootstrap": BOOTSTRAP,
        "endpoint": storage["endpoint"],
        "region": storage["region"],
        "buckets": ",".join(storage["buckets"]),
    }
    begun = time.monotonic()
    stage.kubernetes.apply(objects.job(JOB, SPARK, PROGRAM.read_text("utf-8"), options))
    stage.wait("the job", lambda: _complaint(stage))
    log = stage.kubernetes.run("--namespace", NAMESPACE, "logs", f"job/{JOB}")
    _judge(json.loads(log.splitlines()[-1]), stage.written[TOPIC])
    stage.progress.figure("Spark's job in a pod", f"{time.monotonic() - begun:.0f} s")
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "job", JOB)


def _complaint(stage: Stage) -> str:
    status = stage.kubernetes.get(NAMESPACE, "job", JOB).get("status", {})
    if status.get("failed"):
        raise Failed(stage.kubernetes.run("--namespace", NAMESPACE, "logs", f"job/{JOB}"))
    return "" if status.get("succeeded") else f"{status.get('active', 0)} active"


def _judge(rows: list[dict[str, Any]], written: int) -> None:
    """Every record once, by count and by the sum of their numbers; of each partition some were in
    the store."""
    found = sum(row["rows"] for row in rows), sum(row["total"] for row in rows)
    wanted = written, sum(range(written))
    if found != wanted:
        raise Failed(f"rows and sum of numbers are {found}, not {wanted}: {rows}")
    remote = {row["partition"] for row in rows if row["tier"] == "remote"}
    if len(remote) != PARTITIONS:
        raise Failed(f"nothing came from the store of some partition: {rows}")


CHAPTER = Chapter(
    "spark",
    "a job on Spark, in a pod, counts a tiered topic",
    (Step("a job in a pod counts every record of a tiered topic", _job),),
    takes_s=60,
    images=(SPARK,),
)
