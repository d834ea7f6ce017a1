"""An export deletes its committed records only on the evidence of the table, after any failure."""

import shutil
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidemark.log_lineage import ReadPosition
from tidemark.tier.open import open_tier
from tidemark.tier.stores.config import FilesystemConfig
from tidemark_pipeline.export.export_progress import Exported, ExportError, Superseded, WriteMode
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.row_shapes import RAW, RAW_DDL
from tidemark_pipeline.export.table import TableLayout

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

from tests.integration.pipeline.lakes import Killed, Lake, new_lake
from tests.integration.pipeline.marks import MARKS

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.timeout(600)]
DELETING = TableLayout(columns=RAW_DDL, deletes=True)


class TierDeleter:
    """Deletes like a leading broker: the tier's head then has the new log start."""

    def __init__(self, tier: SmallTier) -> None:
        self.tier = tier
        self.requested: list[int] = []

    def delete(self, topic: str, topic_id: str, below: Mapping[int, ReadPosition]) -> None:
        assert (topic, uuid.UUID(topic_id)) == ("t", self.tier.topic_id)
        self.requested.append(below[0].offset)
        self.tier.expire_to(below[0].offset)


class DeadDeleter(TierDeleter):
    def delete(self, topic: str, topic_id: str, below: Mapping[int, ReadPosition]) -> None:
        raise Killed


@pytest.fixture
def topic(tmp_path: Path) -> SmallTier:
    (tmp_path / "tier").mkdir()
    tier = SmallTier(tmp_path / "tier", uuid.uuid4())
    tier.copy([b"value %d" % n for n in range(40)])
    return tier


def lake_of(session: SparkSession, topic: SmallTier, folder: Path, kind: Format) -> Lake:
    return new_lake(session, {"topic": "t", "path": str(topic.path)}, folder / "warehouse", kind)


def offsets(lake: Lake) -> list[int]:
    return sorted(row["offset"] for row in lake.session.table(lake.name).collect())


@pytest.mark.parametrize("kind", Format)
def test_next_job_deletes_what_a_killed_one_committed(
    session: SparkSession, topic: SmallTier, tmp_path: Path, kind: Format
) -> None:
    """And it deletes after each of its commits, up to it and no further."""
    lake = lake_of(session, topic, tmp_path, kind)
    # Killed after its first commit and before the deletion.
    with pytest.raises(Killed):
        lake.run(lake.table(layout=DELETING), deleter=DeadDeleter(topic))
    assert topic.loaded.head.log_start_offset == 0
    assert offsets(lake) == list(range(20))
    deleter = TierDeleter(topic)
    done = lake.run(lake.table(layout=DELETING), deleter=deleter)
    # The next job first deletes what was committed, then what it commits itself.
    assert deleter.requested == [20, 40]
    assert (done.deleted, done.exported.offsets) == (40, {0: 40})
    assert offsets(lake) == list(range(40))
    # Nothing is left, so no request is sent.
    assert lake.run(lake.table(layout=DELETING), deleter=deleter).deleted == 0
    assert deleter.requested == [20, 40]


@pytest.mark.parametrize("kind", Format)
def test_superseded_job_deletes_nothing(
    session: SparkSession, topic: SmallTier, tmp_path: Path, kind: Format
) -> None:
    lake = lake_of(session, topic, tmp_path, kind)

    class OvertakenAfterItsCommit:
        lake: Lake

        def commit(self, frame: Any, exported: Exported) -> Any:
            written = super().commit(frame, exported)  # type: ignore[misc]
            # Another job claims the table after this one's commit.
            self.lake.table().claim(exported.topic, exported.topic_id)
            return written

    deleter = TierDeleter(topic)
    with pytest.raises(Superseded, match="has taken over the table"):
        lake.run(lake.table(OvertakenAfterItsCommit, DELETING), deleter=deleter)
    assert deleter.requested == []
    assert offsets(lake) == list(range(20))


def test_deleting_job_that_may_skip_records_is_refused(
    session: SparkSession, topic: SmallTier, tmp_path: Path
) -> None:
    lake = lake_of(session, topic, tmp_path, Format.ICEBERG)
    running = lake.table(layout=DELETING)
    running.claim("t", "")
    lake.source = {**lake.source, "failOnDataLoss": "false"}
    deleter = TierDeleter(topic)
    with pytest.raises(ExportError, match="Remove failOnDataLoss=false"):
        lake.run(lake.table(layout=DELETING), deleter=deleter)
    # The running job still owns the table.
    running.progress()  # raises if another job has it
    assert deleter.requested == []


