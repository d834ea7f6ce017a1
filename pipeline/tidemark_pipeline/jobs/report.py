"""Statistics of a topic's records: times, sizes, most frequent keys and tiers.

The topic is read three times, and each read returns a few hundred rows whatever the topic's size.
The first read finds the time range and the end offsets, and the others stop at those offsets.

Statistics of an exported table are rows by time and partition, and dead letters by their cause.
"""

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as f

from tidemark.export_job import KAFKA
from tidemark_pipeline.export.delta import table_exists
from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.row_shapes import prefix_of_record
from tidemark_pipeline.jobs.maintain import progress_of
from tidemark_pipeline.read.options import is_kafka_topic
from tidemark_pipeline.read.topic_source import read_topic
from tidemark_pipeline.report.figures import (
    PARTITIONS_SHOWN,
    LetterCause,
    LetterSample,
    ReportFigures,
    ReportPeriod,
    RowsOfPartition,
    TableFigures,
    TierShare,
    width_of,
)

KEYS_NAMED = 10
#: Keys that Spark tracks at once to find the most frequent ones.
_TRACKED = 50_000
#: Limits of what is read of dead letters: causes, characters of each, bytes of a key or a value.
CAUSES_MAX = 20
_ERROR_CHARS = 200
_SAMPLE_BYTES = 200
_LONG_NUMBER = "[-+]?[0-9]{10,}"
#: Columns of bytes in a sample.
_BYTES = ("key", "value")


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


# ------------------------------------------------------------ Tables


def table_figures(
    session: SparkSession,
    kind: Format,
    name: str,
    letters_name: str,
    *,
    table: str,
    samples: int,
    needs_letters: bool = False,
) -> TableFigures:
    """Read an exported table and return the statistics for its page.

    ``name`` and ``letters_name``: of the table and its dead letters in Spark. The latter may be
    missing, unless ``needs_letters`` is set. ``table``: name as the user gave it. ``samples``: dead
    letters to show of each cause. Raises :class:`ExportError` if rows do not have their records'
    columns, and PySparkException.
    """
    frame = session.table(name)
    prefix = prefix_of_record(name, frame.schema)
    record = frame.select(
        *(f.col(prefix + column).alias(column) for column in ("partition", "offset")),
        f.unix_millis(prefix + "timestamp").alias("ms"),
    )
    # The first read finds the time range, which decides the width of the periods.
    total = record.agg(
        f.count(f.lit(1)).alias("rows"), f.min("ms").alias("first"), f.max("ms").alias("last")
    ).collect()[0]
    width_ms = width_of((total["last"] or 0) - (total["first"] or 0))
    since = (f.floor(f.col("ms") / width_ms) * width_ms).alias("start")
    counted = record.groupBy(since).agg(
        f.count(f.lit(1)).alias("rows"), f.lit(0).cast("long").alias("bytes")
    )
    # A table whose progress is not known has rows nevertheless.
    try:
        exported = progress_of(session, kind, name)
    except ExportError:
        exported = None
    exported = exported or Exported("")
    has_letters = needs_letters or table_exists(session, letters_name)
    letters, causes = _letters(session.table(letters_name), samples) if has_letters else (None, ())
    return TableFigures(
        table=table,
        topic=exported.topic,
        rows=total["rows"],
        committed_ms=_committed_ms(session, kind, name),
        newest_ms=total["last"],
        positions=exported.offsets,
        partitions=_partitions(record),
        width_ms=width_ms,
        periods=_periods(counted.collect(), width_ms),
        letters=letters,
        causes=causes,
    )


def _partitions(record: DataFrame) -> tuple[RowsOfPartition, ...]:
    rows = (
        record.groupBy("partition")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.min("offset").alias("first_offset"),
            f.max("offset").alias("last_offset"),
            f.max("ms").alias("last_ms"),
        )
        .orderBy("partition")
        .limit(PARTITIONS_SHOWN)
        .collect()
    )
    return tuple(RowsOfPartition(**row.asDict()) for row in rows)


def _committed_ms(session: SparkSession, kind: Format, name: str) -> int | None:
    """Return the time of the table's newest version, by the clock of its writer."""
    if kind is Format.DELTA:
        history = session.sql(f"DESCRIBE HISTORY {name} LIMIT 1").select("timestamp")
    else:
        history = session.sql(f"SELECT max(committed_at) AS timestamp FROM {name}.snapshots")
    row = history.select(f.unix_millis("timestamp").alias("ms")).first()
    return None if row is None else row["ms"]


def _letters(letters: DataFrame, samples: int) -> tuple[int, tuple[LetterCause, ...]]:
    """Return the number of dead letters and their most frequent causes."""
    # A number of the record would make each error a cause. Errors and values may be long, so that
    # Spark returns only their beginning.
    error = f.regexp_replace(f.coalesce("error", f.lit("")), _LONG_NUMBER, "N")
    cause = f.substring(error, 1, _ERROR_CHARS).alias("error")
    record = letters.select(
        cause,
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("time_ms"),
        *_beginning("key"),
        *_beginning("value"),
    )
    rows = (
        record.groupBy("error")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.min("time_ms").alias("first_ms"),
            f.max("time_ms").alias("last_ms"),
        )
        .orderBy(f.desc("rows"), "error")
        .limit(CAUSES_MAX)
        .collect()
    )
    found = _samples(record, [row.error for row in rows], samples)
    causes = (LetterCause(**row.asDict(), samples=found.get(row.error, ())) for row in rows)
    return letters.count(), tuple(causes)


def _beginning(column: str) -> tuple[Column, Column]:
    """Return the first bytes of a column, and the number of all its bytes."""
    return (
        f.substring(column, 1, _SAMPLE_BYTES).alias(column),
        f.coalesce(f.octet_length(column), f.lit(0)).alias(f"{column}_bytes"),
    )


def _samples(
    record: DataFrame, errors: list[str], samples: int
) -> dict[str, tuple[LetterSample, ...]]:
    """Return the newest dead letters of each error, at most ``samples``."""
    if not samples or not errors:
        return {}
    # Number the dead letters of each error from the newest one, and take the first.
    newest = Window.partitionBy("error").orderBy(
        *(f.desc(column) for column in ("time_ms", "offset", "partition"))
    )
    rows = (
        record.where(f.col("error").isin(errors))
        .withColumn("number", f.row_number().over(newest))
        .where(f.col("number") <= samples)
        .orderBy("error", "number")
        .collect()
    )
    # Spark's byte arrays become bytes.
    found: dict[str, list[LetterSample]] = {}
    for row in rows:
        fields = row.asDict()
        del fields["number"]
        error = fields.pop("error")
        data = {name: None if fields[name] is None else bytes(fields[name]) for name in _BYTES}
        found.setdefault(error, []).append(LetterSample(**{**fields, **data}))
    return {error: tuple(of_error) for error, of_error in found.items()}
