"""Deletions of an export from its topic: never beyond the table's commit, and none that may lose a
record.
"""

from dataclasses import replace

import pytest

from tidemark.log_lineage import ReadPosition
from tidemark_pipeline.export.dead_letters import common_progress, raised_claim
from tidemark_pipeline.export.export_progress import Exported, ExportError, new_claim
from tidemark_pipeline.export.record_deletion import points
from tidemark_pipeline.jobs.export import StartRules, stream_options
from tidemark_pipeline.options import parse

WHOLE = Exported("t", "id", {0: 17, 1: 4, 2: 9}, 3, "a", starts={0: 0, 1: 0, 2: 5}, deletes=True)
SOURCE = {"topic": "t", "path": "/tier", "bootstrap": "b:9092"}


NEW = Exported("t")


def beginning(claimed: Exported = NEW, **options: str) -> StartRules:
    given = stream_options({**SOURCE, **options}, claimed, once=True)
    return StartRules(parse(given, streaming=True), "t")


def test_records_are_deleted_up_to_the_commit_and_no_partition_is_guessed() -> None:
    known = replace(WHOLE, leader_epochs={0: 6})
    assert points(known, {0: 3, 1: 4, 2: 5, 3: 0}) == {0: ReadPosition(17, 6), 2: ReadPosition(9)}
    # Whose log start cannot be read, and what is beyond the table's offset, stay.
    assert points(WHOLE, {1: 100}) == {}
    assert points(WHOLE, {}) == {}


def test_what_may_be_in_no_table_is_never_deleted_along() -> None:
    with pytest.raises(ExportError, match=r"t-2 from its log start 4 up to offset 5.*Nothing is"):
        points(WHOLE, {0: 0, 2: 4})


def test_a_table_that_does_not_say_where_it_was_begun_has_only_what_comes() -> None:
    """An older version's commits have no starts."""
    older = replace(WHOLE, starts={})
    with pytest.raises(ExportError, match=r"t-0 from its log start 0 up to offset 17"):
        points(older, {0: 0})
    later = older.reaching({0: 20})
    assert later.starts == {0: 17, 1: 4, 2: 9}
    assert points(later, {0: 17}) == {0: ReadPosition(20)}


def test_where_a_partition_was_begun_is_kept() -> None:
    """Every later job keeps it."""
    read = Exported.of_properties(WHOLE.to_properties())
    assert read == WHOLE
    later = new_claim(read, "t", "id", "b").reaching({0: 20, 3: 8}, {0: 19, 3: 2})
    assert later.starts == {0: 0, 1: 0, 2: 5, 3: 2}
    assert later.deletes
    assert new_claim(None, "t", "id", "b", deletes=True).deletes
    assert not new_claim(None, "t", "id", "b").deletes


def test_a_batch_of_a_new_partition_begins_at_its_log_start_or_at_an_unknown_offset() -> None:
    assert beginning().reached(NEW, {0: 9}, {0: 2}).starts == {0: 2}
    for given in (
        {"startingOffsets": '{"t": {"0": 5}}'},
        {"startingOffsets": "latest"},
        {"startingTimestamp": "5"},
        {"tier": "local"},
        {"failOnDataLoss": "false"},
    ):
        assert beginning(**given).reached(NEW, {0: 9}, {0: 2}).starts == {0: 9}
    # An export that continues keeps its start, unless it skips what it does not find.
    assert beginning(WHOLE).reached(WHOLE, {0: 20}, {}).starts == WHOLE.starts
    lossy = beginning(WHOLE, failOnDataLoss="false")
    assert lossy.reached(WHOLE, {0: 20}, {}).starts == {0: 20, 1: 4, 2: 9}


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


def test_starting_options_are_of_a_new_table_only() -> None:
    """The options have no effect where the table determines the start."""
    beginning(WHOLE, startingTimestamp="5").check_deletable(WHOLE, [0, 1, 2])
    with pytest.raises(ExportError, match="does not declare that the export deletes"):
        beginning().check_deletable(replace(WHOLE, deletes=False), [0])


def test_of_two_tables_both_must_have_a_record() -> None:
    rows = replace(WHOLE, offsets={0: 17, 1: 9}, starts={0: 0, 1: 2})
    letters = replace(WHOLE, offsets={0: 12, 1: 9, 2: 3}, starts={0: 4})
    both = common_progress(rows, letters)
    assert (both.offsets, both.starts) == ({0: 12, 1: 9}, {0: 4, 1: 9})
    # A partition that is new to one of them was begun where that one says.
    later = raised_claim(letters, Exported("t", "id", {0: 13, 3: 7}, starts={0: 0, 3: 1}))
    assert later.starts == {0: 4, 1: 9, 2: 3, 3: 1}
