"""A topic in an Iceberg table: each record once, wherever the job was ended, whoever else commits,
and one job at a time (invariant 26)."""

import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.iceberg import IcebergMissing, ensure_iceberg
from tidemark_pipeline.export.dead_letters import JsonTables
from tidemark_pipeline.export.exported import Exported, ExportError, Superseded
from tidemark_pipeline.export.iceberg import TAG, IcebergTable, catalog_settings
from tidemark_pipeline.export.shapes import LETTERS_DDL, RAW, RAW_DDL, Json, partitioned
from tidemark_pipeline.export.table import Table
from tidemark_pipeline.jobs.export import Progress, export

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

from tests.integration.pipeline.marks import MARKS

# Other programs have most of the machine, now and then.
pytestmark = [*MARKS, pytest.mark.timeout(600)]
_NOT_STARTED = "Python worker failed to connect back"


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


class Lake:
    """A warehouse in a folder, with one table."""

    def __init__(self, session: SparkSession, tier: SmallTier, folder: Path) -> None:
        try:
            ensure_iceberg()
        except IcebergMissing as error:
            pytest.skip(str(error))
        catalog = f"lake_{uuid.uuid4().hex[:8]}"
        properties = {"type": "hadoop", "warehouse": str(folder)}
        for key, value in catalog_settings(catalog, properties).items():
            session.conf.set(key, value)
        self.session, self.tier, self.name = session, tier, f"{catalog}.db.events"

    def table(self, kind: type[IcebergTable] = IcebergTable) -> IcebergTable:
        return kind(self.session, self.name, RAW_DDL)

    def run(self, table: Table | None = None, *, continuous: bool = False) -> Progress:
        """All there is, 20 offsets a commit; a ``continuous`` run is stopped then. Spark gives the
        process that plans a stream ten seconds to start, which is little where many programs run:
        then it is run again."""
        given = {"topic": "t", "path": str(self.tier.path), "maxOffsetsPerTrigger": "20"}
        stop, every_s = threading.Event(), 0.1 if continuous else None

        def say(progress: Progress) -> None:
            if progress.lag == 0:
                stop.set()

        for _ in range(5):
            try:
                into = table or self.table()
                return export(self.session, given, into, every_s=every_s, stop=stop, say=say)
            except Exception as error:
                if _NOT_STARTED not in str(error):
                    raise
        raise AssertionError(_NOT_STARTED)

    def check(self) -> None:
        """The table has what the topic has, column by column."""
        source = self.session.read.format("tidemark")
        read = source.options(topic="t", path=str(self.tier.path)).load().select(*RAW)
        kept = self.session.table(self.name)
        assert kept.orderBy("offset").collect() == read.orderBy("offset").collect()


def loaded(table: IcebergTable) -> Any:
    """It, as somebody else has it."""
    session: Any = SparkSession.active()
    spark3 = session._jvm.org.apache.iceberg.spark.Spark3Util
    return spark3.loadIcebergTable(session._jsparkSession, table.name)


@pytest.fixture
def lake(session: SparkSession, topic: SmallTier, tmp_path: Path) -> Lake:
    return Lake(session, topic, tmp_path / "warehouse")


class Killed(Exception):
    """The job ends here, and does nothing more."""


class NeverClosed(IcebergTable):
    def close(self) -> None:
        """One that is killed closes nothing."""


class KilledBeforeWriting(NeverClosed):
    def write(self, frame: Any, exported: Exported) -> None:
        raise Killed


class KilledBeforePublishing(NeverClosed):
    def publish(self, base: int, exported: Exported) -> bool:
        raise Killed


class KilledBeforeItsCheckpoint(NeverClosed):
    def append(self, frame: Any, exported: Exported) -> Any:
        super().append(frame, exported)
        raise Killed


class OthersCommitMeanwhile(IcebergTable):
    """Once."""

    others = 1

    def publish(self, base: int, exported: Exported) -> bool:
        if self.others:
            self.others -= 1
            loaded(self).newFastAppend().commit()
        return super().publish(base, exported)


