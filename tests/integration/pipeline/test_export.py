"""A topic in an Iceberg table: each record once, regardless of where the job ended and of other
commits, and one job at a time (invariant 26).
"""

import json
import sys
import threading
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tidemark_pipeline.export.dead_letters import TableWithDeadLetters
from tidemark_pipeline.export.export_progress import Exported, ExportError, Superseded
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.iceberg_branch import TAG
from tidemark_pipeline.export.json_values import JsonValues, fields_of
from tidemark_pipeline.export.row_shapes import KAFKA, LETTERS_DDL, RAW, RAW_DDL, columns_ddl
from tidemark_pipeline.export.table import Partitioning, PartitionPeriod, TableLayout
from tidemark_pipeline.jobs.export import ExportProgress, export
from tidemark_pipeline.schemas.value_format import ERROR, PARSED

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

from tests.integration.pipeline.lakes import (
    KILLED,
    Killed,
    KilledAfterWriting,
    Lake,
    OthersCommitMeanwhile,
    new_lake,
)
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records

# Other programs use most of the machine now and then.
pytestmark = [*MARKS, pytest.mark.timeout(600)]


@pytest.fixture
def topic(tmp_path: Path) -> SmallTier:
    folder = tmp_path / "tier"
    folder.mkdir()
    tier = SmallTier(folder, uuid.uuid4())
    more(tier, 40)
    return tier


def more(tier: SmallTier, count: int) -> None:
    start = tier.loaded.head.next_copy_offset
    tier.copy([b"value %d" % offset for offset in range(start, start + count)])


@pytest.fixture
def lake(session: SparkSession, topic: SmallTier, tmp_path: Path) -> Lake:
    return new_lake(session, {"topic": "t", "path": str(topic.path)}, tmp_path / "warehouse")


def check(lake: Lake) -> None:
    """Verify that the table has what the topic has, column by column."""
    read = lake.session.read.format("tidemark").options(**lake.source).load().select(*RAW)
    kept = lake.session.table(lake.name)
    assert kept.orderBy("offset").collect() == read.orderBy("offset").collect()


def test_each_record_is_exported_once_despite_kills(lake: Lake, topic: SmallTier) -> None:
    """Other clients commit and expire the snapshots behind their commits at the same time."""
    # Each job is killed at another step, and leaves something behind.
    for kind in KILLED:
        with pytest.raises(Killed):
            lake.run(lake.table(kind))
        more(topic, 5)
    progress = lake.run(lake.table(OthersCommitMeanwhile))
    assert progress.exported.offsets == {0: 55}
    assert progress.lag == 0
    check(lake)
    # The leftovers of the killed jobs are deleted, except for the tag at which the next job starts.
    table = lake.loaded()
    assert sorted(map(str, table.refs())) == ["main", TAG]
    # Two foreign commits, then all but the newest snapshot expire.
    for _ in range(2):
        table.newFastAppend().commit()
    now = table.currentSnapshot().timestampMillis() + 1
    table.expireSnapshots().expireOlderThan(now).retainLast(1).commit()
    # The newest snapshot, and the one that the tag keeps.
    assert len(list(table.snapshots())) == 2
    # There is nothing more: no commit, and nothing twice.
    assert lake.run(lake.table()).commits == 0
    check(lake)


@pytest.mark.full
def test_continuous_job_that_is_behind_does_not_wait_for_the_interval(lake: Lake) -> None:
    stop = threading.Event()

    def stop_at_the_end(progress: ExportProgress) -> None:
        if progress.lag == 0:
            stop.set()

    source = {**lake.source, "maxOffsetsPerTrigger": "20"}
    done = export(
        lake.session, source, lake.table(), every_s=3600, stop=stop, on_commit=stop_at_the_end
    )
    assert done.commits == 2
    check(lake)


@pytest.mark.full
def test_job_that_ends_stops_at_the_requested_offsets(lake: Lake) -> None:
    source = {**lake.source, "endingOffsets": '{"0": 30}', "maxOffsetsPerTrigger": "20"}
    done = export(lake.session, source, lake.table())
    assert done.exported.offsets == {0: 30}
    assert lake.session.table(lake.name).count() == 30


