"""Elections: from the ISR only; unclean only where allowed; epochs rise."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller.controller_world import ControllerWorld, broker, cluster, row, topic
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark_operator.controller import elections, snapshot
from tidemark_operator.controller.elections import elect
from tidemark_operator.controller.state.controller_state import ControllerState

UNCLEAN = {"unclean.leader.election.enable": "true"}


def _fence(world: ControllerWorld, *node_ids: int) -> None:
    draft = world.draft()
    elections.fence(draft, node_ids, reason="no heartbeat")
    world.commit(draft)


def _unfence(world: ControllerWorld, node_id: int) -> None:
    draft = world.draft()
    elections.unfence(draft, node_id)
    world.commit(draft)


def three_replicas(**fields: object) -> ControllerWorld:
    return ControllerWorld(
        brokers=[broker(1), broker(2), broker(3)],
        topics=[topic(**fields)],  # type: ignore[arg-type]
        rows=[row((1, 2, 3))],
    )


def test_dead_leader_is_replaced_by_the_next_isr_member() -> None:
    world = three_replicas()
    _fence(world, 1)
    assert world.row() == row((1, 2, 3), isr=(2, 3), leader=2, leader_epoch=1, partition_epoch=1)


def test_a_dead_follower_leaves_the_isr_and_the_leader_epoch_stays() -> None:
    world = three_replicas()
    _fence(world, 3)
    assert world.row() == row((1, 2, 3), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=1)


def test_last_isr_member_stays_and_the_partition_is_offline() -> None:
    world = three_replicas()
    _fence(world, 1)
    _fence(world, 2)
    _fence(world, 3)
    assert (world.row().leader, world.row().isr) == (-1, (3,))
    # Broker 1 lacks records that broker 3 acknowledged alone.
    _unfence(world, 1)
    assert world.row().leader == -1
    _unfence(world, 3)
    assert (world.row().leader, world.row().isr) == (3, (3,))


def test_brokers_that_fail_together_stay_in_the_isr() -> None:
    """Each broker has every acknowledged record: the first to return may lead."""
    world = three_replicas()
    _fence(world, 1, 2, 3)
    assert (world.row().leader, world.row().isr) == (-1, (1, 2, 3))
    _unfence(world, 2)
    assert (world.row().leader, world.row().isr) == (2, (2,))


def test_no_replica_outside_the_isr_is_elected() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)], topics=[topic()], rows=[row((1, 2), isr=(1,), leader=1)]
    )
    _fence(world, 1)
    assert (world.row().leader, world.row().isr) == (-1, (1,))


def test_an_unclean_election_needs_the_topics_permission_and_is_reported() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(config=UNCLEAN)],
        rows=[row((1, 2), isr=(1,), leader=1)],
    )
    draft = world.draft()
    elections.fence(draft, [1], reason="no heartbeat")
    events = world.commit(draft).events
    assert (world.row().leader, world.row().isr) == (2, (2,))
    assert "UncleanElection" in {event.reason for event in events}
    assert world.row().recovering
    (shown,) = snapshot.full(_placed(world)).topics[0].partitions
    assert shown.leader_recovery_state == LeaderRecoveryState.RECOVERING


def _placed(world: ControllerWorld) -> ControllerState:
    world.state.put_topic(dataclasses.replace(world.view(), partitions_placed=1))
    return world.state


def test_a_partition_stays_recovering_through_further_elections() -> None:
    """The leader may fail before it has recovered its log (KIP-704)."""
    world = ControllerWorld(
        brokers=[broker(1), broker(2), broker(3)],
        topics=[topic(config=UNCLEAN)],
        rows=[row((1, 2, 3), isr=(1,), leader=1)],
    )
    _fence(world, 1)
    _fence(world, 2, 3)
    assert (world.row().leader, world.row().isr, world.row().recovering) == (-1, (2,), True)
    _unfence(world, 2)
    assert (world.row().leader, world.row().recovering) == (2, True)
    # Broker 2 restarts without proof of a clean shutdown, and leads again.
    assert world.register(2, incarnation=77)[0] == 0
    world.beat(2)
    assert (world.row().leader, world.row().recovering) == (2, True)


def test_an_election_from_the_isr_needs_no_recovery() -> None:
    world = three_replicas(config=UNCLEAN)
    _fence(world, 1)
    assert (world.row().leader, world.row().recovering) == (2, False)


def test_topic_config_overrides_the_clusters_unclean_default() -> None:
    world = ControllerWorld(
        brokers=[broker(1, fenced=True), broker(2)],
        topics=[topic(config={"unclean.leader.election.enable": "false"})],
        rows=[row((1, 2), isr=(1,), leader=-1)],
        view=cluster(UNCLEAN),
    )
    # The topic's own value forbids it, then its removal lets the cluster's value apply.
    for config, leader in (({"unclean.leader.election.enable": "false"}, -1), ({}, 2)):
        world.state.put_topic(dataclasses.replace(world.view(), config=config))
        draft = world.draft()
        elections.settle_topic(draft, world.view())
        world.commit(draft)
        assert world.row().leader == leader


def test_empty_isr_prevents_even_unclean_elections() -> None:
    world = ControllerWorld(
        brokers=[broker(1)], topics=[topic(config=UNCLEAN)], rows=[row((1,), isr=(), leader=-1)]
    )
    draft = world.draft()
    elections.settle_topic(draft, world.view())
    assert world.commit(draft).empty


def test_fencing_many_partitions_is_one_event() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=40)],
        rows=[row((1, 2), partition=part) for part in range(40)],
    )
    draft = world.draft()
    elections.fence(draft, [1], reason="no heartbeat")
    (event,) = world.commit(draft).events
    assert (
        event.message == "broker 1 is fenced (no heartbeat): 40 leaders moved, 0 partitions offline"
    )


def test_controlled_shutdown_moves_leaderships() -> None:
    world = three_replicas()
    draft = world.draft()
    elections.shut_down(draft, 1)
    world.commit(draft)
    assert (world.row().leader, world.row().isr) == (2, (2, 3))
    assert not world.state.is_live(1)
    draft = world.draft()
    # The connections end after the announced shutdown.
    elections.fence(draft, [1], reason="its connections ended")
    assert world.commit(draft).events == (), "no warning about what it said it would do"
    assert world.state.brokers[1].fenced


def test_preferred_leaders_return_within_the_limit() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=5)],
        rows=[row((1, 2), leader=2, partition=part) for part in range(5)],
    )
    moved = []
    for _ in range(4):
        draft = world.draft()
        moved.append(elections.balance_leaders(draft, limit=2))
        world.commit(draft)
    assert moved == [2, 2, 1, 0]
    assert {made.leader for made in world.state.all_rows()} == {1}
    assert {made.leader_epoch for made in world.state.all_rows()} == {1}


def test_unavailable_preferred_leader_is_skipped() -> None:
    world = ControllerWorld(
        brokers=[broker(1, fenced=True), broker(2), broker(3)],
        topics=[topic(partitions=3)],
        rows=[
            row((1, 2), isr=(1, 2), leader=2, partition=0),
            row((3, 2), isr=(2,), leader=2, partition=1),
        ],
    )
    draft = world.draft()
    assert elections.balance_leaders(draft, limit=10) == 0


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True),
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(0, 4)),
    st.booleans(),
)
def test_election_satisfies_its_invariants(
    replicas: list[int], in_sync: set[int], live: set[int], unclean: bool
) -> None:
    members = tuple(replica for replica in replicas if replica in in_sync)
    before = row(replicas, isr=members, leader=members[0] if members else -1, partition_epoch=5)
    # The rules of the model, independent of the implementation.
    after = elect(before, live.__contains__, unclean=unclean, min_isr=1)
    assert after.leader in (-1, *live.intersection(replicas))
    assert after.leader == -1 or after.leader in after.isr
    if not unclean and after.leader != -1:
        assert after.leader in before.isr
    assert after.recovering == (after.leader not in (-1, *before.isr))
    if after.leader == -1:
        assert after.isr == before.isr
    assert after.leader_epoch - before.leader_epoch == (after.leader != before.leader)
    assert after.partition_epoch - before.partition_epoch == (after != before)
    assert elect(after, live.__contains__, unclean=unclean, min_isr=1) == after
