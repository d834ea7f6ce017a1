"""Ready means that producers can write: a row is a plan until those whom it concerns know it."""

import dataclasses

from tests.unit.controller.controller_world import (
    T0,
    World,
    broker,
    fence,
    messages,
    numbered_uuid,
    ready,
    row,
    topic,
)
from tidemark.wire.control import PartitionError, PartitionStatesResponse
from tidemark_operator.controller import snapshot
from tidemark_operator.controller.acknowledgements import PATIENCE_MS, Acknowledgements

STORAGE_ERROR, INCONSISTENT_TOPIC_ID = 56, 103


def _world(*node_ids: int, partitions: int = 1, told: bool = True) -> World:
    world = World(
        brokers=[broker(node_id) for node_id in node_ids],
        topics=[topic(partitions=partitions, replication_factor=len(node_ids))],
    )
    if told:
        world.tell()
    return world


def _refuses(partition: int = 0, code: int = STORAGE_ERROR) -> PartitionError:
    return PartitionError(
        topic_id=numbered_uuid(1), partition=partition, error_code=code, message="no space left"
    )


def _pass(world: World, ms: int) -> list[object]:
    world.state.acknowledgements.tick(now_ms=T0)
    return list(world.state.acknowledgements.tick(now_ms=T0 + ms))


