"""Statistics of a topic's records: times, sizes, most frequent keys and tiers.

The topic is read three times, and each read returns a few hundred rows whatever the topic's size.
The first read finds the time range and the end offsets, and the others stop at those offsets.
"""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from tidemark.export_job import KAFKA
from tidemark_pipeline.read.options import is_kafka_topic
from tidemark_pipeline.read.topic_source import read_topic
from tidemark_pipeline.report.figures import ReportFigures, ReportPeriod, TierShare, width_of

KEYS_NAMED = 10
#: Keys that Spark tracks at once to find the most frequent ones.
_TRACKED = 50_000


def figures(session: SparkSession, options: Mapping[str, str]) -> ReportFigures:
    """Read the topic in ``options`` and return the statistics for its report page.

    Raises the errors of reading it.
    """
    topic = options["topic"]
    # The first read finds the share of each partition and tier, and the time range.
    shares = _tier_shares(_with_tier(session, options))
    times = [(share.first_ms, share.last_ms) for share in shares]
    first_ms = min((first for first, _ in times if first is not None), default=0)
    last_ms = max((last for _, last in times if last is not None), default=0)
    width_ms = width_of(last_ms - first_ms)
    if not shares:
        return ReportFigures(topic, (), width_ms, (), (), (), 0)
    # The further reads end where the first one did.
    ends: dict[str, int] = {}
    for share in shares:
        ends[str(share.partition)] = max(ends.get(str(share.partition), 0), share.last_offset + 1)
    # Records that expire meanwhile are left out, and new records are not counted.
    pinned = {**options, "endingOffsets": json.dumps({topic: ends}), "failOnDataLoss": "false"}
    # One read counts rows by time and size, the other by key.
    rows = _by_time_and_size(_read(session, pinned, "timestamp,key,value"), width_ms)
    keys, distinct = _keys(_read(session, pinned, "key"))
    sizes: dict[int, int] = {}
    for row in rows:
        sizes[row.size] = sizes.get(row.size, 0) + row.rows
    return ReportFigures(
        topic,
        shares,
        width_ms,
        _periods(rows, width_ms),
        tuple(sorted(sizes.items())),
        keys,
        distinct,
    )


def _read(session: SparkSession, options: Mapping[str, str], columns: str) -> DataFrame:
    return read_topic(session, {**options, "columns": columns})


def _with_tier(session: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Read with the tier of each record.

    Apache Kafka's brokers do not report the tier, so all records have ``KAFKA``.
    """
    named = "partition,offset,timestamp,key,value"
    if is_kafka_topic(options):
        return _read(session, options, named).withColumn("tier", f.lit(KAFKA))
    return _read(session, options, f"{named},tier")


_SIZE = "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)"


def _tier_shares(table: DataFrame) -> tuple[TierShare, ...]:
    """Return for each partition and tier the records it has: rows, offsets, times and bytes."""
    rows = (
        table.groupBy("partition", "tier")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.min("offset").alias("first_offset"),
            f.max("offset").alias("last_offset"),
            f.min(f.unix_millis("timestamp")).alias("first_ms"),
            f.max(f.unix_millis("timestamp")).alias("last_ms"),
            f.sum(f.expr(_SIZE)).alias("bytes"),
            f.count_if(f.col("key").isNull()).alias("without_key"),
            f.count_if(f.col("value").isNull()).alias("without_value"),
        )
        .orderBy("partition", "first_offset")
        .collect()
    )
    return tuple(TierShare(**row.asDict()) for row in rows)


def _by_time_and_size(table: DataFrame, width_ms: int) -> list[Row]:
    """Return (start, size, rows, bytes); ``start`` is null for records without a time."""
    since = f.floor(f.unix_millis("timestamp") / width_ms) * width_ms
    return (
        table.withColumn("bytes", f.expr(_SIZE))
        .groupBy(
            since.alias("start"),
            # Sizes are grouped by the next power of two, so that the number of rows stays small.
            f.expr("cast(pow(2, ceil(log2(greatest(bytes, 1)))) as bigint)").alias("size"),
        )
        .agg(f.count(f.lit(1)).alias("rows"), f.sum("bytes").alias("bytes"))
        .collect()
    )


def _periods(rows: list[Row], width_ms: int) -> tuple[ReportPeriod, ...]:
    """Return all periods, with zero rows where no record was written."""
    totals: dict[int, tuple[int, int]] = {}
    for row in rows:
        if row.start is not None:
            count, size = totals.get(int(row.start), (0, 0))
            totals[int(row.start)] = count + row.rows, size + row.bytes
    if not totals:
        return ()
    return tuple(
        ReportPeriod(start, *totals.get(start, (0, 0)))
        for start in range(min(totals), max(totals) + 1, width_ms)
    )


def _keys(table: DataFrame) -> tuple[tuple[tuple[bytes, int], ...], int]:
    """Return the most frequent keys with approximate counts, and the number of distinct keys.

    Both are Spark sketches, so the memory does not depend on the number of keys. The sketch accepts
    no bytes, so keys are passed as hexadecimal text.
    """
    row = (
        table.where("key is not null")
        .selectExpr(
            f"approx_top_k(hex(key), {KEYS_NAMED}, {_TRACKED}) as top",
            "approx_count_distinct(key) as keys",
        )
        .first()
    )
    assert row is not None
    top = tuple((bytes.fromhex(entry["item"]), int(entry["count"])) for entry in row.top or ())
    return top, int(row["keys"])
