"""Check that a rewritten table still ends with the rows of the last export.

``INSERT OVERWRITE`` with an older version of the table takes it back without a rollback: the newest
version follows the last export's and lacks its rows. Other tools may delete single rows. The last
rows of each partition, which an older version lacks, tell the two cases apart: the very last row if
all rows were replaced, otherwise some of them.
"""

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window

#: Last rows of a partition that are compared, and the last offsets in which they are looked for.
SOME = 10
_OFFSETS = 10_000
#: Partitions in one query.
_PARTITIONS = 200


def without_last_rows(
    before: DataFrame, now: DataFrame, prefix: str, offsets: Mapping[int, int], rows: int = SOME
) -> list[int]:
    """Return the partitions whose last rows are in ``before`` and all missing in ``now``.

    ``prefix``: of the columns ``partition`` and ``offset``. ``offsets``: exclusive end offset of
    the rows by partition. ``rows``: number of last rows of each partition to compare.
    """
    place = (f.col(f"{prefix}partition"), f.col(f"{prefix}offset"))
    newest_first = Window.partitionBy("partition").orderBy(f.desc("offset"))
    partitions: list[int] = []
    # A condition over all partitions of a large topic would be too long for one query, so they are
    # divided.
    for some in _divided(offsets):
        # Only the last offsets of each partition are read.
        near = " OR ".join(
            f"({prefix}`partition` = {part} AND {prefix}`offset` >= {end - _OFFSETS})"
            for part, end in some.items()
        )
        numbered = (
            before.where(near).select(*place).withColumn("place", f.row_number().over(newest_first))
        )
        # The last rows of the last export, and those of them that the table lacks now.
        last = numbered.where(f.col("place") <= rows).select("partition", "offset")
        missing = last.join(now.where(near).select(*place), ["partition", "offset"], "left_anti")
        # Each last row counts once, and once more if it is missing.
        counts = (
            last.withColumn("is_gone", f.lit(0))
            .unionByName(missing.withColumn("is_gone", f.lit(1)))
            .groupBy("partition")
            .agg(f.sum("is_gone").alias("gone"), f.count("*").alias("all"))
        )
        # All last rows are missing if half of the counted rows are marked as gone.
        partitions += [
            int(row["partition"]) for row in counts.collect() if 2 * row["gone"] == row["all"]
        ]
    return sorted(partitions)


def _divided(offsets: Mapping[int, int]) -> Iterator[dict[int, int]]:
    ends = sorted(offsets.items())
    for first in range(0, len(ends), _PARTITIONS):
        yield dict(ends[first : first + _PARTITIONS])
