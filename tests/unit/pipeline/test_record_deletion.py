"""Deletion of exported records from their topic.

Nothing beyond the table's commit is deleted, and nothing whose record may be lost.
"""

from dataclasses import replace

import pytest

from tidemark.log_lineage import ReadPosition
from tidemark_pipeline.export.dead_letters import common_progress, raised_claim
from tidemark_pipeline.export.export_progress import Exported, ExportError, new_claim
from tidemark_pipeline.export.record_deletion import points
from tidemark_pipeline.jobs.export import StartRules, batch_options
from tidemark_pipeline.read.options import parse

COMPLETE = Exported("t", "id", {0: 17, 1: 4, 2: 9}, 3, "a", starts={0: 0, 1: 0, 2: 5}, deletes=True)
SOURCE = {"topic": "t", "path": "/tier", "bootstrap": "b:9092"}


NEW = Exported("t")


def beginning(claimed: Exported = NEW, **options: str) -> StartRules:
    given = batch_options({**SOURCE, **options}, claimed)
    return StartRules(parse(given, streaming=True), "t")


def test_records_are_deleted_up_to_the_commit_and_no_partition_is_guessed() -> None:
    known = replace(COMPLETE, leader_epochs={0: 6})
    assert points(known, {0: 3, 1: 4, 2: 5, 3: 0}) == {0: ReadPosition(17, 6), 2: ReadPosition(9)}
    # Partitions with an unknown log start, and records beyond the table's offset, stay.
    assert points(COMPLETE, {1: 100}) == {}
    assert points(COMPLETE, {}) == {}


def test_records_that_may_be_in_no_table_are_never_deleted() -> None:
    with pytest.raises(ExportError, match=r"t-2 from its log start 4 up to offset 5.*Nothing is"):
        points(COMPLETE, {0: 0, 2: 4})


def test_table_without_recorded_starts_only_has_later_records() -> None:
    """An older version's commits have no starts."""
    older = replace(COMPLETE, starts={})
    with pytest.raises(ExportError, match=r"t-0 from its log start 0 up to offset 17"):
        points(older, {0: 0})
    later = older.reaching({0: 20})
    assert later.starts == {0: 17, 1: 4, 2: 9}
    assert points(later, {0: 17}) == {0: ReadPosition(20)}


def test_start_of_a_partition_is_kept() -> None:
    """Every later job keeps it."""
    read = Exported.of_properties(COMPLETE.to_properties())
    assert read == COMPLETE
    later = new_claim(read, "t", "id", "b").reaching({0: 20, 3: 8}, {0: 19, 3: 2})
    assert later.starts == {0: 0, 1: 0, 2: 5, 3: 2}
    assert later.deletes
    assert new_claim(None, "t", "id", "b", deletes=True).deletes
    assert not new_claim(None, "t", "id", "b").deletes


def test_new_partition_starts_at_its_log_start_or_at_its_first_batch() -> None:
    assert beginning().reached(NEW, {0: 9}, {0: 2}).starts == {0: 2}
    # With these options, records below the batch may have been skipped.
    for given in (
        {"startingOffsets": '{"t": {"0": 5}}'},
        {"startingOffsets": "latest"},
        {"startingTimestamp": "5"},
        {"tier": "local"},
        {"failOnDataLoss": "false"},
    ):
        assert beginning(**given).reached(NEW, {0: 9}, {0: 2}).starts == {0: 9}
    # An export that continues keeps its start, unless it skips what it does not find.
    assert beginning(COMPLETE).reached(COMPLETE, {0: 20}, {}).starts == COMPLETE.starts
    lossy = beginning(COMPLETE, failOnDataLoss="false")
    assert lossy.reached(COMPLETE, {0: 20}, {}).starts == {0: 20, 1: 4, 2: 9}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"startingOffsets": '{"t": {"0": 5}}'}, "Start at the log start"),
        ({"startingTimestamp": "5"}, "Start at the log start"),
        ({"tier": "local"}, "Start at the log start"),
    ],
)
def test_a_run_that_leaves_records_out_deletes_none(options: dict[str, str], why: str) -> None:
    new = Exported("t", deletes=True)
    beginning().check_deletable(new, [0, 1])
    beginning(startingOffsets="earliest").check_deletable(new, [0, 1])
    with pytest.raises(ExportError, match=why):
        beginning(**options).check_deletable(new, [0, 1])


def test_starting_options_only_affect_new_tables() -> None:
    """The options have no effect where the table determines the start."""
    beginning(COMPLETE, startingTimestamp="5").check_deletable(COMPLETE, [0, 1, 2])
    with pytest.raises(ExportError, match="does not declare that the export deletes"):
        beginning().check_deletable(replace(COMPLETE, deletes=False), [0])


def test_deletion_requires_the_record_in_both_tables() -> None:
    rows = replace(COMPLETE, offsets={0: 17, 1: 9}, starts={0: 0, 1: 2})
    letters = replace(COMPLETE, offsets={0: 12, 1: 9, 2: 3}, starts={0: 4})
    both = common_progress(rows, letters)
    # The lower offset and the higher start of the two tables count.
    assert (both.offsets, both.starts) == ({0: 12, 1: 9}, {0: 4, 1: 9})
    # A partition that is new to one table starts where the batch started.
    later = raised_claim(letters, Exported("t", "id", {0: 13, 3: 7}, starts={0: 0, 3: 1}))
    assert later.starts == {0: 4, 1: 9, 2: 3, 3: 1}
