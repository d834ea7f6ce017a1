"""Upsert by key: the table has the last record of each key, and no row if that has no value.

Keys are compared byte for byte, as in Kafka's compaction. If a schema registry has a subject for
keys, the ID of the key's schema is not compared (:mod:`~tidemark_pipeline.schemas.registry.keys`).

The last record is the one with the highest offset in its partition. A producer keeps a key in one
partition. Keys move only if partitions are added to the topic. Of records in two partitions the one
with the newer timestamp is the last, then the one in the higher partition. A table does not
remember deleted keys. A record of another partition that is older than the deletion, and is
committed later, restores the key.

This module selects the last row of each key within a batch. The ``MERGE`` of both formats compares
it with the table's row.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.table import DELETED, TableLayout

_NO_KEY = "has no key, and an upsert needs one"
_KEYLESS = re.compile(rf"the record at offset \d+ of partition \d+ {_NO_KEY}")


def latest(frame: DataFrame, layout: TableLayout) -> DataFrame:
    """Return the last row of each key in a batch, with the column :data:`DELETED`.

    A row without a key fails the job that reads the frame, with the record's offset and partition.
    """
    if DELETED not in frame.columns:
        frame = frame.withColumn(DELETED, f.col("value").isNull())
    names = ("partition", "offset", "timestamp")
    partition, offset, timestamp = (f.col(layout.of_record(name)) for name in names)
    place = f.concat(f.lit("the record at offset "), offset, f.lit(" of partition "), partition)
    same = f.expr(layout.same_key(layout.of_record("key")))
    by = f.coalesce(same, f.raise_error(f.concat(place, f.lit(f" {_NO_KEY}"))))
    of_partition = Window.partitionBy(by, partition).orderBy(offset.desc())
    of_key = Window.partitionBy(by).orderBy(timestamp.desc_nulls_last(), partition.desc())
    number = "_number"
    while number in {name.lower() for name in frame.columns}:  # avoid a field of the values
        number += "_"
    # Within a partition the highest offset is the last. Then the rows of a key in several
    # partitions are compared by timestamp.
    for window in (of_partition, of_key):
        frame = frame.withColumn(number, f.row_number().over(window)).where(f.col(number) == 1)
    return frame.drop(number)


def keyless_record_error(error: Exception) -> ExportError | None:
    """Return the error of :func:`latest` in an exception of Spark; None for other exceptions."""
    match = _KEYLESS.search(str(error))
    return ExportError(match[0]) if match else None


def merge(target: str, source: str, layout: TableLayout, columns: Sequence[str]) -> str:
    """Return the MERGE statement that upserts the rows of a view into ``target``.

    ``source``: view of the rows of :func:`latest`, which has ``columns`` and :data:`DELETED`. A row
    of the table is changed only by a later record.
    """
    # A row may reach the table after a later record of its key, from another partition.
    newer = _newer(layout)
    target_key, source_key = (
        layout.same_key(f"{alias}.{layout.of_record('key')}") for alias in "ts"
    )
    names = [quoting.identifier(name) for name in columns]
    values = [f"s.{column}" for column in names]
    sets = (f"{name} = {value}" for name, value in zip(names, values, strict=True))
    return (
        f"MERGE INTO {target} AS t USING {source} AS s ON {target_key} = {source_key} "
        f"WHEN MATCHED AND s.{DELETED} AND {newer} THEN DELETE "
        f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(sets)} "
        f"WHEN NOT MATCHED AND NOT s.{DELETED} "
        f"THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"
    )


def merge_into(target: str, frame: DataFrame, layout: TableLayout, view: str) -> None:
    """Upsert the rows of a batch. ``view``: name of a temporary view that no other job uses."""
    last = latest(frame, layout)
    last.createOrReplaceTempView(view)
    try:
        columns = [column for column in last.columns if column != DELETED]
        frame.sparkSession.sql(merge(target, view, layout, columns))
    finally:
        frame.sparkSession.catalog.dropTempView(view)


@contextmanager
def configured(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply settings to the session in this context, and unset them afterwards.

    No other code may rely on these settings.
    """
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


def _newer(layout: TableLayout) -> str:
    partition, offset, timestamp = (
        layout.of_record(name) for name in ("partition", "offset", "timestamp")
    )
    # Kafka's timestamp -1 stands for a record without one.
    age = "struct(coalesce({0}.{1}, timestamp_millis(-1)), {0}.{2})"
    return (
        f"if(s.{partition} = t.{partition}, s.{offset} > t.{offset}, "
        f"{age.format('s', timestamp, partition)} > {age.format('t', timestamp, partition)})"
    )
