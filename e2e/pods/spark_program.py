"""Program in the pod of the Spark job: counts the records of a topic and sums their numbers, and
does the same for the table of an Export.

Argument, as one JSON object: ``topic``, the options of the ``tidemark`` source; and, if there is a
table, ``table``, the arguments of :class:`tidemark_pipeline.export.table_options.TableOptions`, and
``jar``, the path of Iceberg. Output is one line, a JSON object with the same two names. For the
topic it has, for each partition and tier (``remote``, ``local``), the number of rows and the sum of
the numbers that the values start with. For the table it has rows, distinct offsets and that sum, or
null.
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tidemark_pipeline.export.table_options import CATALOG, TableOptions
from tidemark_pipeline.read.topic_source import read_topic
from tidemark_pipeline.session import local_session

NUMBER = "cast(substring(cast(value as string), 1, 8) as long)"


def of_topic(session: SparkSession, options: dict[str, str]) -> list[dict[str, Any]]:
    """Its rows and sums."""
    found = (
        read_topic(session, options)
        .groupBy("partition", "tier")
        .agg(f.expr(f"count({NUMBER})").alias("rows"), f.expr(f"sum({NUMBER})").alias("total"))
    )
    return [row.asDict() for row in found.collect()]


def of_table(session: SparkSession, wanted: TableOptions) -> dict[str, Any]:
    """Return rows, distinct offsets and sum of a table."""
    (row,) = (
        session.table(f"{CATALOG}.{wanted.table}")
        .agg(
            f.expr(f"count({NUMBER})").alias("rows"),
            f.countDistinct("partition", "offset").alias("offsets"),
            f.expr(f"sum({NUMBER})").alias("total"),
        )
        .collect()
    )
    return row.asDict()


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    wanted = TableOptions.of(told["table"]) if "table" in told else None
    settings = wanted.settings([told["jar"]]) if wanted else {}
    with local_session("e2e", short=True, settings=settings) as session:
        table = of_table(session, wanted) if wanted else None
        print(json.dumps({"topic": of_topic(session, told["topic"]), "table": table}), flush=True)
