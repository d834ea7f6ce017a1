"""Aggregate a topic of JSON values: rows, sum and mean of a number by a key, as Parquet."""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidemark_pipeline.read.topic_source import read_topic


def aggregate(
    session: SparkSession, options: Mapping[str, str], *, by: str, value: str, output: Path
) -> DataFrame:
    """Aggregate a JSON field by a key, write the result as Parquet and return it.

    ``by`` and ``value``: fields of the values to group by and to aggregate. ``output``: folder to
    overwrite.

    The columns are the key, ``rows``, ``measured`` (rows whose value is a number), and the
    ``total`` and ``mean`` of the measured rows.
    """
    text = f.col("value").cast("string")
    # A text that is no number becomes null, which count, sum and avg skip.
    number = f.get_json_object(text, f"$.{value}").cast("double")
    table = (
        read_topic(session, options)
        .select(f.get_json_object(text, f"$.{by}").alias(by), number.alias("number"))
        .groupBy(by)
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.count("number").alias("measured"),
            f.sum("number").alias("total"),
            f.avg("number").alias("mean"),
        )
        .orderBy(by)
    )
    table.write.mode("overwrite").parquet(str(output))
    # Parquet does not guarantee the order of rows across files.
    return session.read.parquet(str(output)).orderBy(by)
