"""One Broker on a fake API server: its finalizer, its status, and when it may go."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tidemark_operator.kube.kinds import BROKER, SECRET, TOPIC
from tidemark_operator.reconcile.brokers import LOOK_AGAIN_S, BrokerReconciler
from tidemark_operator.reconcile.topics import TopicReconciler
from tidemark_operator.resources.names import BROKER_FINALIZER

ONE = ShellWorld.key(BROKER, "broker-1")


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster(UNDER_REPLICATED)
    made.make_broker(1)
    async with made.term():
        yield made


def reconciler(world: ShellWorld) -> BrokerReconciler:
    return BrokerReconciler(world.services, world.reflector)


async def test_a_broker_is_held_and_shown_and_then_left_alone(world: ShellWorld) -> None:
    await world.start_broker(1)
    await reconciler(world).reconcile(ONE)
    assert world.known(BROKER, "broker-1")["metadata"]["finalizers"] == [BROKER_FINALIZER]
    assert world.condition(BROKER, "broker-1", "Ready")[0] == "True"
    world.journal.clear()
    await reconciler(world).reconcile(ONE)
    assert world.journal == []


async def test_the_status_of_a_broker_does_not_stand_still_where_there_is_no_authority(
    world: ShellWorld,
) -> None:
    """It stayed Ready, though it was fenced since."""
    await world.services.certificates.authorities()
    authority = world.server.find(SECRET, "main-ca")
    assert authority is not None
    world.server.replace("somebody", SECRET, {**authority, "data": {}})
    await world.start_broker(1)
    assert await reconciler(world).reconcile(ONE) == LOOK_AGAIN_S
    assert world.condition(BROKER, "broker-1", "Ready")[0] == "True"


async def test_a_registration_stands_in_the_status_before_it_counts(world: ShellWorld) -> None:
    world.api.fail("replace_status Broker", times=1)
    await world.start_broker(1)
    broker = world.services.state.brokers[1]
    assert world.status(BROKER, "broker-1")["brokerEpoch"] == broker.broker_epoch
    assert world.listener.states[1] is False


async def test_of_two_objects_of_one_node_id_the_second_is_told_and_takes_over_later(
    world: ShellWorld,
) -> None:
    world.make_broker(1, "double")
    double = world.key(BROKER, "double")
    assert await reconciler(world).reconcile(double) == LOOK_AGAIN_S
    assert world.condition(BROKER, "double", "Ready")[:2] == ("False", "NodeIdTaken")
    world.delete(BROKER, "broker-1")
    assert await reconciler(world).reconcile(double) == 0.0
    assert world.services.state.brokers[1].key == "ns/double"


async def test_a_broker_goes_only_when_it_is_stopped_and_nothing_needs_it(
    world: ShellWorld,
) -> None:
    await world.start_broker(1)
    world.make_topic()
    await TopicReconciler(world.services).reconcile(world.key(TOPIC, "t"))
    await reconciler(world).reconcile(ONE)
    world.delete(BROKER, "broker-1")
    assert await reconciler(world).reconcile(ONE) == LOOK_AGAIN_S
    status, reason, message = world.condition(BROKER, "broker-1", "Draining")
    assert (status, reason) == ("True", "ReplicasInUse")
    assert "t-0" in message


async def test_a_stopped_broker_without_replicas_is_released(world: ShellWorld) -> None:
    await reconciler(world).reconcile(ONE)
    world.delete(BROKER, "broker-1")
    assert await reconciler(world).reconcile(ONE) is None
    assert world.server.find(BROKER, "broker-1") is None
    assert 1 not in world.services.state.brokers
    assert world.listener.closed == [1]
    assert world.events.reasons == ["BrokerRemoved"]
