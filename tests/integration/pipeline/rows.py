"""Records as the data source returns them, without a topic."""

from pyspark.sql import DataFrame, SparkSession


def records(
    session: SparkSession, *rows: tuple[bytes | None, int, int, int, str | None]
) -> DataFrame:
    """Return a frame of (key, partition, offset, milliseconds, value)."""
    columns = "key binary, partition int, offset bigint, at bigint, value string"
    raw = session.createDataFrame(list(rows), columns)
    return raw.selectExpr(
        *("'t' AS topic", "partition", "offset", "timestamp_millis(at) AS timestamp"),
        *("0 AS timestampType", "key", "CAST(value AS BINARY) AS value"),
        "CAST(NULL AS array<struct<key: string, value: binary>>) AS headers",
        *("0 AS leaderEpoch", "CAST(NULL AS int) AS tieredEpoch"),
    )