def test_each_record_is_there_once_wherever_the_job_was_killed(lake: Lake) -> None:
    """And though others commit, and expire the snapshots behind their commits."""
    for kind in (KilledBeforeWriting, KilledBeforePublishing, KilledBeforeItsCheckpoint):
        with pytest.raises(Killed):
            lake.run(lake.table(kind))
        more(lake.tier, 5)
    progress = lake.run(lake.table(OthersCommitMeanwhile))
    assert progress.exported.offsets == {0: 55}
    assert progress.lag == 0
    lake.check()
    # What the killed jobs left is gone, but for the tag that the next job begins at.
    table = loaded(lake.table())
    assert sorted(map(str, table.refs())) == ["main", TAG]
    for _ in range(2):
        table.newFastAppend().commit()
    now = table.currentSnapshot().timestampMillis() + 1
    table.expireSnapshots().expireOlderThan(now).retainLast(1).commit()
    assert len(list(table.snapshots())) == 2
    # There is nothing more: no commit, and nothing twice.
    assert lake.run().commits == 0
    lake.check()


@pytest.mark.parametrize("moment", ["before it writes", "while it writes"])
def test_a_job_that_was_taken_over_from_commits_nothing_more(lake: Lake, moment: str) -> None:
    """Not even where Iceberg's writer makes its branch anew, which the other job has removed: that
    begins at what ``main`` is then, and ``main`` could be moved to it."""

    class Overtaken(IcebergTable):
        def write(self, frame: Any, exported: Exported) -> None:
            lake.table().claim(exported.topic, exported.topic_id)
            if moment == "before it writes":
                super().write(frame, exported)
            append = loaded(self).newFastAppend().toBranch(self.branch)
            for key, value in exported.to_properties().items():
                append = append.set(key, value)
            append.commit()

    with pytest.raises(Superseded, match="has taken the table over"):
        lake.run(lake.table(Overtaken))
    summary = loaded(lake.table()).currentSnapshot().summary()
    found = Exported.of_properties(summary)
    assert found is not None
    assert (found.epoch, found.offsets, summary.get("total-records")) == (2, {}, "0")


def test_a_table_with_rows_of_others_is_refused(lake: Lake) -> None:
    lake.session.sql(f"CREATE TABLE {lake.name} (topic string) USING iceberg")
    lake.session.sql(f"INSERT INTO {lake.name} VALUES ('t')")
    with pytest.raises(ExportError, match="export into a table of its own"):
        lake.run()


SCHEMA = "id BIGINT, name STRING"
BAD = {3: b"{", 7: b'{"id": "seven"}', 11: b"[1]", 13: b"\xff\xfe"}


def test_json_that_does_not_parse_goes_to_the_dead_letters(lake: Lake, tmp_path: Path) -> None:
    """Both tables have each record once though the job is killed between their commits, and the
    next one has another schema."""
    folder = tmp_path / "json"
    folder.mkdir()
    lake.tier = SmallTier(folder, uuid.uuid4())
    good = [b'{"id": %d, "name": "n%d", "more": 1}' % (n, n) for n in range(30)]
    lake.tier.copy([BAD.get(n, value) for n, value in enumerate(good)])

    def tables(kind: type[IcebergTable], schema: str) -> JsonTables:
        json = Json.of(schema)
        rows = kind(lake.session, lake.name, json.ddl, partitioned("day", nested=True))
        letters = IcebergTable(lake.session, lake.name + "_dlq", LETTERS_DDL, partitioned("hour"))
        return JsonTables(json, rows, letters)

    with pytest.raises(Killed):
        lake.run(tables(KilledBeforePublishing, SCHEMA))
    # Begun again with a schema by which 7 is a row, too; it stays the letter that it was.
    lake.session.sql(f"DROP TABLE {lake.name}")
    progress = lake.run(tables(IcebergTable, "id STRING, name STRING"), continuous=True)
    assert (progress.written.rows, progress.lag) == (27, 0)
    letters = lake.session.table(lake.name + "_dlq").orderBy("offset").collect()
    assert [(row["offset"], bytes(row["value"])) for row in letters] == list(BAD.items())
    misfit = "JSON that does not fit the schema"
    assert [row["error"] for row in letters] == ["not JSON", misfit, misfit, "not JSON"]
    rows = lake.session.table(lake.name).orderBy("kafka.offset").collect()
    assert [row["kafka"]["offset"] for row in rows] == [
        n for n in range(30) if n == 7 or n not in BAD
    ]
    assert [(row["id"], row["name"]) for row in rows[-2:]] == [("28", "n28"), ("29", "n29")]
