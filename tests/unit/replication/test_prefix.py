"""The prefix rule: which replicas read the tier before they lead, and up to which offset local
retention trusts the tier."""

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


TRUSTED_STATE = PrefixState(
    has_manifest=True,
    recovering=False,
    tiering=Tiering(TieringState.ENABLED, 0),
    doubt=None,
    end=RemoteEnd(99, 4),
    epochs=epochs((4, 0)),
    next_offset=120,
)


def must_read_tier(**changes: object) -> bool:
    return bool(prefix_rule.reason_to_query_tier(dataclasses.replace(TRUSTED_STATE, **changes)))  # type: ignore[arg-type]


def test_a_leader_with_proof_leads_without_the_tier() -> None:
    assert not must_read_tier()
    assert not must_read_tier(end=None)
    assert not must_read_tier(end=RemoteEnd(-1, -1))


def test_a_leader_without_proof_reads_the_tier_first() -> None:
    assert must_read_tier(doubt=prefix_rule.UNCLEAN_SHUTDOWN)
    assert must_read_tier(recovering=True)
    # The tier ends at 99 in epoch 4: a log that ends there lacks the last record, and one that
    # starts in epoch 5 has other records.
    assert must_read_tier(next_offset=99)
    assert must_read_tier(epochs=epochs((5, 0)))


def test_the_tier_is_read_only_if_it_can_settle_the_doubt() -> None:
    assert not must_read_tier(doubt=prefix_rule.UNCLEAN_SHUTDOWN, has_manifest=False)
    assert not must_read_tier(doubt=prefix_rule.UNCLEAN_SHUTDOWN, tiering=NEVER_TIERED)
    assert must_read_tier(doubt=REFUTED, has_manifest=False)


def test_the_tier_is_read_until_a_delete_is_complete() -> None:
    """After a completed Delete every acknowledged log start is durable, so no deleted offset is
    given out again."""
    doubt = prefix_rule.UNCLEAN_SHUTDOWN
    assert must_read_tier(doubt=doubt, tiering=DELETING)
    assert not must_read_tier(doubt=doubt, tiering=DELETED)
    assert must_read_tier(doubt=doubt, tiering=RETAINED)
    assert must_read_tier(doubt=REFUTED, tiering=DELETED)


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


def test_only_the_followed_leader_proves_a_replica_complete_by_its_isr() -> None:
    joined = row(partition_epoch=8, isr=(1, 2))
    assert prefix_rule.joined_isr(row(), joined, 2)
    assert not prefix_rule.joined_isr(None, joined, 2)
    assert not prefix_rule.joined_isr(row(isr=(1, 2)), joined, 2), (
        "this ISR may be older than the crash"
    )
    other_leader = row(leader=2, leader_epoch=4, partition_epoch=9, isr=(2,))
    assert not prefix_rule.joined_isr(row(), other_leader, 2)


def test_a_log_without_the_tiers_last_record_contradicts_it() -> None:
    end = RemoteEnd(99, 4)
    assert prefix_rule.contradicts(end, epochs(), next_offset=99)
    assert prefix_rule.contradicts(end, epochs((5, 0)), next_offset=100)
    assert not prefix_rule.contradicts(end, epochs((4, 0)), next_offset=100)
    assert not prefix_rule.contradicts(end, epochs((6, 110)), next_offset=120), (
        "below its log start"
    )
    assert not prefix_rule.contradicts(None, epochs(), next_offset=0)


def test_a_log_must_reach_the_tiers_end_and_its_log_start() -> None:
    tier = TierEnd(RemoteEnd(99, 4), log_start_offset=40)
    assert tier.next_offset == 100
    assert prefix_rule.is_behind_tier(tier, epochs((4, 0)), next_offset=99)
    assert prefix_rule.is_behind_tier(tier, epochs((3, 0)), next_offset=120)
    assert not prefix_rule.is_behind_tier(tier, epochs((4, 0)), next_offset=100)
    # An empty tier with a log start: everything below 40 was deleted and must not be given out
    # again.
    deleted = TierEnd(RemoteEnd(-1, -1), log_start_offset=40)
    assert deleted.next_offset == 40
    assert prefix_rule.is_behind_tier(deleted, epochs(), next_offset=39)
    assert not prefix_rule.is_behind_tier(deleted, epochs(), next_offset=40)


@pytest.mark.parametrize(
    ("own", "next_offset", "trusted"),
    [
        # The tier ends at offset 99 in epoch 4. The log has this epoch completely, or ends
        # before.
        (epochs((4, 0)), 120, 99),
        (epochs((4, 0)), 80, 79),
        (epochs((2, 0), (4, 60), (6, 110)), 120, 99),
        # Epoch 4 ends at 79 here: the tier's records from 80 on are another leader's.
        (epochs((2, 0), (4, 60), (6, 80)), 120, 79),
        # Without epoch 4 at offset 99 or below nothing proves a common history.
        (epochs((2, 0), (6, 80)), 120, -1),
        (epochs((2, 0)), 120, -1),
        (epochs((6, 0)), 120, -1),
        (epochs((2, 0), (4, 110)), 120, -1),
        (epochs((6, 110)), 120, -1),
        (epochs(), 0, -1),
    ],
)
def test_the_tiers_end_is_trusted_up_to_the_common_history(
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
    # An empty tier is knowledge too, and contradicts no log.
    empty = prefix_rule.later(None, -1, -1)
    assert empty == RemoteEnd(-1, -1)
    assert prefix_rule.later(empty, 3, 0) == RemoteEnd(3, 0)
    assert not prefix_rule.contradicts(empty, LeaderEpochs(), next_offset=0)
