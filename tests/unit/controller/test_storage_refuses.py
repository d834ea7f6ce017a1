"""A replica whose storage refuses: others lead without it, and it recovers by itself."""

import pytest

from tests.unit.controller.controller_world import (
    ControllerWorld,
    alter,
    broker,
    fence,
    messages,
    numbered_uuid,
    ready,
    row,
    topic,
)
from tidemark_operator.controller import elections
from tidemark_operator.controller.state.events import Event
from tidemark_operator.controller.state.model import BrokerHealth

KEY = (numbered_uuid(1), 0)
MIN_2 = {"min.insync.replicas": "2"}
INELIGIBLE_REPLICA = 107


def _world(config: dict[str, str] | None = None, **fields: object) -> ControllerWorld:
    return ControllerWorld(
        brokers=[broker(1), broker(2), broker(3)],
        topics=[topic(config=config or {})],
        rows=[row((1, 2, 3), **fields)],  # type: ignore[arg-type]
    )


def report_storage(world: ControllerWorld, node_id: int, *, refuses: bool) -> tuple[Event, ...]:
    """Commit a broker's report about its storage, and return the events."""
    news = world.state.storage_failures.put(node_id, frozenset({KEY} if refuses else ()))
    draft = world.draft()
    elections.storage_changed(draft, node_id, news)
    return world.commit(draft).events


def test_a_leader_with_a_full_disk_resigns_and_leaves_the_isr() -> None:
    world = _world()
    (event,) = report_storage(world, 1, refuses=True)
    assert (world.row().leader, world.row().isr, world.row().leader_epoch) == (2, (2, 3), 1)
    assert (event.kind, event.reason, event.type.value) == ("Broker", "StorageFailed", "Warning")
    assert "broker 1" in event.message


def test_a_follower_with_a_full_disk_leaves_the_isr_and_blocks_no_produce() -> None:
    world = _world()
    report_storage(world, 3, refuses=True)
    assert (world.row().leader, world.row().isr, world.row().leader_epoch) == (1, (1, 2), 0)


def test_repaired_replica_rejoins_and_leads_again() -> None:
    world = _world()
    report_storage(world, 1, refuses=True)
    # The failed replica may not rejoin before it reports that its storage works.
    assert alter(world, 1, 2, 3) == INELIGIBLE_REPLICA
    assert report_storage(world, 1, refuses=False) == ()
    assert alter(world, 1, 2, 3) == 0
    draft = world.draft()
    assert elections.balance_leaders(draft, limit=1) == 1
    world.commit(draft)
    assert world.row().leader == 1


def test_failed_replica_is_not_elected() -> None:
    world = _world(isr=(2, 1), leader=2)
    world.state.storage_failures.put(1, frozenset({KEY}))
    assert elections.balance_leaders(world.draft(), limit=1) == 0
    fence(world, 3)
    assert world.row().leader == 2


def test_last_isr_member_with_failed_storage_keeps_leading() -> None:
    """Clients can still read from it, and no other broker has every record."""
    world = _world(isr=(1,))
    report_storage(world, 1, refuses=True)
    assert (world.row().leader, world.row().isr) == (1, (1,))


def test_a_topic_whose_only_leader_refuses_is_unready_and_names_the_repair() -> None:
    world = _world(isr=(1,))
    # Broker 2 is down, so no other replica can take over.
    fence(world, 2)
    report_storage(world, 1, refuses=True)
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "StorageFailed")
    assert ready(result)["Reconciling"] == ("True", "StorageFailed")
    assert ready(result)["FullyReplicated"] == ("False", "StorageFailed")
    assert "Repair the log directory of broker 1" in messages(result)["Ready"]
    report_storage(world, 1, refuses=False)
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_a_topic_that_another_replica_leads_is_ready_though_one_refuses() -> None:
    world = _world()
    report_storage(world, 3, refuses=True)
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_no_election_if_all_storages_failed() -> None:
    world = _world(isr=(1, 2))
    report_storage(world, 2, refuses=True)
    report_storage(world, 1, refuses=True)
    assert (world.row().leader, world.row().isr) == (1, (1,))


def test_an_eligible_replica_takes_over_from_a_last_member_that_refuses() -> None:
    world = _world(MIN_2, isr=(1,), elr=(2,))
    report_storage(world, 1, refuses=True)
    assert (world.row().leader, world.row().isr, world.row().elr) == (2, (2,), (1,))


def test_failed_replica_stays_eligible_below_min_isr() -> None:
    world = _world(MIN_2, isr=(1, 2))
    report_storage(world, 1, refuses=True)
    assert (world.row().leader, world.row().isr, world.row().elr) == (2, (2,), (1,))
    fence(world, 2)
    assert world.row().leader == 1, "it has all that is committed, and no other broker is live"


def test_caught_up_replica_takes_over_from_a_failed_leader() -> None:
    world = _world(isr=(1,))
    report_storage(world, 1, refuses=True)
    # Broker 2 joins the ISR, and the periodic pass moves the leadership.
    alter(world, 1, 2)
    draft = world.draft()
    assert elections.leave_failed(draft) == 1
    world.commit(draft)
    assert (world.row().leader, world.row().isr) == (2, (2,))
    assert elections.leave_failed(world.draft()) == 0


@pytest.mark.parametrize("proof", [True, False])
def test_a_new_process_reports_for_itself(proof: bool) -> None:
    world = _world()
    report_storage(world, 1, refuses=True)
    world.register(1, incarnation=77, previous=101 if proof else -1)
    assert not world.state.storage_failures.on(1)


def test_unchanged_reports_are_ignored_and_removed_brokers_forgotten() -> None:
    world = _world()
    assert world.state.storage_failures.put(1, frozenset()) == frozenset()
    assert world.state.storage_failures.put(1, frozenset({KEY})) == {KEY}
    assert world.state.storage_failures.put(1, frozenset({KEY})) == frozenset()
    world.state.drop_broker(1)
    assert not any(world.state.storage_failures.all())


def test_the_topic_names_missing_replicas_and_their_cause() -> None:
    """Ready names them too and stays True, for users who look at that condition alone."""
    world = _world()
    world.state.health[3] = BrokerHealth(storage_error="t-0 cannot be opened: No space left")
    report_storage(world, 3, refuses=True)
    world.acknowledge_states(world.row().leader)
    result = world.reconcile()
    assert ready(result)["Ready"] == ("True", "Serving")
    for kind in ("Ready", "FullyReplicated"):
        assert (
            "broker 3, partition 0 (t-0 cannot be opened: No space left)" in messages(result)[kind]
        )


def test_topic_names_a_replica_that_copies_its_full_log() -> None:
    world = _world(isr=(1, 2))
    # Broker 3 set a damaged log aside and fetches from the leader again.
    world.state.health[3] = BrokerHealth(set_aside=((KEY, "offsets 0 to 9 are missing"),))
    world.acknowledge_states(world.row().leader)
    message = messages(world.reconcile())["FullyReplicated"]
    assert "broker 3 copies partition 0 from the leader" in message
