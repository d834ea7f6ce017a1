"""One Broker on a fake API server: its finalizer, its status and its release."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest

from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tidemark.annotations import ACCEPT_COPY, ACCEPT_LOST_DIRECTORY
from tidemark_operator.controller import elections, reassignment
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.kube.kinds import BROKER, SECRET, TOPIC
from tidemark_operator.reconcile.broker_reconciler import LOOK_AGAIN_S, BrokerReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.resources.names import BROKER_FINALIZER
from tidemark_operator.term.pacemaker import Pacemaker

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


async def test_reconcile_adds_finalizer_and_status_and_then_writes_nothing(
    world: ShellWorld,
) -> None:
    await world.start_broker(1)
    await reconciler(world).reconcile(ONE)
    assert world.known(BROKER, "broker-1")["metadata"]["finalizers"] == [BROKER_FINALIZER]
    assert world.condition(BROKER, "broker-1", "Ready")[0] == "True"
    world.journal.clear()
    await reconciler(world).reconcile(ONE)
    assert world.journal == []


async def test_the_status_of_a_broker_is_updated_without_an_authority(
    world: ShellWorld,
) -> None:
    """A broker that was fenced in the meantime must not stay Ready."""
    await world.services.certificates.authorities()
    # The authority's Secret is emptied, so that no certificate can be issued.
    authority = world.server.find(SECRET, "main-ca")
    assert authority is not None
    world.server.replace("somebody", SECRET, {**authority, "data": {}})
    await world.start_broker(1)
    assert await reconciler(world).reconcile(ONE) == LOOK_AGAIN_S
    assert world.condition(BROKER, "broker-1", "Ready")[0] == "True"


async def test_a_registration_is_in_the_status_before_it_counts(world: ShellWorld) -> None:
    # The first write fails: registration must retry it before it answers the broker.
    world.api.fail("replace_status Broker", times=1)
    await world.start_broker(1)
    broker = world.services.state.brokers[1]
    assert world.status(BROKER, "broker-1")["brokerEpoch"] == broker.broker_epoch
    assert world.listener.states[1] is False


async def test_watch_event_ahead_of_registration_answer_keeps_the_new_epoch(
    world: ShellWorld,
) -> None:
    """Otherwise every broker of a roll causes a refused write with its former epoch."""
    await world.start_broker(1, rack="a")
    await reconciler(world).reconcile(ONE)
    known = world.known(BROKER, "broker-1")
    # The registration's own write, delivered by the watch before its response arrives.
    later = {"brokerEpoch": known["status"]["brokerEpoch"] + 1, "rack": "b"}
    body = {**known, "status": {**known["status"], **later}}
    world.services.objects.put(world.server.replace_status("op", BROKER, body))
    # The health figures are missing as well, so that the status must change.
    world.services.state.health.pop(1, None)
    world.services.state.unreached = True  # there is something else to tell
    await reconciler(world).reconcile(ONE)
    assert world.condition(BROKER, "broker-1", "Ready")[1] == "BrokerUnreachable"
    current = world.status(BROKER, "broker-1")
    assert {name: current[name] for name in later} == later


async def test_a_reported_rack_outlives_the_brokers_session_and_the_controller(
    world: ShellWorld,
) -> None:
    """Without it a new controller would place replicas of a partition in one rack."""
    await world.start_broker(1, rack="a")
    assert world.status(BROKER, "broker-1")["rack"] == "a"
    async with world.term():
        assert world.services.state.brokers[1].rack == "a"
        # The rack of the manifest precedes the rack that the broker reports.
        world.edit(BROKER, "broker-1", rack="b")
        assert world.services.state.brokers[1].rack == "b", "the manifest's goes before it"
        await world.start_broker(1, rack="c")
        assert world.services.state.brokers[1].rack == "b"
        # Without a rack in the manifest, the broker's next registration decides.
        world.edit(BROKER, "broker-1", rack=None)
        await world.start_broker(1, incarnation=2)
        assert world.services.state.brokers[1].rack is None
        assert "rack" not in world.status(BROKER, "broker-1")


async def test_the_second_of_two_objects_with_one_node_id_is_marked_and_takes_over_later(
    world: ShellWorld,
) -> None:
    world.make_broker(1, "double")
    double = world.key(BROKER, "double")
    assert await reconciler(world).reconcile(double) == LOOK_AGAIN_S
    assert world.condition(BROKER, "double", "Ready")[:2] == ("False", "NodeIdTaken")
    # The first object releases the node id, and the second takes it over.
    world.delete(BROKER, "broker-1")
    assert await reconciler(world).reconcile(double) == 0.0
    assert world.services.state.brokers[1].key == "ns/double"


async def test_a_broker_is_deleted_only_when_stopped_and_unneeded(
    world: ShellWorld,
) -> None:
    await world.start_broker(1)
    # The broker is running and has the only replica: the deletion must wait.
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


async def caught_up(world: ShellWorld) -> None:
    """Commit that every replica is in sync, with the completed reassignments."""

    def all_in_sync(draft: Draft) -> None:
        for old in list(world.services.state.all_rows()):
            new = reassignment.settled(draft, dataclasses.replace(old, isr=old.hosts))
            draft.put_row(elections.with_elr_and_epochs(old, new, draft.state.min_isr(old)))

    await world.services.committer.decide(all_in_sync)


async def turn(world: ShellWorld) -> None:
    """Run one second of the term's periodic work."""
    await Pacemaker(world.services, world.questions)._turn(1)


