"""Offsets that outlive a cluster are checked against the log's lineage."""

from tidemark.leader_epochs import GENERATION
from tidemark.log_lineage import (
    RESTORES_MAX,
    LogLineage,
    ReadPosition,
    Restore,
    divergence,
    merge_restores,
    restored_epoch,
)

RESTORED = Restore(1000, {0: 400})


def log(**fields: object) -> LogLineage:
    return LogLineage(**{"partition": 0, "restores": (RESTORED,), **fields})  # type: ignore[arg-type]


def test_offset_beyond_the_restored_end_diverges_at_that_end() -> None:
    assert divergence(ReadPosition(1000, 3), log()) == 400
    assert divergence(ReadPosition(401, 3), log()) == 400
    assert divergence(ReadPosition(400, 3), log()) is None
    # Read after the restore, however far.
    assert divergence(ReadPosition(1000, 1000), log()) is None
    # A partition that the tier did not know began empty.
    assert divergence(ReadPosition(1, 3), log(partition=7)) == 0


def test_offset_without_an_epoch_is_judged_by_restores_and_the_end_of_the_log() -> None:
    assert divergence(ReadPosition(1000), log(later_epoch_start=5, leader_epoch=0)) == 400
    assert divergence(ReadPosition(400), log(end=400)) is None
    assert divergence(ReadPosition(400), log(end=399)) == 399
    assert divergence(ReadPosition(10**9), LogLineage(partition=0)) is None


def test_records_of_a_later_epoch_below_the_offset_replaced_others() -> None:
    unrestored = {"restores": ()}
    assert divergence(ReadPosition(50, 3), log(**unrestored, later_epoch_start=49)) == 49
    assert divergence(ReadPosition(50, 3), log(**unrestored, later_epoch_start=50)) is None
    # The epochs of the records may have expired; the record of the restore never does.
    assert divergence(ReadPosition(500, 3), log(later_epoch_start=600, end=900)) == 400


def test_a_leader_of_an_older_epoch_leads_another_log() -> None:
    assert divergence(ReadPosition(50, 3), log(restores=(), leader_epoch=2, end=90)) == 0
    assert divergence(ReadPosition(50, 3), log(restores=(), leader_epoch=3, end=90)) is None
    assert divergence(ReadPosition(0, 3), log(restores=(), leader_epoch=2, end=90)) is None


def test_the_first_restore_after_the_position_counts() -> None:
    twice = (RESTORED, Restore(2000, {0: 450}))
    assert divergence(ReadPosition(1000, 3), log(restores=twice)) == 400
    assert divergence(ReadPosition(1000, 1001), log(restores=twice)) == 450
    assert divergence(ReadPosition(450, 1001), log(restores=twice)) is None
    assert divergence(ReadPosition(1000, 2000), log(restores=twice)) is None


def test_a_restored_epoch_is_above_all_that_the_lost_cluster_may_have_used() -> None:
    """Leaders without a claim, a rebuilding and an earlier restore must all have lower epochs."""
    assert restored_epoch(7, now_ms=9) == 7 + 2 * GENERATION
    day_ms, then_ms = 86_400_000, 1_800_000_000_000
    assert restored_epoch(7, then_ms) > 7 + 2 * GENERATION
    assert restored_epoch(7, then_ms + day_ms) > restored_epoch(7, then_ms) + 80_000
    assert restored_epoch(7, 10**16) < 2**30


def test_folded_restores_are_never_more_lenient() -> None:
    many = [Restore(n, {0: 1000 - n, 1: n}) for n in range(1, RESTORES_MAX + 5)]
    found = merge_restores(many[:3], many)
    assert len(found) == RESTORES_MAX
    # Every position is compared with the answer of the complete list.
    for epoch in range(RESTORES_MAX + 6):
        for offset in (0, 1, 500, 985, 1000):
            exact = divergence(ReadPosition(offset, epoch), log(restores=tuple(many)))
            folded = divergence(ReadPosition(offset, epoch), log(restores=found))
            assert exact is None or (folded is not None and folded <= exact)
    assert merge_restores(found, found) == found
