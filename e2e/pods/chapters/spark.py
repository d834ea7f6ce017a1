"""An Export makes a table of a topic, though its pod is removed meanwhile; and a job on Spark in a
pod counts both: of the topic most comes from the store, the rest from brokers."""

import base64
import json
import time
from pathlib import Path
from typing import Any

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.client import BOOTSTRAP
from e2e.pods.images import SPARK
from e2e.pods.kubernetes import not_ready
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed
from e2e.pods.stage import PARTITIONS, Stage
from tests.table_jars import MavenMissing, jars
from tidemark_pipeline.export.formats import Format

TOPIC = "counted"
JOB = "count"
PROGRAM = Path(__file__).parents[1] / "spark_program.py"
#: An Export, the volume that it writes to and a pod that reads it.
LAKE = "lake"
EXPORT = f"exports.tidemark.dev/{LAKE}"
FOLDER = "/lake"
JAR, WAREHOUSE, TABLE = f"{FOLDER}/iceberg.jar", f"{FOLDER}/tables", "db.counted"
#: Spark restarts on a machine with other load, and metrics are up to a minute old.
TABLE_S = 600


def _jar(stage: Stage) -> Path | None:
    """Iceberg's; None, and it is said, where no registry of Java's has it."""
    try:
        return jars(Format.ICEBERG)[0]
    except MavenMissing as error:
        stage.progress.say(f"no table: {error}")
        return None


def _topic(stage: Stage) -> None:
    stage.make_tiered_topic(TOPIC)
    stage.produce_to_tier(TOPIC)


def _export(stage: Stage) -> None:
    """All records are in the table, though the job's pod was removed in the middle."""
    jar = _jar(stage)
    if jar is None:
        return
    _bring(stage, jar)
    begun = time.monotonic()
    # The pod has no access to registries, so its jar is in the volume that also takes the table.
    job = {"image": SPARK, "imagePullPolicy": "IfNotPresent", "jars": [JAR]}
    job["volumes"] = [{"claimName": LAKE, "mountPath": FOLDER}]
    stage.kubernetes.apply(
        objects.export(
            LAKE,
            TOPIC,
            table={"name": TABLE, "warehouse": WAREHOUSE},
            continuous={"interval": "2s"},
            source={"options": {"maxOffsetsPerTrigger": "2000"}},
            job=job,
        )
    )
    stage.wait("an Export that runs", lambda: _export_complaint(stage, 1), TABLE_S)
    stage.progress.figure("an Export's first report", f"{time.monotonic() - begun:.0f} s")
    stage.progress.say("the Export has reported; its pod goes")
    # The pod is removed in the middle: the next one continues at the table's last offsets.
    stage.kubernetes.run(
        "--namespace", NAMESPACE, "delete", "pod", "--selector", f"tidemark.dev/export={LAKE}"
    )
    stage.produce(TOPIC)
    # Both the second run and the number of rows have to be there.
    stage.wait(
        "all records in the table",
        lambda: _export_complaint(stage, 2) or _rows_complaint(stage, stage.written[TOPIC]),
        TABLE_S,
    )
    stage.progress.say("its second pod has written the rest; the Export goes")
    stage.delete(EXPORT)
    stage.wait("no job of an Export that is deleted", lambda: _left(stage))


def _bring(stage: Stage, jar: Path) -> None:
    """Into the volume that is to have the table: pods of a run reach no registry."""
    keeper = objects.client(LAKE)
    stage.kubernetes.apply(objects.claim(LAKE), objects.mounted(keeper, LAKE, FOLDER))
    stage.pod_ready(NAMESPACE, LAKE)
    text = base64.b64encode(jar.read_bytes()).decode()
    program = f"import base64, sys; open({JAR!r}, 'wb').write(base64.b64decode(sys.stdin.read()))"
    words = ("exec", "--stdin", LAKE, "--", "python3", "-c", program)
    stage.kubernetes.run("--namespace", NAMESPACE, *words, stdin=text)


def _export_complaint(stage: Stage, run: int) -> str:
    body = stage.object(EXPORT)
    number = body.get("status", {}).get("run", {}).get("number", 0)
    return not_ready(body) or ("" if number >= run else f"run {number}")


def _rows_complaint(stage: Stage, wanted: int) -> str:
    rows = stage.object(EXPORT)["status"].get("rows", 0)
    return "" if rows == wanted else f"{rows} rows of {wanted}"


def _left(stage: Stage) -> str:
    found = stage.kubernetes.all(NAMESPACE, "jobs", "pods")
    ours = [body["metadata"] for body in found if _of_export(body)]
    return ", ".join(our["name"] for our in ours)


def _of_export(body: dict[str, Any]) -> bool:
    return body["metadata"].get("labels", {}).get("tidemark.dev/export") == LAKE


def _count(stage: Stage) -> None:
    """Each record is once in the topic, and once in the table."""
    # The job reads the topic as a user's job does, from the store and from brokers.
    storage = stage.values["cluster"]["spec"]["remoteStorage"]["s3"]
    options = {
        "topic": TOPIC,
        "bootstrap": BOOTSTRAP,
        "endpoint": storage["endpoint"],
        "region": storage["region"],
        "buckets": ",".join(storage["buckets"]),
    }
    told: dict[str, Any] = {"topic": options}
    with_table = _jar(stage) is not None
    if with_table:
        told |= {"table": {"table": TABLE, "warehouse": WAREHOUSE}, "jar": JAR}
    job = objects.job(JOB, SPARK, PROGRAM.read_text("utf-8"), told)
    begun = time.monotonic()
    stage.kubernetes.apply(objects.mounted(job, LAKE, FOLDER) if with_table else job)
    stage.wait("the job", lambda: _complaint(stage), TABLE_S)
    log = stage.kubernetes.run("--namespace", NAMESPACE, "logs", f"job/{JOB}")
    found = json.loads(log.splitlines()[-1])
    stage.progress.figure("Spark's job in a pod", f"{time.monotonic() - begun:.0f} s")
    written = stage.written[TOPIC]
    _judge(found["topic"], written)
    # The sum of the numbers shows records that are missing and others that are there twice.
    wanted = {"rows": written, "offsets": written, "total": sum(range(written))}
    if with_table and found["table"] != wanted:
        raise Failed(f"the table has {found['table']}, not {wanted}")
    stage.delete(f"job/{JOB}")
    for what in (f"pod/{LAKE}", f"pvc/{LAKE}") if with_table else ():
        stage.delete(what)


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
    "an Export makes a table of a tiered topic, and a job on Spark, in a pod, counts both",
    (
        Step("a topic has most of its records in the tier", _topic),
        Step("an Export makes a table of them, whose pod is removed meanwhile", _export),
        Step("a job in a pod counts every record of the topic, and of the table", _count),
    ),
    takes_s=168,
    images=(SPARK,),
)
