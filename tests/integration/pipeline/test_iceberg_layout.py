"""Partition transforms and the sort order of a new Iceberg table, in its files as well."""

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.lakes import Lake, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records
from tidemark_pipeline.export.export_progress import ExportError, WriteMode
from tidemark_pipeline.export.maintenance import TableMaintenance
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import (
    PartitionField,
    Partitioning,
    PartitionPeriod,
    SortField,
    TableLayout,
)
from tidemark_pipeline.jobs.maintain import maintain

pytestmark = [*MARKS, pytest.mark.full, pytest.mark.timeout(600)]
#: Every transform of the specification, with the name of its partition field.
TRANSFORMS = {
    "topic": PartitionField("topic"),
    "timestamp_year": PartitionField("timestamp", "year"),
    "leaderEpoch_null": PartitionField("leaderEpoch", "void"),
    "key_bucket": PartitionField("key", "bucket[4]"),
    "offset_trunc": PartitionField("offset", "truncate[10]"),
}
TIMES = ("month", "day", "hour")


def layout(mode: WriteMode = WriteMode.APPEND, **partitioning: Any) -> TableLayout:
    return TableLayout(columns=RAW_DDL, mode=mode, partitioning=Partitioning(**partitioning))


def write(lake: Lake, of: TableLayout, offsets: range, commits: int = 1) -> None:
    table = lake.table(layout=of)
    at = table.claim("t", "")
    for n in range(commits):
        # Each batch has its rows in another order than the table.
        rows = [(b"k%02d" % (o % 7), 0, o, o, "v") for o in offsets if o % commits == n]
        at = at.reaching({0: offsets.stop})
        table.commit(records(lake.session, *rows), at)
    table.close()


@pytest.mark.parametrize("mode", WriteMode)
def test_a_table_has_every_transform(
    session: SparkSession, tmp_path: Path, mode: WriteMode
) -> None:
    lake = new_lake(session, {}, tmp_path)
    write(lake, layout(mode, fields=tuple(TRANSFORMS.values())), range(20))
    spec = lake.loaded().spec()
    assert [str(field.name()) for field in spec.fields()] == list(TRANSFORMS)
    assert [str(field.transform()) for field in spec.fields()] == [
        field.transform for field in TRANSFORMS.values()
    ]
    found = session.sql(f"SELECT partition.* FROM {lake.name}.files").collect()
    assert {row["offset_trunc"] for row in found} <= {0, 10}
    assert {row["leaderEpoch_null"] for row in found} == {None}
    rows = 20 if mode is WriteMode.APPEND else 7
    assert session.table(lake.name).count() == rows


@pytest.mark.parametrize("transform", TIMES)
def test_a_table_has_each_period(session: SparkSession, tmp_path: Path, transform: str) -> None:
    lake = new_lake(session, {}, tmp_path)
    write(lake, layout(fields=(PartitionField("timestamp", transform),)), range(3))
    (field,) = lake.loaded().spec().fields()
    assert str(field.transform()) == transform


def test_period_and_buckets_are_transforms() -> None:
    fields = layout(period=PartitionPeriod.DAY, buckets=4).partition_fields()
    assert fields == [PartitionField("timestamp", "day"), PartitionField("key", "bucket[4]")]


def test_files_are_sorted_and_stay_so(session: SparkSession, tmp_path: Path) -> None:
    lake = new_lake(session, {}, tmp_path)
    sort = (SortField("key", direction="desc"), SortField("offset", "truncate[100]"))
    write(lake, layout(sort=sort), range(40), commits=6)
    assert str(lake.loaded().sortOrder().fields().get(0).direction()) == "DESC"

    def check() -> int:
        files = session.sql(f"SELECT file_path FROM {lake.name}.files").collect()
        for file in files:
            path = file["file_path"].removeprefix("file:")
            keys = pyarrow.parquet.read_table(path, columns=["key"])["key"].to_pylist()
            assert keys == sorted(keys, reverse=True)
        return len(files)

    assert check() >= 6
    maintain(session, lake.kind, lake.name, TableMaintenance(keep=None, orphans=None))
    assert check() == 1


@pytest.mark.parametrize(
    ("partitioning", "message"),
    [
        ({"fields": (PartitionField("nothing"),)}, "nothing"),
        ({"fields": (PartitionField("offset", "day"),)}, "day"),
        ({"fields": (PartitionField("offset", "zorder"),)}, "unknown transform zorder"),
        ({"sort": (SortField("nothing"),)}, "nothing"),
    ],
    ids=str,
)
def test_a_layout_that_does_not_fit_the_columns_is_refused(
    session: SparkSession, tmp_path: Path, partitioning: dict[str, Any], message: str
) -> None:
    lake = new_lake(session, {}, tmp_path)
    with pytest.raises(ExportError, match=message):
        lake.table(layout=layout(**partitioning)).claim("t", "")
    # Nothing is left, so that the corrected manifest creates the table.
    lake.table(layout=layout()).claim("t", "")