def test_table_started_later_than_its_topic_deletes_nothing(
    session: SparkSession, topic: SmallTier, tmp_path: Path
) -> None:
    """The status waits until the records that the table lacks are deleted."""
    lake = lake_of(session, topic, tmp_path, Format.ICEBERG)
    lake.source = {**lake.source, "startingOffsets": '{"t": {"0": 30}}'}
    deleter, layout = (
        TierDeleter(topic),
        TableLayout(columns=RAW_DDL, deletes=True, mode=WriteMode.APPEND),
    )
    with pytest.raises(ExportError, match="Start at the log start"):
        lake.run(lake.table(layout=layout), deleter=deleter)
    # Without deletion the late start is allowed.
    lake.run(lake.table(layout=layout))
    # The table has offsets 30 to 39, and the topic starts at 0: records are missing.
    with pytest.raises(ExportError, match=r"log start 0 up to offset 40.*Nothing is deleted"):
        lake.run(lake.table(layout=layout), deleter=deleter)
    assert deleter.requested == []
    # Once the missing records have expired, deletion is allowed.
    topic.expire_to(40)
    topic.copy([b"more"] * 5)
    lake.run(lake.table(layout=layout), deleter=deleter)
    assert deleter.requested == [45]
    assert offsets(lake) == list(range(30, 45))


@pytest.mark.parametrize("kind", Format)
def test_records_of_a_restored_topic_are_neither_skipped_nor_deleted(
    session: SparkSession, topic: SmallTier, tmp_path: Path, kind: Format
) -> None:
    """The table was exported to with the local tail, the brokers were lost with it, and the topic
    was restored from its tier: new records have offsets that the table has passed."""
    lake = lake_of(session, topic, tmp_path, kind)
    # The tier before the tail was copied.
    backup = shutil.copytree(topic.path, tmp_path / "all that was copied")
    # The tail is exported, then lost with the brokers.
    topic.copy([b"tail"] * 20)
    lake.run(lake.table(layout=DELETING))
    # What the last segment has was on the brokers alone.
    shutil.rmtree(topic.path)
    backup.rename(topic.path)
    # The topic restored from its tier ends at 40; the table is at 60.
    # Opened again: a store refuses a head that is older than one it has read.
    topic.tier = open_tier(FilesystemConfig(topic.path))
    topic.loaded = topic.tier.manifests.load(topic.topic_id, 0)
    assert topic.restore() == 40
    deleter = TierDeleter(topic)
    for _ in range(3):  # before the log has reached the table's offset, and behind it
        # The new log first ends below the table's offset, then passes it.
        topic.copy([b"new"] * 15)
        with pytest.raises(ExportError, match=r"t-0: .* from offset 40 up to 60.*into a new table"):
            lake.run(lake.table(layout=DELETING), deleter=deleter)
    assert deleter.requested == []
    assert offsets(lake) == list(range(60))
    # The remedy of the message is a new table.
    # What the message names helps: a new table gets all that the topic has.
    (tmp_path / "new").mkdir()
    new = lake_of(session, topic, tmp_path / "new", kind)
    new.run(new.table(layout=DELETING), deleter=deleter)
    assert offsets(new) == list(range(85))
    # This table's offsets are of after the restore, so it continues.
    # And is continued, since its offsets are of after the restore.
    topic.copy([b"newer"] * 5)
    new.run(new.table(layout=DELETING), deleter=deleter)
    assert deleter.requested[-1] == 90


@pytest.mark.parametrize("kind", Format)
def test_table_of_an_older_version_continues_after_a_restore(
    session: SparkSession, topic: SmallTier, tmp_path: Path, kind: Format
) -> None:
    """Its commits name no leader epochs: every restore that lost records of it counts."""
    # An older version's commits have no leader epochs.
    lake = lake_of(session, topic, tmp_path, kind)
    older = lake.table()
    # A restore that lost nothing of the table's does not matter.
    older.commit(of_topic(lake, 0, 40), older.claim("t", str(topic.topic_id)).reaching({0: 40}))
    assert topic.restore() == 40
    topic.copy([b"new"] * 15)
    done = lake.run(lake.table())
    assert done.exported.offsets == {0: 55}
    assert offsets(lake) == list(range(55))
    assert topic.restore("e") == 55
    (tmp_path / "other").mkdir()
    other = lake_of(session, topic, tmp_path / "other", kind)
    # A table beyond the restored end.
    beyond = other.table()
    claimed = beyond.claim("t", str(topic.topic_id))
    beyond.commit(of_topic(other, 0, 55), claimed.reaching({0: 60}))
    topic.copy([b"newer"] * 15)
    with pytest.raises(ExportError, match="from offset 40 up to 60"):
        other.run(other.table())


def of_topic(lake: Lake, start: int, end: int) -> Any:
    read = lake.session.read.format("tidemark").options(**lake.source).load().select(*RAW)
    return read.where(f"offset >= {start} AND offset < {end}")
