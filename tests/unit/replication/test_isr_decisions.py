"""Decisions of a leader about its ISR, as pure rules."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.wire import control
from tidemark_broker.replication.partition import isr_decisions
from tidemark_broker.replication.partition.isr_decisions import (
    AlterPartitionAnswer,
    FollowerFetch,
    FollowerProgress,
    LeaderView,
)

LAG = 30.0


def follower(next_offset: int, *, caught_up_s: float = 100.0) -> FollowerProgress:
    return FollowerProgress(
        next_offset=next_offset,
        log_start_offset=5,
        broker_epoch=1,
        last_fetch_s=100.0,
        last_caught_up_s=caught_up_s,
    )


def view(
    *,
    next_offset: int = 100,
    hw: int = 0,
    members: tuple[int, ...] = (1, 2, 3),
    maximal: frozenset[int] | None = None,
    followers: dict[int, FollowerProgress] | None = None,
    min_isr: int = 1,
    epoch_start: int = 0,
    eligible: frozenset[int] = frozenset({2, 3}),
) -> LeaderView:
    # All brokers are in the ISR, alive and at offset -1, unless a test says otherwise.
    return LeaderView(
        leader=1,
        next_offset=next_offset,
        high_watermark=hw,
        epoch_start_offset=epoch_start,
        isr=members,
        maximal_isr=frozenset(members) if maximal is None else maximal,
        followers=followers or {},
        eligible=eligible,
        min_isr=min_isr,
        now_s=100.0,
        lag_max_s=LAG,
    )


def fetch_at(offset: int, *, leader: int, now_s: float) -> FollowerFetch:
    return FollowerFetch(
        fetch_offset=offset,
        log_start_offset=0,
        local_log_start_offset=0,
        broker_epoch=1,
        leader_next_offset=leader,
        now_s=now_s,
    )


def test_the_high_watermark_is_the_smallest_end_of_the_isr() -> None:
    assert isr_decisions.high_watermark(view(followers={2: follower(80), 3: follower(90)})) == 80


def test_the_high_watermark_never_moves_back() -> None:
    assert (
        isr_decisions.high_watermark(view(hw=85, followers={2: follower(80), 3: follower(90)}))
        == 85
    )


def test_the_high_watermark_does_not_advance_below_min_isr() -> None:
    assert isr_decisions.high_watermark(view(hw=10, members=(1,), min_isr=2)) == 10


def test_the_high_watermark_does_not_advance_while_the_row_has_eligible_leaders() -> None:
    """KIP-966 requires it independently of the min.insync.replicas that the leader knows."""
    state = view(hw=10, members=(1,), min_isr=1)._replace(has_eligible_leaders=True)
    assert isr_decisions.high_watermark(state) == 10


def test_a_lone_leader_commits_its_own_end() -> None:
    assert isr_decisions.high_watermark(view(members=(1,))) == 100


def test_a_member_being_added_holds_the_high_watermark_back() -> None:
    late = follower(60, caught_up_s=float("-inf"))
    state = view(members=(1,), followers={2: late}, eligible=frozenset())
    assert isr_decisions.high_watermark(state) == 100
    # KIP-497: while a proposal is pending, the maximal ISR counts.
    assert isr_decisions.high_watermark(state._replace(maximal_isr=frozenset({1, 2}))) == 60


def test_the_high_watermark_waits_for_a_caught_up_follower_outside_the_isr() -> None:
    assert isr_decisions.high_watermark(view(members=(1,), followers={2: follower(70)})) == 70


def test_the_high_watermark_does_not_wait_for_a_fenced_follower_outside_the_isr() -> None:
    state = view(members=(1,), followers={2: follower(70)}, eligible=frozenset())
    assert isr_decisions.high_watermark(state) == 100


def test_a_follower_joins_only_at_the_high_watermark_and_in_the_current_epoch() -> None:
    state = view(members=(1,), hw=90, followers={2: follower(90)}, epoch_start=90)
    assert isr_decisions.may_join(state, 2)
    # Kafka's isFollowerInSync: at the high watermark, and at the start of the leader's epoch. The
    # follower must also be alive and not proposed already.
    assert not isr_decisions.may_join(state._replace(high_watermark=91), 2)
    assert not isr_decisions.may_join(state._replace(epoch_start_offset=91), 2)
    assert not isr_decisions.may_join(state._replace(eligible=frozenset({3})), 2)
    assert not isr_decisions.may_join(state._replace(maximal_isr=frozenset({1, 2})), 2)
    # The follower's durable log start is 5. A lower one than the leader's would move the log
    # start back.
    assert isr_decisions.may_join(state._replace(log_start_offset=5), 2)
    assert not isr_decisions.may_join(state._replace(log_start_offset=6), 2)


def test_a_follower_that_lags_too_long_is_out_of_sync() -> None:
    state = view(followers={2: follower(50, caught_up_s=69.0), 3: follower(50, caught_up_s=71.0)})
    assert isr_decisions.out_of_sync(state) == frozenset({2})


def test_an_idle_follower_with_the_same_end_stays_in_sync() -> None:
    state = view(members=(1, 2), followers={2: follower(100, caught_up_s=float("-inf"))})
    assert isr_decisions.out_of_sync(state) == frozenset()


def test_caught_up_time_follows_the_previous_fetch() -> None:
    first = isr_decisions.after_fetch(FollowerProgress(), fetch_at(50, leader=100, now_s=10.0))
    assert first.last_caught_up_s == float("-inf")
    # Kafka's Replica.updateFetchState: a fetch at the leader's end of the previous fetch was
    # caught up at that earlier time.
    second = isr_decisions.after_fetch(first, fetch_at(100, leader=200, now_s=11.0))
    assert second.last_caught_up_s == 10.0
    third = isr_decisions.after_fetch(second, fetch_at(200, leader=200, now_s=12.0))
    assert third.last_caught_up_s == 12.0


def test_a_new_epoch_forgets_offsets_and_keeps_log_starts() -> None:
    before = follower(80)._replace(log_start_offset=7)
    fresh = isr_decisions.at_new_epoch(before, in_isr=True, now_s=5.0)
    assert (fresh.next_offset, fresh.log_start_offset, fresh.last_caught_up_s) == (-1, 7, 5.0)
    assert isr_decisions.at_new_epoch(None, in_isr=False, now_s=5.0).last_caught_up_s == float(
        "-inf"
    )


def test_effective_min_isr_is_bounded_by_the_replication_factor() -> None:
    assert isr_decisions.effective_min_isr(3, 2) == 2
    assert isr_decisions.effective_min_isr(1, 3) == 1


@given(
    hw=st.integers(0, 100),
    ends=st.dictionaries(st.sampled_from([2, 3, 4]), st.integers(-1, 120)),
    members=st.sets(st.sampled_from([2, 3, 4])),
    min_isr=st.integers(1, 4),
)
def test_every_isr_member_has_all_committed_records(
    hw: int, ends: dict[int, int], members: set[int], min_isr: int
) -> None:
    state = view(
        hw=hw,
        members=(1, *sorted(members)),
        followers={node: follower(ends.get(node, -1)) for node in (2, 3, 4)},
        min_isr=min_isr,
        eligible=frozenset({2, 3, 4}),
    )
    committed = isr_decisions.high_watermark(state)
    assert committed >= hw
    if committed > hw:
        assert len(state.isr) >= min_isr
        assert all(ends.get(node, -1) >= committed for node in members)


ROW = control.PartitionState(
    partition=0,
    leader=1,
    leader_epoch=5,
    partition_epoch=10,
    replicas=(1, 2),
    isr=(1,),
    manifest=False,
)
CHANGE = control.IsrChange(
    topic_id=uuid.UUID(int=1),
    partition=0,
    leader_epoch=5,
    partition_epoch=10,
    new_isr=(1, 2),
    remote_manifest=False,
)


@pytest.mark.parametrize(
    ("pending", "change", "epochs", "expected"),
    [
        # A newer partition epoch is adopted, whichever proposal it answers. The same epoch only
        # settles the pending proposal. An older one, or another leader epoch, is ignored.
        ((1, 2), CHANGE, (5, 11), AlterPartitionAnswer.ADOPT),
        (None, replace(CHANGE, partition_epoch=9), (5, 11), AlterPartitionAnswer.ADOPT),
        ((1, 2), CHANGE, (5, 10), AlterPartitionAnswer.SETTLED),
        ((1, 3), CHANGE, (5, 10), AlterPartitionAnswer.NOTHING),
        ((1, 2), replace(CHANGE, partition_epoch=9), (5, 10), AlterPartitionAnswer.NOTHING),
        (None, CHANGE, (5, 10), AlterPartitionAnswer.NOTHING),
        ((1, 2), CHANGE, (5, 9), AlterPartitionAnswer.NOTHING),
        ((1, 2), CHANGE, (6, 11), AlterPartitionAnswer.NOTHING),
    ],
)
def test_an_answer_settles_the_proposal_that_it_belongs_to(
    pending: tuple[int, ...] | None,
    change: control.IsrChange,
    epochs: tuple[int, int],
    expected: AlterPartitionAnswer,
) -> None:
    result = control.IsrResult(
        topic_id=change.topic_id,
        partition=0,
        error_code=0,
        leader=1,
        leader_epoch=epochs[0],
        partition_epoch=epochs[1],
        isr=(1,),
    )
    assert isr_decisions.meaning(ROW, pending, change, result) is expected
