"""Truncation by leader epochs (KIP-101, KIP-595), on pairs of logs."""

from hypothesis import given
from hypothesis import strategies as st

from tidemark.logfiles.leader_epochs import UNDEFINED_END, EpochEnd, LeaderEpochs
from tidemark_broker.replication.partition import divergence


def test_agreeing_logs_do_not_diverge() -> None:
    assert (
        divergence.diverging(fetch_offset=10, last_fetched_epoch=3, leaders_end=EpochEnd(3, 12))
        is None
    )
    assert (
        divergence.diverging(fetch_offset=0, last_fetched_epoch=-1, leaders_end=UNDEFINED_END)
        is None
    )


def test_a_tail_of_a_former_leader_diverges() -> None:
    end = EpochEnd(3, 8)
    assert divergence.diverging(fetch_offset=10, last_fetched_epoch=3, leaders_end=end) == end
    assert divergence.diverging(fetch_offset=8, last_fetched_epoch=4, leaders_end=end) == end


def test_a_follower_truncates_to_the_lower_end_of_both_logs() -> None:
    cut = divergence.truncation_offset
    assert cut(leaders_end=EpochEnd(3, 8), own_end=EpochEnd(3, 10), own_next_offset=10) == 8
    assert cut(leaders_end=EpochEnd(3, 8), own_end=EpochEnd(2, 5), own_next_offset=10) == 5
    assert cut(leaders_end=EpochEnd(3, 8), own_end=UNDEFINED_END, own_next_offset=6) == 6


Log = list[int]  # the epoch of each record


def epochs_of(log: Log) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(log):
        if epoch != epochs.latest_epoch:
            epochs = epochs.assign(epoch, offset)
    return epochs


def log_strategy() -> st.SearchStrategy[Log]:
    return st.lists(st.integers(0, 5), max_size=12).map(sorted)


@given(common=log_strategy(), more=log_strategy(), other=log_strategy())
def test_a_follower_ends_on_the_leaders_log(common: Log, more: Log, other: Log) -> None:
    """Epochs of the leader's own records are odd and those of the follower's former leader are
    even, so they never match."""
    leader = [2 * epoch for epoch in common] + [2 * (epoch + 10) + 1 for epoch in more]
    follower = [2 * epoch for epoch in common] + [2 * (epoch + 10) for epoch in other]
    # The leader has just been elected in an epoch of its own.
    leaders = epochs_of(leader).assign(101, len(leader))
    # Each round is one fetch: compare, truncate, repeat. KIP-101 needs one round per epoch that
    # only the follower knows.
    for _ in range(50):
        own = epochs_of(follower)
        last = own.latest_epoch
        end = leaders.end_offset_for(last, len(leader))
        diverging_end = divergence.diverging(
            fetch_offset=len(follower), last_fetched_epoch=last, leaders_end=end
        )
        if diverging_end is None:
            break
        cut = divergence.truncation_offset(
            leaders_end=diverging_end,
            own_end=own.end_offset_for(diverging_end.epoch, len(follower)),
            own_next_offset=len(follower),
        )
        assert cut < len(follower)
        follower = follower[:cut]
    assert follower == leader[: len(follower)]
    # No record that both logs share was truncated.
    assert len(follower) >= len(common)
