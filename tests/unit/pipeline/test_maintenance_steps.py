"""Steps of a maintenance run, and which of them keep the export from writing."""

from datetime import timedelta

import pytest

from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.maintenance import Maintained, TableMaintenance, steps

NEVER = TableMaintenance(compact=False, keep=None, orphans=None)
SHORT = TableMaintenance(keep=timedelta(), orphans=None)


@pytest.mark.parametrize(
    ("kind", "upkeep", "found"),
    [
        (
            Format.ICEBERG,
            TableMaintenance(),
            [("compaction", True), ("expiration", True), ("removal of orphans", False)],
        ),
        (Format.DELTA, TableMaintenance(), [("compaction", True), ("expiration", False)]),
        # Files of a batch could be as old as this.
        (Format.DELTA, SHORT, [("compaction", True), ("expiration", True)]),
        (Format.ICEBERG, NEVER, []),
        (Format.DELTA, TableMaintenance(compact=False, keep=None), []),
    ],
    ids=str,
)
def test_only_steps_that_commit_are_exclusive(
    kind: Format, upkeep: TableMaintenance, found: list[tuple[str, bool]]
) -> None:
    assert [(step.name, step.is_exclusive) for step in steps(kind, upkeep)] == found


def test_the_steps_do_together_what_one_run_does() -> None:
    upkeep = TableMaintenance(keep_last=3)
    parts = [step.upkeep for step in steps(Format.ICEBERG, upkeep)]
    assert [part.compact for part in parts] == [True, False, False]
    assert [part.keep for part in parts] == [None, upkeep.keep, None]
    assert [part.orphans for part in parts] == [None, None, upkeep.orphans]
    assert {part.keep_last for part in parts} == {3}


def test_figures_of_tables_are_added() -> None:
    assert Maintained(compacted=2, orphans=1) + Maintained(compacted=3, into=1) == Maintained(
        compacted=5, into=1, orphans=1
    )
