"""Tables that other tools have moved to another state. An export continues at the table's real
offsets, or says how to repair the table. It deletes no record that the table lacks."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.lakes import Lake, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.maintenance import TableMaintenance
from tidemark_pipeline.jobs.maintain import maintain

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.timeout(600)]
KEEP_NOTHING = TableMaintenance(keep=timedelta(), orphans=None)


@pytest.fixture
def lake(session: SparkSession, tmp_path: Path) -> Lake:
    return new_lake(session, {}, tmp_path / "warehouse")


def rows_of(lake: Lake, *offsets: int) -> Any:
    return records(lake.session, *((b"k%d" % n, 0, n, n, "v") for n in offsets))


def written(lake: Lake, commits: int) -> list[int]:
    """Export single records; return the snapshots (versions of Delta) of each commit."""
    table = lake.table()
    at = table.claim("t", "")
    found = [newest(lake)]
    # A single record per commit, so that each snapshot has one more offset.
    for n in range(at.offsets.get(0, 0), commits):
        table.commit(rows_of(lake, n), at := at.reaching({0: n + 1}))
        found.append(newest(lake))
    table.close()
    return found


def newest(lake: Lake) -> int:
    if lake.kind is Format.ICEBERG:
        return int(lake.loaded().currentSnapshot().snapshotId())
    (row,) = lake.session.sql(f"DESCRIBE HISTORY {lake.name} LIMIT 1").collect()
    return int(row["version"])


def offsets(lake: Lake) -> list[int]:
    return sorted(row["offset"] for row in lake.session.table(lake.name).collect())


def begins_at(lake: Lake) -> dict[int, int]:
    return dict(lake.table().claim("t", "").offsets)


def others(lake: Lake) -> SparkSession:
    """Another client's session. Only one session has Iceberg's catalog."""
    return lake.session if lake.kind is Format.ICEBERG else lake.elsewhere().session


def call(lake: Lake, procedure: str, arguments: str) -> None:
    catalog, _, table = lake.name.partition(".")
    lake.session.sql(f"CALL {catalog}.system.{procedure}('{table}', {arguments})").collect()


def expired_by_others(lake: Lake) -> None:
    """Compact the table and expire all snapshots but the newest, as a tool that knows nothing of
    exports."""
    catalog, _, table = lake.name.partition(".")
    lake.session.sql(
        # All files are rewritten, so no file has its original snapshot.
        f"CALL {catalog}.system.rewrite_data_files(table => '{table}', "
        "options => map('rewrite-all', 'true'))"
    ).collect()
    loaded = lake.loaded()
    now = loaded.currentSnapshot().timestampMillis() + 1
    # The newest snapshot is the only one that remains.
    loaded.expireSnapshots().expireOlderThan(now).retainLast(1).commit()


def kept_up(lake: Lake) -> None:
    maintain(lake.session, lake.kind, lake.name, KEEP_NOTHING)


def nothing(lake: Lake) -> None:
    """Leave the table as it is."""


@pytest.mark.parametrize("upkeep", [nothing, kept_up, expired_by_others])
@pytest.mark.parametrize("rolled_back", ["rollback_to_snapshot", "set_current_snapshot"])
def test_export_continues_after_a_rollback(
    lake: Lake, rolled_back: str, upkeep: Callable[[Lake], None]
) -> None:
    ids = written(lake, 5)
    # Two records are in the table after the rollback.
    call(lake, rolled_back, str(ids[2]))
    assert offsets(lake) == [0, 1]
    for _ in range(2):
        upkeep(lake)
    # The export knows it although the later snapshots have expired.
    assert begins_at(lake) == {0: 2}
    written(lake, 5)
    assert offsets(lake) == list(range(5))


def test_delta_export_continues_after_a_restore(session: SparkSession, tmp_path: Path) -> None:
    lake = new_lake(session, {}, tmp_path / "warehouse", Format.DELTA)
    versions = written(lake, 5)
    session.sql(f"RESTORE TABLE {lake.name} TO VERSION AS OF {versions[2]}")
    maintain(session, lake.kind, lake.name, TableMaintenance())
    assert begins_at(lake) == {0: 2}
    written(lake, 4)
    assert offsets(lake) == list(range(4))


def test_unknown_lineage_is_refused_until_confirmed(lake: Lake) -> None:
    """Snapshots and older metadata are deleted, so a rollback cannot be excluded."""
    ids = written(lake, 5)
    lake.commit_of_others()
    expired_by_others(lake)
    # Neither snapshots nor old metadata files show the lineage.
    metadata = Path(lake.loaded().location()) / "metadata"
    current = lake.loaded().operations().current().metadataFileLocation()
    for path in metadata.glob("*.metadata.json"):
        if path.name != Path(current).name:
            path.unlink()
    with pytest.raises(ExportError, match=r"set_current_snapshot\('db.events', " + str(ids[5])):
        begins_at(lake)
    # The remedy: confirm the current snapshot.
    call(lake, "set_current_snapshot", str(ids[5]))
    assert begins_at(lake) == {0: 5}
    assert offsets(lake) == list(range(5))


def test_cherry_picked_rows_are_refused(lake: Lake) -> None:
    ids = written(lake, 5)
    call(lake, "rollback_to_snapshot", str(ids[2]))
    # Records 2 and 3 are missing between picked rows.
    call(lake, "cherrypick_snapshot", str(ids[5]))
    assert offsets(lake) == [0, 1, 4]
    with pytest.raises(ExportError, match=rf"set_current_snapshot\('db.events', {ids[2]}\)"):
        begins_at(lake)
    kept_up(lake)
    with pytest.raises(ExportError, match="cherrypick_snapshot"):
        begins_at(lake)


def test_main_moved_to_a_branch_has_the_branchs_offsets(lake: Lake) -> None:
    ids = written(lake, 5)
    # A branch in the middle of the history becomes main.
    lake.loaded().manageSnapshots().createBranch("audit", ids[3]).commit()
    lake.loaded().newFastAppend().toBranch("audit").commit()
    (audited,) = (
        lake.loaded().refs().get(name).snapshotId()
        for name in lake.loaded().refs()
        if name == "audit"
    )
    call(lake, "set_current_snapshot", str(audited))
    kept_up(lake)
    assert begins_at(lake) == {0: 3}
    # Forward again.
    branch = "ahead"
    lake.loaded().manageSnapshots().createBranch(branch, newest(lake)).commit()
    call(lake, "fast_forward", f"'main', '{branch}'")
    assert begins_at(lake) == {0: 3}


def test_recreated_table_starts_from_the_beginning(lake: Lake) -> None:
    """And one that was replaced with rows of others is refused."""
    written(lake, 3)
    lake.session.sql(f"DROP TABLE {lake.name}")
    # A new table has no offsets.
    assert begins_at(lake) == {}
    written(lake, 3)
    # The replaced table has rows, but no commit of an export.
    lake.session.table(lake.name).limit(1).writeTo(lake.name).createOrReplace()
    with pytest.raises(ExportError, match="has rows, but no commit records"):
        begins_at(lake)


@pytest.mark.parametrize("kind", Format)
def test_overwritten_table_is_refused(session: SparkSession, tmp_path: Path, kind: Format) -> None:
    """Between two jobs; and while one runs, which then deletes nothing. What the message names
    helps."""
    lake = new_lake(session, {}, tmp_path / "warehouse", kind)
    ids = written(lake, 5)
    running = lake.table()
    at = running.claim("t", "")
    older = f"SELECT * FROM {lake.name} VERSION AS OF {ids[2]}"
    # An overwrite looks like a regular commit of another client.
    others(lake).sql(f"INSERT OVERWRITE {lake.name} {older}")
    assert offsets(lake) == [0, 1]
    # The running job notices it before its next commit.
    for _ in range(2):
        with pytest.raises(ExportError):
            running.progress()
        with pytest.raises(ExportError):
            running.commit(rows_of(lake, 5), at.reaching({0: 6}))
        # So does a new job.
        with pytest.raises(ExportError, match=r"overwritten|has rows, but no commit records"):
            begins_at(lake)
        if kind is Format.ICEBERG:
            kept_up(lake)
    assert offsets(lake) == [0, 1]


@pytest.mark.parametrize("kind", Format)
def test_other_tools_may_delete_single_rows(
    session: SparkSession, tmp_path: Path, kind: Format
) -> None:
    lake = new_lake(session, {}, tmp_path / "warehouse", kind)
    table = lake.table()
    at = table.claim("t", "")
    table.commit(rows_of(lake, *range(20)), at.reaching({0: 20}))
    # Deleting rows is legitimate: the offsets stay.
    others(lake).sql(f"DELETE FROM {lake.name} WHERE offset IN (3, 17, 19)")
    assert begins_at(lake) == {0: 20}
    assert len(offsets(lake)) == 17