def test_a_new_topic_is_ready_when_its_leaders_have_acknowledged_it() -> None:
    world = _world(1, 2)
    result = world.reconcile(brokers_hear=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert ready(result)["Reconciling"] == ("True", "LeadersStarting")
    assert result.status["partitionsPlaced"] == 1
    assert "brokers" not in messages(result)["Ready"], "no broker is named yet"
    follower = next(node for node in (1, 2) if node != world.row().leader)
    world.tell(follower)
    assert ready(world.reconcile(brokers_hear=False))["Ready"][0] == "False"
    assert world.tell(world.row().leader) == {numbered_uuid(1)}
    assert ready(world.reconcile(brokers_hear=False))["Ready"] == ("True", "Serving")


def test_a_slow_broker_is_named_once_the_time_is_over() -> None:
    world = _world(1)
    world.reconcile(brokers_hear=False)
    assert _pass(world, PATIENCE_MS - 1) == []
    assert _pass(world, PATIENCE_MS) == [numbered_uuid(1)]
    assert _pass(world, PATIENCE_MS) == [], "reported once"
    text = messages(world.reconcile(brokers_hear=False))["Ready"]
    assert "broker 1 did not acknowledge" in text
    world.tell()
    assert ready(world.reconcile(brokers_hear=False))["Ready"] == ("True", "Serving")
    assert _pass(world, 10 * PATIENCE_MS) == []


def test_a_change_of_leaders_costs_no_status_unless_it_takes_too_long() -> None:
    world = _world(1, 2)
    before = world.reconcile()
    fence(world, world.row().leader)
    result = world.reconcile(brokers_hear=False)
    assert ready(result)["Ready"] == ready(before)["Ready"] == ("True", "Serving")
    _pass(world, PATIENCE_MS)
    result = world.reconcile(brokers_hear=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert f"broker {world.row().leader}" in messages(result)["Ready"]
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_added_partitions_are_not_ready_before_they_are_led() -> None:
    world = _world(1)
    world.reconcile()
    grown = dataclasses.replace(world.view(), partitions=2, generation=2)
    world.state.put_topic(grown)
    result = world.reconcile(brokers_hear=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert "leaders of partitions 1 to acknowledge" in messages(result)["Ready"]
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_an_answer_to_what_is_old_by_now_proves_nothing() -> None:
    world = _world(1, 2)
    world.reconcile()
    told = snapshot.full(world.state)
    fence(world, world.row().leader)
    node_id = world.row().leader
    epoch = world.state.brokers[node_id].broker_epoch
    for broker_epoch, request in ((epoch, told), (epoch - 1, snapshot.full(world.state))):
        answer = PartitionStatesResponse(error_code=0, broker_epoch=broker_epoch, errors=())
        assert world.state.take_states(node_id, request, answer) == set()
        assert world.state.acknowledgements.awaits_leader(world.row())
    assert world.tell() == {numbered_uuid(1)}


def test_in_a_new_term_what_was_ready_stays_so_until_more_is_known() -> None:
    """Leaders continue without a controller; the next controller writes nothing for that."""
    before = _world(1, 2)
    before.reconcile()
    after = World(
        brokers=before.state.brokers.values(), topics=[before.view()], rows=[before.row()]
    )
    assert ready(after.reconcile(brokers_hear=False))["Ready"] == ("True", "Serving")
    assert after.reconcile().status == before.reconcile().status


def test_in_a_new_term_an_unready_topic_stays_so_until_its_leader_reports() -> None:
    before = _world(1)
    before.reconcile(brokers_hear=False)
    after = World(
        brokers=before.state.brokers.values(), topics=[before.view()], rows=[before.row()]
    )
    result = after.reconcile(brokers_hear=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert "broker 1 did not acknowledge" in messages(result)["Ready"]
    assert after.tell() == {numbered_uuid(1)}
    assert ready(after.reconcile(brokers_hear=False))["Ready"] == ("True", "Serving")
    assert after.tell() == set(), "a later connection of the same process is no news"


def test_another_process_has_acknowledged_nothing() -> None:
    world = _world(1)
    world.reconcile()
    world.register(1, incarnation=77)
    assert not world.state.acknowledgements.has_told(world.state.brokers[1])
    world.tell(1)
    assert world.state.acknowledgements.has_told(world.state.brokers[1])


# ---------------------------------------------------------------- replicas in figures


def test_a_replica_that_never_received_its_state_is_not_in_sync() -> None:
    world = _world(1, 2)
    result = world.reconcile(brokers_hear=False)
    assert result.status["replicas"] == {"desired": 2, "placed": 2, "inSync": 0, "placeholders": 0}
    world.tell(world.row().leader)
    result = world.reconcile(brokers_hear=False)
    assert ready(result)["Ready"][0] == "True"
    assert result.status["replicas"]["inSync"] == 1  # type: ignore[index]
    assert ready(result)["FullyReplicated"] == ("False", "ReplicasBehind")
    assert ready(world.reconcile())["FullyReplicated"] == ("True", "AllInSync")


def test_a_follower_that_answers_with_a_storage_error_is_not_in_sync() -> None:
    world = _world(1, 2)
    world.reconcile()
    follower = next(node for node in (1, 2) if node != world.row().leader)
    assert world.tell(follower, errors=(_refuses(),)) == {numbered_uuid(1)}
    assert world.tell(follower, errors=(_refuses(),)) == set()
    result = world.reconcile(brokers_hear=False)
    assert result.status["replicas"]["inSync"] == 1  # type: ignore[index]
    assert ready(result)["FullyReplicated"] == ("False", "StorageFailed")
    assert f"broker {follower}, partition 0" in messages(result)["FullyReplicated"]
    assert ready(result)["Ready"] == ("True", "Serving")
    world.tell(follower)
    assert ready(world.reconcile())["FullyReplicated"] == ("True", "AllInSync")


def test_a_leader_that_answers_with_a_storage_error_does_not_make_a_topic_ready() -> None:
    world = _world(1)
    world.reconcile(brokers_hear=False)
    world.tell(1, errors=(_refuses(),))
    result = world.reconcile(brokers_hear=False)
    assert ready(result)["Ready"] == ("False", "StorageFailed")
    assert result.status["replicas"]["inSync"] == 0  # type: ignore[index]


def test_what_a_leader_refuses_for_another_reason_is_quoted() -> None:
    world = _world(1)
    world.reconcile(brokers_hear=False)
    world.tell(1, errors=(_refuses(code=INCONSISTENT_TOPIC_ID),))
    result = world.reconcile(brokers_hear=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert "Partition 0 was refused: no space left" in messages(result)["Ready"]


def test_refusals_leave_with_the_topic() -> None:
    world = _world(1)
    world.reconcile(brokers_hear=False)
    world.tell(1, errors=(_refuses(),))
    world.state.put_topic(dataclasses.replace(world.view(), deletion_ms=T0))
    world.decide()
    known = world.state.acknowledgements
    assert not known._outstanding
    assert not any(known._refused.values())


def test_what_is_desired_is_what_was_placed_and_not_a_spec_that_is_refused() -> None:
    world = _world(1, 2)
    world.reconcile()
    world.state.put_topic(dataclasses.replace(world.view(), replication_factor=3, generation=2))
    result = world.reconcile()
    assert ready(result)["FullyReplicated"] == ("True", "AllInSync")
    assert result.status["replicas"] == {"desired": 2, "placed": 2, "inSync": 2, "placeholders": 0}


def test_replicas_that_come_with_a_move_are_not_desired_twice() -> None:
    moving = row((3, 1, 2), isr=(1, 2), leader=1, adding=(3,), removing=(1,))
    view = topic(replication_factor=2, partitions_placed=1)
    world = World(brokers=[broker(1), broker(2), broker(3)], topics=[view], rows=[moving])
    result = world.reconcile()
    assert result.status["replicas"] == {"desired": 2, "placed": 3, "inSync": 1, "placeholders": 0}


class Counted(int):
    """A partition that counts how often it is looked at."""

    looks = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return int.__eq__(self, other)


def test_rows_that_go_cost_no_more_each_the_more_there_are() -> None:
    """A topic of 10,000 partitions that was deleted while it was made took the loop for 10 s."""

    def looks(partitions: int) -> int:
        known = Acknowledgements()
        rows = [row((1, 2), partition=Counted(part)) for part in range(partitions)]
        for row_ in rows:
            known.landed(None, row_)
        Counted.looks = 0
        for row_ in rows:
            known.row_gone(row_)
        return Counted.looks

    assert looks(200) <= 12 * max(looks(20), 1)
