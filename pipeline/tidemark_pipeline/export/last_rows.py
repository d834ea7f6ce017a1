"""Whether a table that others have rewritten still ends with the rows that were exported last.

``INSERT OVERWRITE`` with what an older version of the table had takes it back without a rollback:
the newest version follows the last export's, and has not its rows. A deletion of single rows by
others is theirs to do. The two are told apart by the last rows of each partition, which an older
version has not: by the very last one where all rows were replaced, else by some of them.
"""

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window

#: Of the last rows of a partition, within so many of its last offsets.
SOME = 10
_OFFSETS = 10_000
#: Conditions of one look.
_PARTITIONS = 200


def without_last_rows(
    before: DataFrame, now: DataFrame, prefix: str, offsets: Mapping[int, int], rows: int = SOME
) -> list[int]:
    """The partitions whose last ``rows`` rows ``before`` has, and ``now`` has none of. ``prefix``:
    of the columns ``partition`` and ``offset``; ``offsets``: by partition where the rows end."""
    place = (f.col(f"{prefix}partition"), f.col(f"{prefix}offset"))
    newest_first = Window.partitionBy("partition").orderBy(f.desc("offset"))
    found: list[int] = []
    for some in _divided(offsets):
        near = " OR ".join(
            f"({prefix}`partition` = {part} AND {prefix}`offset` >= {end - _OFFSETS})"
            for part, end in some.items()
        )
        numbered = (
            before.where(near).select(*place).withColumn("place", f.row_number().over(newest_first))
        )
        last = numbered.where(f.col("place") <= rows).select("partition", "offset")
        gone = last.join(now.where(near).select(*place), ["partition", "offset"], "left_anti")
        # Of a partition, whether each of its last rows is gone.
        counts = (
            last.withColumn("is_gone", f.lit(0))
            .unionByName(gone.withColumn("is_gone", f.lit(1)))
            .groupBy("partition")
            .agg(f.sum("is_gone").alias("gone"), f.count("*").alias("all"))
        )
        found += [
            int(row["partition"]) for row in counts.collect() if 2 * row["gone"] == row["all"]
        ]
    return sorted(found)


def _divided(offsets: Mapping[int, int]) -> Iterator[dict[int, int]]:
    ends = sorted(offsets.items())
    for first in range(0, len(ends), _PARTITIONS):
        yield dict(ends[first : first + _PARTITIONS])
