"""Ready means that producers can write: the leaders must have acknowledged their rows."""

import dataclasses

from tests.unit.controller.controller_world import (
    T0,
    ControllerWorld,
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
from tidemark_operator.controller.state.acknowledgements import PATIENCE_MS, Acknowledgements

STORAGE_ERROR, INCONSISTENT_TOPIC_ID = 56, 103


def _world(*node_ids: int, partitions: int = 1, acknowledged: bool = True) -> ControllerWorld:
    world = ControllerWorld(
        brokers=[broker(node_id) for node_id in node_ids],
        topics=[topic(partitions=partitions, replication_factor=len(node_ids))],
    )
    if acknowledged:
        world.acknowledge_states()
    return world


def _refuses(partition: int = 0, code: int = STORAGE_ERROR) -> PartitionError:
    return PartitionError(
        topic_id=numbered_uuid(1), partition=partition, error_code=code, message="no space left"
    )


def _pass(world: ControllerWorld, ms: int) -> list[object]:
    world.state.acknowledgements.tick(now_ms=T0)
    return list(world.state.acknowledgements.tick(now_ms=T0 + ms))


def test_a_new_topic_is_ready_when_its_leaders_have_acknowledged_it() -> None:
    world = _world(1, 2)
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert ready(result)["Reconciling"] == ("True", "LeadersStarting")
    assert result.status["partitionsPlaced"] == 1
    assert "brokers" not in messages(result)["Ready"], "no broker is named yet"
    # A follower's acknowledgement does not make the partition writable.
    follower = next(node for node in (1, 2) if node != world.row().leader)
    world.acknowledge_states(follower)
    assert ready(world.reconcile(brokers_acknowledge=False))["Ready"][0] == "False"
    assert world.acknowledge_states(world.row().leader) == {numbered_uuid(1)}
    assert ready(world.reconcile(brokers_acknowledge=False))["Ready"] == ("True", "Serving")


def test_a_slow_broker_is_named_once_the_time_is_over() -> None:
    world = _world(1)
    world.reconcile(brokers_acknowledge=False)
    assert _pass(world, PATIENCE_MS - 1) == []
    assert _pass(world, PATIENCE_MS) == [numbered_uuid(1)]
    assert _pass(world, PATIENCE_MS) == [], "reported once"
    text = messages(world.reconcile(brokers_acknowledge=False))["Ready"]
    assert "broker 1 did not acknowledge" in text
    # A late acknowledgement clears the condition.
    world.acknowledge_states()
    assert ready(world.reconcile(brokers_acknowledge=False))["Ready"] == ("True", "Serving")
    assert _pass(world, 10 * PATIENCE_MS) == []


def test_a_change_of_leaders_costs_no_status_unless_it_takes_too_long() -> None:
    world = _world(1, 2)
    before = world.reconcile()
    fence(world, world.row().leader)
    # The election is fast, so readers of the status need not see it.
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ready(before)["Ready"] == ("True", "Serving")
    _pass(world, PATIENCE_MS)
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert f"broker {world.row().leader}" in messages(result)["Ready"]
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_added_partitions_are_not_ready_before_they_are_led() -> None:
    world = _world(1)
    world.reconcile()
    # KIP-195: new partitions are added to a served topic.
    grown = dataclasses.replace(world.view(), partitions=2, generation=2)
    world.state.put_topic(grown)
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert "leaders of partition 1 to acknowledge" in messages(result)["Ready"]
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_answer_to_an_outdated_state_proves_nothing() -> None:
    world = _world(1, 2)
    world.reconcile()
    outdated = snapshot.full(world.state)
    fence(world, world.row().leader)
    node_id = world.row().leader
    epoch = world.state.brokers[node_id].broker_epoch
    # An answer to an earlier state, and one of an earlier registration.
    for broker_epoch, request in ((epoch, outdated), (epoch - 1, snapshot.full(world.state))):
        answer = PartitionStatesResponse(error_code=0, broker_epoch=broker_epoch, errors=())
        assert world.state.take_states(node_id, request, answer) == set()
        assert world.state.acknowledgements.awaits_leader(world.row())
    assert world.acknowledge_states() == {numbered_uuid(1)}


def test_ready_topic_stays_ready_in_a_new_term() -> None:
    """Leaders continue without a controller, so a takeover alone must not change a status."""
    before = _world(1, 2)
    before.reconcile()
    # A new controller: the same rows and statuses, without any acknowledgement.
    after = ControllerWorld(
        brokers=before.state.brokers.values(), topics=[before.view()], rows=[before.row()]
    )
    assert ready(after.reconcile(brokers_acknowledge=False))["Ready"] == ("True", "Serving")
    assert after.reconcile().status == before.reconcile().status


def test_unready_topic_stays_unready_until_its_leader_acknowledges() -> None:
    before = _world(1)
    before.reconcile(brokers_acknowledge=False)
    after = ControllerWorld(
        brokers=before.state.brokers.values(), topics=[before.view()], rows=[before.row()]
    )
    result = after.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert "broker 1 did not acknowledge" in messages(result)["Ready"]
    assert after.acknowledge_states() == {numbered_uuid(1)}
    assert ready(after.reconcile(brokers_acknowledge=False))["Ready"] == ("True", "Serving")
    assert after.acknowledge_states() == set(), "a later connection of the same process is no news"


def test_new_process_has_acknowledged_nothing() -> None:
    world = _world(1)
    world.reconcile()
    # The restarted process has not applied any state yet.
    world.register(1, incarnation=77)
    assert not world.state.acknowledgements.has_snapshot(world.state.brokers[1])
    world.acknowledge_states(1)
    assert world.state.acknowledgements.has_snapshot(world.state.brokers[1])


# ---------------------------------------------------------------- counts of replicas


def test_a_replica_that_never_received_its_state_is_not_in_sync() -> None:
    world = _world(1, 2)
    result = world.reconcile(brokers_acknowledge=False)
    assert result.status["replicas"] == {
        "desired": 2,
        "placed": 2,
        "inSync": 0,
        "placeholders": 0,
        "summary": "0/2",
    }
    # With the leader's acknowledgement alone, the follower does not count.
    world.acknowledge_states(world.row().leader)
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"][0] == "True"
    assert result.status["replicas"]["inSync"] == 1  # type: ignore[index]
    assert ready(result)["FullyReplicated"] == ("False", "ReplicasBehind")
    assert ready(world.reconcile())["FullyReplicated"] == ("True", "AllInSync")


def test_a_follower_that_answers_with_a_storage_error_is_not_in_sync() -> None:
    world = _world(1, 2)
    world.reconcile()
    follower = next(node for node in (1, 2) if node != world.row().leader)
    assert world.acknowledge_states(follower, errors=(_refuses(),)) == {numbered_uuid(1)}
    # The same error twice is no change.
    assert world.acknowledge_states(follower, errors=(_refuses(),)) == set()
    result = world.reconcile(brokers_acknowledge=False)
    assert result.status["replicas"]["inSync"] == 1  # type: ignore[index]
    assert ready(result)["FullyReplicated"] == ("False", "StorageFailed")
    assert f"broker {follower}, partition 0" in messages(result)["FullyReplicated"]
    assert ready(result)["Ready"] == ("True", "Serving")
    # An acknowledgement without errors clears the failure.
    world.acknowledge_states(follower)
    assert ready(world.reconcile())["FullyReplicated"] == ("True", "AllInSync")


def test_a_leader_that_answers_with_a_storage_error_does_not_make_a_topic_ready() -> None:
    world = _world(1)
    world.reconcile(brokers_acknowledge=False)
    world.acknowledge_states(1, errors=(_refuses(),))
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "StorageFailed")
    assert result.status["replicas"]["inSync"] == 0  # type: ignore[index]


