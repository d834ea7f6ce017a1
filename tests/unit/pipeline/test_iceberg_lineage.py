"""Progress of an Iceberg table, as the ancestors of its current snapshot record it."""

import pytest

from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.iceberg_lineage import Ancestor, LineageLost, progress_from_ancestors

AT = {n: Exported("t", "id", {0: n * 10}, 1, "a") for n in range(1, 9)}


def wrote(number: int, parent: int | None) -> Ancestor:
    return Ancestor(number, parent, AT[number].to_properties())


def other(number: int, parent: int | None, **summary: str) -> Ancestor:
    return Ancestor(number, parent, {name.replace("_", "-"): v for name, v in summary.items()})


def found(current: int, *snapshots: Ancestor, tag: int | None = None) -> Exported | None:
    known = {snapshot.id: snapshot for snapshot in snapshots}
    at = progress_from_ancestors(
        "lake.db.t", known[current], known.get, None if tag is None else known.get(tag)
    )
    return None if at is None else at.exported


def test_the_newest_ancestor_counts_and_no_other_snapshot() -> None:
    snapshots = [wrote(1, None), wrote(2, 1), wrote(3, 2), other(4, 3), other(5, 1)]
    assert found(4, *snapshots, tag=3) == AT[3]
    assert found(5, *snapshots, tag=3) == AT[1]  # compacted behind a rollback
    assert found(1, *snapshots, tag=3) == AT[1]


def test_new_or_replaced_table_has_no_offsets() -> None:
    assert found(2, other(1, None), other(2, 1)) is None
    assert found(9, wrote(1, None), wrote(2, 1), other(9, None), tag=2) is None


def test_an_ancestor_that_expired_is_never_replaced_by_the_tag() -> None:
    """A rollback of the table to that snapshot would look the same."""
    with pytest.raises(LineageLost, match=r"snapshot 1, .*set_current_snapshot\('db.t', 3\)"):
        found(5, wrote(3, 2), other(5, 1), tag=3)
    with pytest.raises(LineageLost, match=r"Export into a new table$"):
        found(5, wrote(3, 2), other(5, 1))


def test_rows_of_a_picked_snapshot_are_refused_with_the_way_back() -> None:
    """A picked snapshot lacks the records between it and the current one."""
    rolled_back = [wrote(1, None), wrote(2, 1), wrote(3, 2)]
    picked = other(6, 1, source_snapshot_id="3")
    for behind in ([], [other(7, 6)]):
        with pytest.raises(ExportError, match=r"snapshot 6 .*set_current_snapshot\('db.t', 1\)"):
            found(7 if behind else 6, *rolled_back, picked, *behind)
    with pytest.raises(ExportError, match="cherrypick_snapshot"):  # what was picked has expired
        found(6, wrote(1, None), picked)
    # The picked snapshot repeats the properties of its source.
    repeated = Ancestor(6, 1, {**AT[3].to_properties(), "source-snapshot-id": "3"})
    with pytest.raises(ExportError, match="cherrypick_snapshot"):
        found(6, *rolled_back, repeated)
    with pytest.raises(ExportError, match="cherrypick_snapshot"):  # picked once more
        found(7, *rolled_back, picked, other(7, 1, source_snapshot_id="6"))
    # Rows that another writer added are not the export's.
    assert found(6, wrote(1, None), other(3, 1), picked) == AT[1]
    # An export that has looked at it since has been refused, so one behind it was rolled back.
    assert found(7, *rolled_back, picked, wrote(7, 6)) == AT[7]


@pytest.mark.parametrize(
    ("operation", "is_rewritten"),
    [("append", False), ("replace", False), ("overwrite", True), ("delete", True)],
)
def test_rows_removed_by_others_are_reported(operation: str, is_rewritten: bool) -> None:
    known = {1: wrote(1, None), 2: Ancestor(2, 1, {}, operation), 3: other(3, 2)}
    at = progress_from_ancestors("lake.db.t", known[3], known.get, None)
    assert at is not None
    assert (at.exported, at.snapshot_id, at.is_rewritten) == (AT[1], 1, is_rewritten)


def test_a_replaced_table_is_distinguished_from_one_that_lost_rows() -> None:
    # A snapshot that added all of the table's records has replaced the table.
    for total, is_replaced in (("5", True), ("9", False)):
        summary = {"added-records": "5", "deleted-records": "7", "total-records": total}
        known = {1: wrote(1, None), 2: Ancestor(2, 1, summary, "overwrite")}
        at = progress_from_ancestors("lake.db.t", known[2], known.get, None)
        assert at is not None
        assert (at.is_rewritten, at.is_replaced) == (True, is_replaced)


@pytest.mark.parametrize("source", ["6", "7", "x", "", "9" * 30, "-1"])
def test_an_id_that_no_picked_snapshot_can_have_is_refused(source: str) -> None:
    """A chain of picked snapshots that leads back to itself must not be followed forever."""
    one, other_one = (
        other(6, 1, source_snapshot_id=source),
        other(7, 1, source_snapshot_id="6"),
    )
    with pytest.raises(ExportError, match="cherrypick_snapshot"):
        found(6, wrote(1, None), one, other_one)
