"""Catalogs of Iceberg: a JDBC catalog in a file, and configurations of others that Iceberg's own
classes accept without a server.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.lakes import OthersCommitMeanwhile, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records
from tidemark_pipeline.export.export_progress import Superseded
from tidemark_pipeline.export.iceberg_branch import mark_run
from tidemark_pipeline.export.maintenance import TableMaintenance
from tidemark_pipeline.export.table import RunRef
from tidemark_pipeline.jobs.maintain import maintain

pytestmark = [*MARKS, pytest.mark.full, pytest.mark.timeout(600)]


def test_one_job_at_a_time_writes_a_table_of_a_jdbc_catalog(
    session: SparkSession, tmp_path: Path
) -> None:
    database = f"jdbc:sqlite:{tmp_path / 'catalog.db'}"
    lake = new_lake(
        session, {}, tmp_path, type="jdbc", uri=database, warehouse=str(tmp_path / "lake")
    )
    first = lake.table()
    at = first.claim("t", "")
    first.commit(records(session, (b"a", 0, 0, 1, "0")), at := at.reaching({0: 1}))
    # Another client commits in the middle of the second job's batch.
    second = lake.table(OthersCommitMeanwhile)
    at = second.claim("t", "")
    second.commit(records(session, (b"b", 0, 1, 2, "1")), at := at.reaching({0: 2}))
    with pytest.raises(Superseded):
        first.commit(records(session, (b"c", 0, 1, 2, "1")), at.reaching({0: 3}))
    maintain(session, lake.kind, lake.name, TableMaintenance(orphans=None))
    assert sorted(row["offset"] for row in session.table(lake.name).collect()) == [0, 1]


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_each_run_leaves_a_tag_or_a_branch(
    session: SparkSession, tmp_path: Path, kind: str
) -> None:
    lake = new_lake(session, {}, tmp_path)
    table = lake.table()
    at = table.claim("t", "")
    ref = RunRef(prefix="nightly", kind=kind, max_age_ms=60_000)
    names = []
    for n, now_ms in enumerate((1_767_225_600_000, 1_767_312_000_000)):
        table.commit(records(session, (b"k", 0, n, n, "v")), at := at.reaching({0: n + 1}))
        for _ in range(2):  # a repeated run changes nothing
            mark_run(session, lake.name, ref, now_ms)
        names.append(ref.name(now_ms))
    assert names == ["nightly-20260101T000000Z", "nightly-20260102T000000Z"]
    for rows, name in enumerate(names, 1):
        query = f"SELECT * FROM {lake.name} VERSION AS OF '{name}'"
        assert session.sql(query).count() == rows
    refs: Any = lake.loaded().refs()
    assert refs.get(names[0]).maxRefAgeMs() == 60_000


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "hive", "uri": "thrift://metastore.example:9083"},
        {
            "type": "glue",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "client.region": "eu-central-1",
            "glue.endpoint": "https://glue.example",
        },
    ],
    ids=lambda properties: properties["type"],
)
def test_iceberg_accepts_the_configuration(
    session: SparkSession, tmp_path: Path, properties: dict[str, str]
) -> None:
    """Its class is found and initialized; a server is needed only later."""
    jvm: Any = session._jvm  # type: ignore[attr-defined]
    util = jvm.org.apache.iceberg.CatalogUtil
    given = {"warehouse": str(tmp_path), **properties}
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    catalog = util.buildIcebergCatalog("lake", given, configuration)
    assert str(catalog.name()) == "lake"