async def placed_on_one(world: ShellWorld) -> None:
    """Start two brokers, with a topic on the first alone."""
    await world.start_broker(1)
    world.make_topic()
    await TopicReconciler(world.services).reconcile(world.key(TOPIC, "t"))
    world.make_broker(2)
    await world.start_broker(2)


async def test_a_drained_broker_reports_its_progress_and_stays(world: ShellWorld) -> None:
    await placed_on_one(world)
    world.edit(BROKER, "broker-1", drain=True)
    await turn(world)
    assert await reconciler(world).reconcile(ONE) == LOOK_AGAIN_S
    assert world.condition(BROKER, "broker-1", "Draining")[:2] == ("True", "MovingReplicas")
    assert world.status(BROKER, "broker-1")["drain"] == {"remaining": 1, "moving": 1, "stuck": 0}
    # The replacement replica joins the ISR, which completes the move.
    await caught_up(world)
    assert await reconciler(world).reconcile(ONE) is None
    assert world.condition(BROKER, "broker-1", "Draining")[:2] == ("False", "Drained")
    assert world.condition(BROKER, "broker-1", "Ready")[0] == "True"
    assert world.events.reasons.count("Drained") == 1
    world.journal.clear()
    await reconciler(world).reconcile(ONE)
    assert world.journal == [], "at rest nothing is written"
    # A cancelled drain removes its condition and its progress.
    world.edit(BROKER, "broker-1", drain=False)
    await reconciler(world).reconcile(ONE)
    conditions = world.status(BROKER, "broker-1")["conditions"]
    assert "Draining" not in [condition["type"] for condition in conditions]
    assert "drain" not in world.status(BROKER, "broker-1")


async def test_a_running_deleted_broker_disappears_once_its_replicas_have_moved(
    world: ShellWorld,
) -> None:
    """A deletion that waits for a stop would wait for ever while the broker has the only copies."""
    await placed_on_one(world)
    await reconciler(world).reconcile(ONE)
    world.delete(BROKER, "broker-1")
    await turn(world)
    assert await reconciler(world).reconcile(ONE) == LOOK_AGAIN_S
    assert world.condition(BROKER, "broker-1", "Draining")[:2] == ("True", "MovingReplicas")
    await caught_up(world)
    assert await reconciler(world).reconcile(ONE) is None
    assert world.server.find(BROKER, "broker-1") is None
    (row,) = world.services.state.all_rows()
    assert (row.replicas, row.leader) == ((2,), 2)


async def test_a_new_controller_continues_a_drain(world: ShellWorld) -> None:
    await placed_on_one(world)
    world.edit(BROKER, "broker-1", drain=True)
    for name in ("broker-1", "broker-2"):
        await reconciler(world).reconcile(world.key(BROKER, name))
    # The second term has only what the first one wrote to the API server.
    async with world.term():
        await turn(world)
        (row,) = world.services.state.all_rows()
        assert row.adding == (2,)


