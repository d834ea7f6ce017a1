"""What runs in a pod beside an Export: a table is counted, and its records' numbers summed.

Arguments: what :class:`tidemark_pipeline.export.wanted.Wanted` is made of, and where Iceberg's jar
is, as JSON. One line comes out: how many rows there are, how many different offsets, and the sum of
the numbers that the values begin with.
"""

import json
import sys

from pyspark.sql import functions as f

from tidemark_pipeline.export.wanted import CATALOG, Wanted
from tidemark_pipeline.session import local_session

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    wanted = Wanted.of(told["table"])
    settings = wanted.settings([told["jar"]])
    with local_session("e2e", short=True, settings=settings) as session:
        number = f.substring(f.col("value").cast("string"), 1, 8).cast("long")
        (row,) = (
            session.table(f"{CATALOG}.{wanted.table}")
            .agg(
                f.count(number).alias("rows"),
                f.countDistinct("partition", "offset").alias("offsets"),
                f.sum(number).alias("total"),
            )
            .collect()
        )
        print(json.dumps(row.asDict()), flush=True)