@pytest.mark.full
@pytest.mark.parametrize(
    "moment", ["before it writes", pytest.param("while it writes", marks=pytest.mark.long)]
)
def test_superseded_job_commits_nothing_in_iceberg(lake: Lake, moment: str) -> None:
    """Iceberg's writer may recreate its branch, which the other job has removed.

    It would start at the current ``main``, and ``main`` could be moved to it.
    """
    overtook: list[Exported] = []

    class BundleConflict:
        branch: str

        def write(self, frame: Any, exported: Exported) -> None:
            overtook.append(lake.table().claim(exported.topic, exported.topic_id))
            if moment == "before it writes":
                super().write(frame, exported)  # type: ignore[misc]
            # Another job moved on; this one recreates its branch from the current main.
            append = lake.loaded().newFastAppend().toBranch(self.branch)
            for key, value in exported.to_properties().items():
                append = append.set(key, value)
            append.commit()

    with pytest.raises(Superseded, match="has taken over the table"):
        lake.run(lake.table(BundleConflict))
    summary = lake.loaded().currentSnapshot().summary()
    # The claim of the other job is the last commit, with no row of this one.
    assert (Exported.of_properties(summary), summary.get("total-records")) == (overtook[-1], "0")
    assert overtook[-1].offsets == {}


@pytest.mark.full
def test_table_with_foreign_rows_is_refused(lake: Lake) -> None:
    lake.session.sql(f"CREATE TABLE {lake.name} (topic string) USING iceberg")
    lake.session.sql(f"INSERT INTO {lake.name} VALUES ('t')")
    with pytest.raises(ExportError, match="Export into a separate table"):
        lake.run(lake.table())


SCHEMA = "id BIGINT, name STRING, price DECIMAL(9, 2)"
#: The last one keeps Spark's own parser busy for hours.
BAD = {
    3: b"{",
    7: b'{"id": "seven"}',
    11: b"[1]",
    13: b"\xff\xfe",
    17: b'{"price": 1e1000000000}',
}


@pytest.mark.full
def test_unparseable_json_becomes_dead_letters(lake: Lake, tmp_path: Path) -> None:
    """Both tables have each record once though the job is killed between their commits, and the
    next one has another schema."""
    folder = tmp_path / "json"
    folder.mkdir()
    tier = SmallTier(folder, uuid.uuid4())
    lake.source = {"topic": "t", "path": str(tier.path)}
    good = [b'{"id": %d, "name": "n%d", "price": 1.5}' % (n, n) for n in range(30)]
    tier.copy([BAD.get(n, value) for n, value in enumerate(good)])

    def tables(doomed: type, schema: str) -> TableWithDeadLetters:
        fields = fields_of(schema, lake.session)
        by_day, by_hour = Partitioning(PartitionPeriod.DAY), Partitioning(PartitionPeriod.HOUR)
        of_rows = TableLayout(columns=columns_ddl(fields), kafka=KAFKA, partitioning=by_day)
        # Rows and dead letters are partitioned differently.
        of_letters = TableLayout(columns=LETTERS_DDL, partitioning=by_hour)
        rows, letters = lake.table(doomed, of_rows), lake.table(object, of_letters, "dlq")
        return TableWithDeadLetters(JsonValues(fields), rows, letters)

    # Killed between the commits of the two tables.
    with pytest.raises(Killed):
        lake.run(tables(KilledAfterWriting, SCHEMA))
    # Restarted with a schema by which 7 is a row, too; it remains a dead letter.
    lake.session.sql(f"DROP TABLE {lake.name}")
    wider_schema = "id STRING, name STRING, price DECIMAL(9, 2)"
    progress = lake.run(tables(object, wider_schema), continuous=True)
    assert (progress.written.rows, progress.lag) == (26, 0)
    letters = lake.session.table(lake.named("dlq")).orderBy("offset").collect()
    assert [(row["offset"], bytes(row["value"])) for row in letters] == list(BAD.items())
    # The exact messages that users see for each dead letter.
    misfit = "JSON that does not fit the schema"
    assert [row["error"] for row in letters] == ["not JSON", misfit, misfit, "not JSON", misfit]
    rows = lake.session.table(lake.name).orderBy("kafka.offset").collect()
    assert [row["kafka"]["offset"] for row in rows] == [
        n for n in range(30) if n == 7 or n not in BAD
    ]
    assert [(row["id"], row["name"]) for row in rows[-2:]] == [("28", "n28"), ("29", "n29")]
    assert rows[-1]["price"] == Decimal("1.50")
    # A reader without Spark returns the same rows and dead letters.
    found = lake.query_without_spark(
        'SELECT kafka."offset", kafka.timestamp, decode(kafka.key), id, name, price FROM events '
        "ORDER BY ALL"
    )
    values = {n: (str(n), f"n{n}", Decimal("1.50")) for n in range(30) if n not in BAD}
    values[7] = ("seven", None, None)
    assert found == [
        (n, datetime.fromtimestamp(n / 1000, UTC), "k", *values[n]) for n in sorted(values)
    ]
    found = lake.query_without_spark('SELECT "offset", value FROM dlq ORDER BY ALL', "dlq")
    assert found == list(BAD.items())


