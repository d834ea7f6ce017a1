"""What runs in the pod of the Spark job: a topic is counted, and its records' numbers summed.

Argument: the options of the ``tidemark`` source as one JSON object. One line comes out: for each
partition and tier (``remote``, ``local``) how many rows there are, and the sum of the numbers that
the values begin with.
"""

import json
import sys

from pyspark.sql import functions as f

from tidemark_pipeline.jobs.aggregate import read_topic
from tidemark_pipeline.session import local_session

if __name__ == "__main__":
    with local_session("e2e", short=True) as session:
        number = f.substring(f.col("value").cast("string"), 1, 8).cast("long")
        rows = (
            read_topic(session, json.loads(sys.argv[1]))
            .groupBy("partition", "tier")
            .agg(f.count(number).alias("rows"), f.sum(number).alias("total"))
            .collect()
        )
        print(json.dumps([row.asDict() for row in rows]), flush=True)
