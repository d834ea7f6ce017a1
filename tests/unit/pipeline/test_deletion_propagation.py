"""Rows that are deleted with their records, and tables whose rows never are."""

from dataclasses import replace

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.maintenance import behind, below, condition
from tidemark_pipeline.export.row_shapes import prefix_of_record

AT = Exported("t", "id", {0: 17, 1: 4}, 3, "a")


def test_rows_below_the_log_start_are_deleted_in_that_partition_only() -> None:
    """Partitions with an unknown log start, or without a deletion, keep their rows too."""
    # Partition 1 starts at 0, so that it has no row to delete.
    deleted = below(AT, {"id"}, {0: 5, 1: 0})
    assert deleted == {0: 5}
    assert condition("kafka.", {0: 5, 2: 9}) == (
        "(kafka.`partition` = 0 AND kafka.`offset` < 5) OR "
        "(kafka.`partition` = 2 AND kafka.`offset` < 9)"
    )
    assert below(AT, {"id"}, {}) == {}


@pytest.mark.parametrize(
    ("exported", "ids", "why"),
    [
        (replace(AT, deletes=True), {"id"}, "no reason to drop it from the table"),
        (AT, {"another"}, "nothing is dropped"),
        (AT, {"id", ""}, "nothing is dropped"),
        (AT, set(), "nothing is dropped"),
        (replace(AT, topic_id=""), {""}, "nothing is dropped"),
    ],
    ids=["the export deletes", "recreated", "two", "no partitions", "no id"],
)
def test_nothing_is_deleted_where_the_log_start_does_not_belong_to_the_table(
    exported: Exported, ids: set[str], why: str
) -> None:
    with pytest.raises(ExportError, match=why):
        below(exported, ids, {0: 5})


def test_batch_under_way_may_contain_deleted_records() -> None:
    # The logs of partitions 1 and 2 start above the offsets of the table.
    assert behind(AT, {0: 17, 1: 5, 2: 1}) == (1, 2)


def test_rows_are_identified_by_the_columns_of_their_records() -> None:
    """A field of the value with the name of a record's column is not mistaken for it."""

    def of(*names: str, **structs: StructType) -> StructType:
        fields = [StructField(name, LongType()) for name in names]
        return StructType([*fields, *(StructField(n, kind) for n, kind in structs.items())])

    record = ("topic", "partition", "offset")
    assert prefix_of_record("t", of(*record, "value")) == ""
    assert prefix_of_record("t", of(*record, kafka=of(*record))) == "kafka."
    for incomplete in (of("a"), of("partition", "offset"), of("kafka"), of(kafka=of("offset"))):
        with pytest.raises(ExportError, match="nothing says which records its rows are of"):
            prefix_of_record("t", incomplete)
