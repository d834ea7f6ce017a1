"""The prefix rule: which replicas read the tier before leading, and how far local retention
trusts it.
"""

import dataclasses

import pytest

from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs
from tidemark.tiering import NEVER_TIERED, DisablePolicy, Tiering, TieringState
from tidemark.wire.control import PartitionState
from tidemark_broker.replication.partition import prefix_rule
from tidemark_broker.replication.partition.prefix_rule import Doubt, PrefixState
from tidemark_broker.replication.remote import RemoteEnd, TierEnd

DELETING = Tiering(TieringState.DISABLING, 1, DisablePolicy.DELETE)
DELETED = Tiering(TieringState.DISABLED, 1, DisablePolicy.DELETE)
RETAINED = Tiering(TieringState.DISABLED, 1, DisablePolicy.RETAIN)
REFUTED = Doubt("the tier said so", refuted=True)


def epochs(*starts: tuple[int, int]) -> LeaderEpochs:
    """Pairs of epoch and start offset."""
    return LeaderEpochs(tuple(EpochEntry(epoch, start) for epoch, start in starts))


STANDING = PrefixState(
    has_manifest=True,
    recovering=False,
    tiering=Tiering(TieringState.ENABLED, 0),
    doubt=None,
    end=RemoteEnd(99, 4),
    epochs=epochs((4, 0)),
    next_offset=120,
)


def asked(**changes: object) -> bool:
    return bool(prefix_rule.question(dataclasses.replace(STANDING, **changes)))  # type: ignore[arg-type]


def test_a_leader_with_proof_leads_without_the_tier() -> None:
    assert not asked()
    assert not asked(end=None)
    assert not asked(end=RemoteEnd(-1, -1))


def test_a_leader_without_proof_reads_the_tier_first() -> None:
    assert asked(doubt=prefix_rule.UNCLEAN_SHUTDOWN)
    assert asked(recovering=True)
    assert asked(next_offset=99)
    assert asked(epochs=epochs((5, 0)))


def test_the_tier_is_read_only_where_it_can_have_an_answer() -> None:
    assert not asked(doubt=prefix_rule.UNCLEAN_SHUTDOWN, has_manifest=False)
    assert not asked(doubt=prefix_rule.UNCLEAN_SHUTDOWN, tiering=NEVER_TIERED)
    assert asked(doubt=REFUTED, has_manifest=False)


def test_delete_needs_the_question_until_it_is_done() -> None:
    """Deleted offsets are not given out again: every acknowledged log start is durable then."""
    doubt = prefix_rule.UNCLEAN_SHUTDOWN
    assert asked(doubt=doubt, tiering=DELETING)
    assert not asked(doubt=doubt, tiering=DELETED)
    assert asked(doubt=doubt, tiering=RETAINED)
    assert asked(doubt=REFUTED, tiering=DELETED)


def row(**changes: object) -> PartitionState:
    values: dict[str, object] = {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 3,
        "partition_epoch": 7,
        "replicas": (1, 2),
        "isr": (1,),
        "manifest": True,
    }
    return PartitionState(**(values | changes))  # type: ignore[arg-type]


def test_only_the_leader_that_it_follows_takes_a_replica_in() -> None:
    joined = row(partition_epoch=8, isr=(1, 2))
    assert prefix_rule.joined_isr(row(), joined, 2)
    assert not prefix_rule.joined_isr(None, joined, 2)
    assert not prefix_rule.joined_isr(row(isr=(1, 2)), joined, 2), "it may be older than the crash"
    elsewhere = row(leader=2, leader_epoch=4, partition_epoch=9, isr=(2,))
    assert not prefix_rule.joined_isr(row(), elsewhere, 2)


def test_a_log_that_lacks_the_tiers_last_record_contradicts_it() -> None:
    end = RemoteEnd(99, 4)
    assert prefix_rule.contradicts(end, epochs(), next_offset=99)
    assert prefix_rule.contradicts(end, epochs((5, 0)), next_offset=100)
    assert not prefix_rule.contradicts(end, epochs((4, 0)), next_offset=100)
    assert not prefix_rule.contradicts(end, epochs((6, 110)), next_offset=120), (
        "below its log start"
    )
    assert not prefix_rule.contradicts(None, epochs(), next_offset=0)


def test_a_log_lacks_what_the_tier_has_and_what_was_deleted_from_it() -> None:
    tier = TierEnd(RemoteEnd(99, 4), log_start_offset=40)
    assert tier.next_offset == 100
    assert prefix_rule.lacks(tier, epochs((4, 0)), next_offset=99)
    assert prefix_rule.lacks(tier, epochs((3, 0)), next_offset=120)
    assert not prefix_rule.lacks(tier, epochs((4, 0)), next_offset=100)
    deleted = TierEnd(RemoteEnd(-1, -1), log_start_offset=40)
    assert deleted.next_offset == 40
    assert prefix_rule.lacks(deleted, epochs(), next_offset=39)
    assert not prefix_rule.lacks(deleted, epochs(), next_offset=40)


@pytest.mark.parametrize(
    ("own", "next_offset", "trusted"),
    [
        (epochs((4, 0)), 120, 99),
        (epochs((4, 0)), 80, 79),
        (epochs((2, 0), (4, 60), (6, 110)), 120, 99),
        (epochs((2, 0), (4, 60), (6, 80)), 120, 79),
        (epochs((2, 0), (6, 80)), 120, -1),
        (epochs((2, 0)), 120, -1),
        (epochs((6, 0)), 120, -1),
        (epochs((2, 0), (4, 110)), 120, -1),
        (epochs((6, 110)), 120, -1),
        (epochs(), 0, -1),
    ],
)
def test_an_end_is_trusted_as_far_as_the_log_is_of_its_history(
    own: LeaderEpochs, next_offset: int, trusted: int
) -> None:
    end = RemoteEnd(99, 4)
    assert prefix_rule.trusted_offset(end, own, next_offset=next_offset) == trusted
    assert prefix_rule.trusted_offset(None, own, next_offset=next_offset) == -1
    assert prefix_rule.trusted_offset(RemoteEnd(-1, -1), own, next_offset=next_offset) == -1


def test_the_known_end_of_the_tier_only_grows() -> None:
    end = prefix_rule.later(None, 9, 1)
    assert end == RemoteEnd(9, 1)
    assert prefix_rule.later(end, 5, 2) == end
    assert prefix_rule.later(end, 12, 2) == RemoteEnd(12, 2)
    empty = prefix_rule.later(None, -1, -1)
    assert empty == RemoteEnd(-1, -1)
    assert prefix_rule.later(empty, 3, 0) == RemoteEnd(3, 0)
    assert not prefix_rule.contradicts(empty, LeaderEpochs(), next_offset=0)
