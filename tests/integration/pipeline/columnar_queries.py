"""Queries whose answers must not depend on the optional jar.

``python -m tests.integration.pipeline.columnar_queries TIER JAR`` prints the answers of a session
that has the jar, as JSON.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidemark_pipeline.errors import project_error
from tidemark_pipeline.jobs.export import BatchRange, read_batch
from tidemark_pipeline.read.streaming import run_available
from tidemark_pipeline.read.topic_source import read_topic
from tidemark_pipeline.session import local_session

#: Node of a plan that turns columns into rows.
TRANSITION = "ColumnarToRow"


def answers(session: SparkSession, tier: str) -> dict[str, Any]:
    """Return the answer of each query by name."""
    options = {"topic": "t", "path": tier}
    table = read_topic(session, options)
    halves = table.select("offset", "key").union(table.select(f.col("partition") + 0, "value"))
    # Each answer uses other columns of the table, in another kind of plan.
    return {
        "all columns": _rows(table),
        "number of rows": table.count(),
        "no columns": len(table.select().collect()),
        "two columns": _rows(table.select("value", "offset")),
        "a filter on another column": _rows(table.filter("offset % 7 = 3").select("key")),
        "headers": _rows(table.select(f.explode_outer("headers"), "offset")),
        # A task with two scans requests other columns for each of them.
        "two scans in one task": _rows(halves.coalesce(1)),
        "a join": _rows(
            table.alias("a").join(table.alias("b"), "offset").select("a.key", "b.value")
        ),
        "an option of columns": _rows(
            read_topic(session, {**options, "columns": "offset,value"}).select("value")
        ),
        "no rows": _rows(table.filter("offset < 0")),
        "a function in Python": _rows(
            table.select("key", "value").mapInArrow(_same, "key binary, value binary")
        ),
        "a batch of an export": _rows(_batch(session, tier)),
        # Streams, and errors of workers, must not differ either.
        "a stream": _streamed(session, options),
        "a damaged tier": _error(session, {**options, "path": f"{tier}-damaged"}),
    }


def _same(batches: Any) -> Any:
    yield from batches


def _rows(table: DataFrame) -> list[str]:
    """Return the rows as text, in an order that does not depend on tasks."""
    return sorted(repr(row) for row in table.collect())


def _streamed(session: SparkSession, options: dict[str, str]) -> list[str]:
    rows: list[str] = []

    def take(batch: DataFrame, _: int) -> None:
        rows.extend(_rows(batch))

    limits = {
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "maxOffsetsPerTrigger": "25",
    }
    with tempfile.TemporaryDirectory() as folder:
        stream = session.readStream.format("tidemark").options(**options, **limits).load()
        writer = stream.select("offset", "value").writeStream.foreachBatch(take)
        run_available(writer.option("checkpointLocation", Path(folder).as_uri()))
    return sorted(rows)


def _error(session: SparkSession, options: dict[str, str]) -> str:
    try:
        read_topic(session, options).count()
    except PySparkException as error:
        return project_error(str(error))[0]
    return ""


def _batch(session: SparkSession, tier: str) -> DataFrame:
    batch = BatchRange({0: 5}, {0: 45}, is_last=False, is_empty=False)
    return read_batch(session, {"topic": "t", "path": tier}, batch)


def plans(session: SparkSession, tier: str) -> list[str]:
    """Return the physical plans of a query and of an export's batch that were run."""
    table = read_topic(session, {"topic": "t", "path": tier}).selectExpr("sum(octet_length(value))")
    found = []
    for frame in (table, _batch(session, tier)):
        frame.collect()
        found.append(str(frame._jdf.queryExecution().executedPlan().toString()))
    return found


def main() -> None:
    tier, jar = sys.argv[1:]
    with local_session("columnar", short=True, settings={"spark.jars": jar}) as session:
        found = {"answers": answers(session, tier), "plans": plans(session, tier)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
