"""A table in S3 under a REST catalog: the catalog checks requirements ref by ref, and files go
through Iceberg's own S3 client (invariant 26).
"""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from tests.integration.pipeline.lakes import OthersCommitMeanwhile, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records
from tests.rest_catalog import rest_catalog
from tests.s3 import fresh_bucket
from tidemark_pipeline.export.export_progress import Superseded, WriteMode
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mode", WriteMode)
def test_one_job_at_a_time_writes_an_iceberg_table_in_s3(
    session: SparkSession, tmp_path: Path, minio: Any, mode: WriteMode
) -> None:
    s3 = fresh_bucket(minio)
    files = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": s3["endpoint"],
        "s3.path-style-access": "true",
        "s3.access-key-id": s3["accessKeyId"],
        "s3.secret-access-key": s3["secretAccessKey"],
        "client.region": s3["region"],
    }
    place = {"warehouse": f"s3://{s3['buckets'][0]}/lake", **files}
    layout = TableLayout(columns=RAW_DDL, mode=mode)
    with rest_catalog(session, place) as address:
        lake = new_lake(session, {}, tmp_path, type="rest", uri=address, **files)
        # The first job claims the table and commits two records.
        first = lake.table(layout=layout)
        at = first.claim("t", "")
        first.commit(
            records(session, (b"a", 0, 0, 1, "0"), (b"b", 0, 1, 2, "1")), at := at.reaching({0: 2})
        )
        # The second job claims it; another client commits during its write.
        second = lake.table(OthersCommitMeanwhile, layout)
        at = second.claim("t", "")
        assert (at.epoch, at.offsets) == (2, {0: 2})
        # The catalog checks the branch's snapshot, so the first job is refused.
        with pytest.raises(Superseded, match="has taken over the table"):
            first.commit(records(session, (b"a", 0, 2, 3, "2")), at.reaching({0: 3}))
        second.commit(
            records(session, (b"a", 0, 2, 3, "2"), (b"b", 0, 3, 4, None)), at.reaching({0: 4})
        )
        second.close()
        rows = session.table(lake.name).orderBy("offset").collect()
        assert [row["offset"] for row in rows] == (
            [0, 1, 2, 3] if mode is WriteMode.APPEND else [2]
        )
        # A reader without Spark finds the same rows by the same catalog.
        s3_files = {
            "s3.endpoint": s3["endpoint"],
            "s3.region": s3["region"],
            "s3.access-key-id": s3["accessKeyId"],
            "s3.secret-access-key": s3["secretAccessKey"],
        }
        catalog = load_catalog("lake", type="rest", uri=address, **s3_files)
        connection = catalog.load_table("db.events").scan().to_duckdb("events")
        found = connection.sql('SELECT "offset", decode(value) FROM events ORDER BY ALL').fetchall()
        assert found == [(row["offset"], row["value"] and row["value"].decode()) for row in rows]
        # Files were written by Iceberg's S3 client, not by a local file system.
        files_of = session.table(f"{lake.name}.files").collect()
        assert all(item["file_path"].startswith("s3://") for item in files_of)