@pytest.mark.long
@pytest.mark.parametrize("period", [PartitionPeriod.HOUR, PartitionPeriod.NONE])
@pytest.mark.parametrize("kind", Format)
def test_rows_of_any_timestamp_are_found_by_queries(
    session: SparkSession, tmp_path: Path, kind: Format, period: PartitionPeriod
) -> None:
    """One beyond the years 1 to 9999 is stored as the nearest of them, in both shapes of a row."""
    lake = new_lake(session, {}, tmp_path / "warehouse", kind)
    # The largest number of seconds that a timestamp of microseconds can have.
    largest = (2**63 - 1) // 1000
    times = [
        *(-largest, -62_135_596_800_001, -62_135_596_800_000, -2, 0, 1_700_000_000_000),
        *(4_200_000_000_000, 253_402_300_799_999, 253_402_300_800_000, 2**31 * 3_600_000, largest),
    ]
    frame = records(session, *((b"k", 0, n, at, "v") for n, at in enumerate(times)))
    of_rows = TableLayout(columns=RAW_DDL, partitioning=Partitioning(period))
    nested = TableLayout(
        columns=columns_ddl(fields_of("n BIGINT", session)),
        kafka=KAFKA,
        partitioning=Partitioning(period),
    )
    own = f.struct(*(f.col(name) for name in RAW if name != "value")).alias(KAFKA)
    for name, layout, given in (
        ("raw", of_rows, frame),
        ("fields", nested, frame.select(own, f.lit(1).cast("long").alias("n"))),
    ):
        table = lake.table(layout=layout, name=name)
        table.commit(given, table.claim("t", "").reaching({0: len(times)}))
        table.close()
        time = layout.of_record("timestamp")
        # Expected counts include those that were moved to the nearest storable time.
        for condition, count in (
            (f"{time} > timestamp '2100-01-01'", 5),
            (f"{time} > timestamp '2020-01-01'", 6),
            (f"{time} < timestamp '1970-01-01'", 4),
            (f"{time} < timestamp '1000-01-01'", 3),
            (f"{time} >= timestamp '9999-12-31 23:59:59.999999'", 3),
        ):
            assert session.table(lake.named(name)).where(condition).count() == count, condition


@pytest.mark.full
def test_json_that_spark_would_misread_is_handled_exactly(session: SparkSession) -> None:
    """A key that a map has twice, fractions and times that a column cannot hold, and records that
    are only partly JSON."""
    fields = fields_of(
        "m MAP<STRING, DECIMAL(9, 2)>, l ARRAY<MAP<STRING, INT>>, d DECIMAL(20), t TIMESTAMP, "
        "day DATE, s STRING",
        session,
    )
    misfit = "JSON that does not fit the schema"
    given: list[tuple[str, str | None]] = [
        # Duplicate keys: the last value counts, as in most parsers.
        ('{"m": {"k": 1, "k": 2.5, "j": 3}, "l": [{"k": 1, "k": 2}, null]}', None),
        ('{"d": 12345678901234567890, "t": "9999-12-31T23:59:59Z", "day": "0001-01-01"}', None),
        ('{"d": 1.5}', misfit),
        # 1.0 is an integer, 1.5 is not.
        ('{"d": 1.0, "t": 0}', None),
        ('{"t": "+294247-01-10T04:00:54Z"}', misfit),
        ('{"t": 9223372036854775807}', "t: 9223372036854775807 seconds are not between"),
        ('{"day": "+10000-01-01"}', misfit),
        ('{"s": 1e400}', "s: a number is beyond a double"),
        ('{"s": "a"} and more', "not JSON"),
        # Spark's columns are not case-sensitive.
        ('{"S": "a"}', "'S': the column s differs from it by case only"),
    ]
    frame = records(session, *((b"k", 0, n, 0, value) for n, (value, _) in enumerate(given)))
    read = JsonValues(fields).read(frame, fields).orderBy("offset")
    rows = read.select(ERROR, f.to_json(PARSED).alias("parsed")).collect()
    for row, (value, cause) in zip(rows, given, strict=True):
        assert (row[ERROR] or "").startswith(cause or ""), value
        assert (row[ERROR] is None) == (cause is None), value
    assert json.loads(rows[0]["parsed"]) == {"m": {"k": 2.5, "j": 3}, "l": [{"k": 2}, None]}
    assert rows[0]["parsed"].count('"k"') == 2
