"""Progress of a Delta table by its log: rolled back, recreated, cleaned, and overwritten."""

import json
from dataclasses import replace

import pytest

from tidemark_pipeline.export.delta_log import (
    DeltaCommit,
    ProgressLost,
    carried_metadata,
    export_metadata,
    progress_in_log,
)
from tidemark_pipeline.export.export_progress import Exported, ExportError

CLAIM = Exported("t", "id", {}, 1, "a")
AT = {version: replace(CLAIM, offsets={0: version * 10}) for version in range(20)}


def log(*commits: DeltaCommit, transaction: int = 9) -> Exported | None:
    return progress_in_log(sorted(commits, key=lambda commit: -commit.version), lambda: transaction)


def made(version: int = 0) -> DeltaCommit:
    return DeltaCommit(version, "CREATE TABLE")


def claimed(version: int, base: int | None = None) -> DeltaCommit:
    said = export_metadata(AT[version], version - 1 if base is None else base, claim=True)
    return DeltaCommit(version, "WRITE", user_metadata=said)


def wrote(version: int, base: int | None = None) -> DeltaCommit:
    return DeltaCommit(
        version,
        "MERGE",
        user_metadata=export_metadata(AT[version], version - 1 if base is None else base),
    )


def other(version: int, said: str | None = None) -> DeltaCommit:
    return DeltaCommit(version, "OPTIMIZE", {"predicate": "[]"}, user_metadata=said)


def restored(version: int, to: int) -> DeltaCommit:
    return DeltaCommit(version, "RESTORE", {"version": str(to), "timestamp": None})


def test_the_newest_export_counts_despite_later_commits() -> None:
    assert log(made()) is None
    assert log(made(), other(1)) is None
    assert log(made(), claimed(1), wrote(2), other(3, "by hand"), other(4, "[1]")) == AT[2]
    # No more is read than is needed.
    assert progress_in_log(iter([wrote(8), other(7)]), lambda: 9) == AT[8]


def test_after_a_rollback_the_former_properties_count() -> None:
    before = made(), claimed(1), wrote(2), wrote(3), wrote(4)
    assert log(*before, restored(5, 3), other(6)) == AT[3]
    assert log(*before, restored(5, 3), restored(6, 2)) == AT[2]
    assert log(*before, restored(5, 1), claimed(6), wrote(7)) == AT[7]
    assert log(*before, restored(5, 0)) is None
    # Back to before another rollback.
    assert log(*before, restored(5, 2), restored(6, 4)) == AT[4]
    with pytest.raises(ExportError, match="TO VERSION AS OF"):
        log(*before, DeltaCommit(5, "RESTORE", {"version": None, "timestamp": "2026-01-01"}))


def test_a_recreated_table_starts_from_the_beginning() -> None:
    replaced = DeltaCommit(3, "CREATE OR REPLACE TABLE")
    assert log(made(), claimed(1), wrote(2), replaced) is None
    assert log(made(), claimed(1), wrote(2), replaced, claimed(4), wrote(5)) == AT[5]
    assert log(made(), claimed(1), wrote(2), replaced, claimed(4, base=2)) is None


def test_a_table_whose_rows_were_all_overwritten_restarts() -> None:
    """The rows may be replaced by those of an older version."""
    before = made(), claimed(1), wrote(2), wrote(3)
    overwrite = DeltaCommit(4, "WRITE", {"mode": "Overwrite", "partitionBy": "[]"})
    assert log(*before, overwrite) is None
    assert log(*before, overwrite, restored(5, 3)) == AT[3]
    for partial in ({"predicate": "a = 1"}, {"isDynamicPartitionOverwrite": "true"}):
        assert log(*before, DeltaCommit(4, "WRITE", {"mode": "Overwrite", **partial})) == AT[3]
    assert log(*before, DeltaCommit(4, "WRITE", {"mode": "Append"})) == AT[3]


def test_rows_over_a_rollback_are_refused_with_the_way_back() -> None:
    before = made(), claimed(1), wrote(2), wrote(3)
    with pytest.raises(ExportError, match="TO VERSION AS OF 4"):
        log(*before, restored(4, 2), wrote(5, base=3))
    with pytest.raises(ExportError, match="TO VERSION AS OF 4"):
        log(*before, restored(4, 2), other(5), wrote(6, base=3))
    # The rollback has removed the refused rows.
    assert log(*before, restored(4, 2), wrote(5, base=3), restored(6, 4)) == AT[2]
    # A claim has no rows, so that it is ignored.
    assert log(*before, restored(4, 2), claimed(5, base=3)) == AT[2]
    assert log(*before, restored(4, 2), claimed(5, base=3), claimed(6)) == AT[6]


def test_a_log_that_was_cleaned_is_not_taken_for_a_new_one() -> None:
    with pytest.raises(ProgressLost, match="export into a new table"):
        log(other(7), other(8))
    with pytest.raises(ProgressLost):
        log(other(7), restored(8, 3))


def test_progress_carried_by_maintenance_counts_unless_outdated() -> None:
    carried = other(8, carried_metadata(AT[3], 6, 9))
    assert log(other(7), carried, other(9)) == AT[3]
    with pytest.raises(ProgressLost):  # An export has committed since maintenance read the table.
        log(other(7), carried, other(9), transaction=10)
    assert log(wrote(7), carried) == AT[7]
    # Maintenance read the table before a rollback, and committed after it.
    with pytest.raises(ProgressLost):
        log(restored(7, 2), carried)
    assert log(restored(5, 2), other(6), carried) == AT[3]
    with pytest.raises(ProgressLost):  # The progress is of before the rollback.
        log(carried, restored(9, 7))


def test_metadata_of_other_writers_is_ignored() -> None:
    assert DeltaCommit(1, "WRITE", user_metadata=json.dumps({"tidemark.offsets": "{}"})).properties
    assert log(made(), DeltaCommit(1, "WRITE", user_metadata=json.dumps({"job": 1}))) is None