async def test_observed_generation_is_the_reconciled_generation(world: ShellWorld) -> None:
    """An edit before the status write, or a new registration, must not advance it."""
    await world.start_broker(1)

    # Edit the spec between the reconciler's read and its status write.
    def edited(call: str) -> None:
        if call.startswith("apply Broker"):
            world.api.before = lambda _: None
            world.edit(BROKER, "broker-1", rack="r2")

    world.api.before = edited
    await reconciler(world).reconcile(ONE)
    assert world.known(BROKER, "broker-1")["metadata"]["generation"] == 2
    assert world.status(BROKER, "broker-1")["observedGeneration"] == 1
    # A registration writes the status too, without having seen the new spec.
    await world.start_broker(1, incarnation=77)
    assert world.status(BROKER, "broker-1")["observedGeneration"] == 1
    await reconciler(world).reconcile(ONE)
    assert world.status(BROKER, "broker-1")["observedGeneration"] == 2


async def test_a_dead_broker_with_the_last_copy_is_deleted_once_given_up_by_name(
    world: ShellWorld,
) -> None:
    """Follow the instructions in the messages literally until the topic is served again."""
    # The deleted broker had the only copy and is fenced: it cannot drain.
    await world.start_broker(1)
    world.make_topic()
    topics = TopicReconciler(world.services)
    await topics.reconcile(ShellWorld.key(TOPIC, "t"))
    await reconciler(world).reconcile(ONE)
    world.delete(BROKER, "broker-1")
    await world.services.committer.decide(
        lambda draft: elections.fence(draft, [1], reason="no heartbeat")
    )
    await reconciler(world).reconcile(ONE)
    message = world.condition(BROKER, "broker-1", "Draining")[2]
    # A wrong value of the annotation is refused, the offered one is accepted.
    named = message.rpartition(f"{ACCEPT_LOST_DIRECTORY}: ")[2]
    world.annotate(BROKER, "broker-1", **{ACCEPT_LOST_DIRECTORY: f"{named}0"})
    await reconciler(world).reconcile(ONE)
    assert (
        "which does not match the current state"
        in world.condition(BROKER, "broker-1", "Draining")[2]
    )
    world.annotate(BROKER, "broker-1", **{ACCEPT_LOST_DIRECTORY: named})
    await reconciler(world).reconcile(ONE)
    assert world.server.find(BROKER, "broker-1") is None
    (removed,) = (event for event in world.events.emitted if event.reason == "BrokerRemoved")
    assert "1 partition of topic t" in removed.message

    # The topic's own condition then offers to continue on an empty copy.
    world.make_broker(2)
    await world.start_broker(2)
    await topics.reconcile(ShellWorld.key(TOPIC, "t"))
    assert world.condition(TOPIC, "t", "Ready")[1] == "LastCopyMissing"
    offered = world.condition(TOPIC, "t", "Ready")[2].rpartition(f"{ACCEPT_COPY}: ")[2]
    world.annotate(TOPIC, "t", **{ACCEPT_COPY: offered})
    assert await topics.reconcile(ShellWorld.key(TOPIC, "t")) == 0
    await topics.reconcile(ShellWorld.key(TOPIC, "t"))
    world.acknowledge(2)
    await topics.reconcile(ShellWorld.key(TOPIC, "t"))
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("True", "Serving")
    # The accepted loss stays documented in the status.
    (record,) = world.status(TOPIC, "t")["accepted"]
    assert record["value"] == offered
    assert "CopyAccepted" in world.events.reasons


async def test_a_stopped_broker_stays_if_the_other_copy_is_lost_before_its_removal_is_decided(
    world: ShellWorld,
) -> None:
    """The removal must check the ISR when it is decided, not when it is queued."""
    for node_id in (1, 2):
        if node_id == 2:
            world.make_broker(2)
        await world.start_broker(node_id)
    world.make_topic(replicationFactor=2)
    await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "t"))
    await reconciler(world).reconcile(ONE)
    world.delete(BROKER, "broker-1")
    decide = world.services.committer.decide
    # Broker 1 has stopped: its copy is out of the ISR, broker 2 has the other one.
    await decide(lambda draft: elections.fence(draft, [1], reason="no heartbeat"))
    # Broker 2 fails while the removal of broker 1 is queued behind it.
    await asyncio.gather(
        decide(lambda draft: elections.fence(draft, [2], reason="no heartbeat")),
        reconciler(world).reconcile(ONE),
    )
    assert world.server.find(BROKER, "broker-1") is not None
    (row,) = world.services.state.all_rows()
    assert 1 in row.replicas