def test_other_refusal_of_a_leader_is_quoted() -> None:
    world = _world(1)
    world.reconcile(brokers_acknowledge=False)
    world.acknowledge_states(1, errors=(_refuses(code=INCONSISTENT_TOPIC_ID),))
    result = world.reconcile(brokers_acknowledge=False)
    assert ready(result)["Ready"] == ("False", "LeadersStarting")
    assert "Partition 0 was refused: no space left" in messages(result)["Ready"]


def test_refusals_are_dropped_with_the_topic() -> None:
    world = _world(1)
    world.reconcile(brokers_acknowledge=False)
    world.acknowledge_states(1, errors=(_refuses(),))
    world.state.put_topic(dataclasses.replace(world.view(), deletion_ms=T0))
    world.decide()
    known = world.state.acknowledgements
    assert not known._outstanding
    assert not any(known._refused.values())


def test_desired_replicas_ignore_a_refused_spec() -> None:
    world = _world(1, 2)
    world.reconcile()
    # Three replicas need three brokers, so the change is refused.
    world.state.put_topic(dataclasses.replace(world.view(), replication_factor=3, generation=2))
    result = world.reconcile()
    assert ready(result)["FullyReplicated"] == ("True", "AllInSync")
    assert result.status["replicas"] == {
        "desired": 2,
        "placed": 2,
        "inSync": 2,
        "placeholders": 0,
        "summary": "2/2",
    }


def test_moving_replicas_are_not_counted_twice() -> None:
    # A move from broker 1 to 3: three replicas are placed, two are desired.
    moving = row((3, 1, 2), isr=(1, 2), leader=1, adding=(3,), removing=(1,))
    view = topic(replication_factor=2, partitions_placed=1)
    world = ControllerWorld(brokers=[broker(1), broker(2), broker(3)], topics=[view], rows=[moving])
    result = world.reconcile()
    assert result.status["replicas"] == {
        "desired": 2,
        "placed": 3,
        "inSync": 1,
        "placeholders": 0,
        "summary": "1/2",
    }


class ComparedPartition(int):
    """Partition number that counts its comparisons."""

    comparisons = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        ComparedPartition.comparisons += 1
        return int.__eq__(self, other)


def test_cost_of_removing_rows_is_linear() -> None:
    """Deletion of a topic with 10,000 pending partitions must not block the event loop."""

    def comparisons(partitions: int) -> int:
        known = Acknowledgements()
        rows = [row((1, 2), partition=ComparedPartition(part)) for part in range(partitions)]
        for row_ in rows:
            known.row_stored(None, row_)
        ComparedPartition.comparisons = 0
        for row_ in rows:
            known.row_removed(row_)
        return ComparedPartition.comparisons

    # Ten times as many rows may cost ten times as many comparisons, not a hundred times.
    assert comparisons(200) <= 12 * max(comparisons(20), 1)
