"""Requests of brokers, with and without a term; an answer that is a decision follows its commit."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.operator_shell.broker_request_frames import RequestBench
from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tidemark.wire import control
from tidemark_operator.controller import snapshot
from tidemark_operator.kube.kinds import BROKER, TOPIC, USER
from tidemark_operator.leadership.terms import ControllerFenced, EpochTooLow
from tidemark_operator.listener.sessions import Beat
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.term.pacemaker import Pacemaker

NOT_CONTROLLER = int(ErrorCode.not_controller)


@pytest.fixture
async def bench() -> AsyncIterator[RequestBench]:
    world = ShellWorld()
    world.make_cluster(UNDER_REPLICATED)
    world.make_broker(1)
    async with world.term():
        made = RequestBench(world)
        made.begin()
        yield made


async def until(what: Callable[[], bool]) -> None:
    """Wait for a condition, for at most a second."""
    for _ in range(1000):
        if what():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition was not met within a second")


async def test_without_a_term_the_answer_is_not_controller(bench: RequestBench) -> None:
    bench.requests.end()
    alter = control.AlterPartitionRequest(broker_id=1, broker_epoch=1, changes=())
    assert (await bench.register()).error_code == NOT_CONTROLLER
    assert (await bench.requests.alter_partition(alter)).error_code == NOT_CONTROLLER
    assert (await bench.requests.broker_status(bench.report())).error_code == NOT_CONTROLLER
    # Expired sessions and heartbeats without a term are ignored as well.
    bench.requests.on_expired(1, 1)
    bench.requests.on_beat(1, 1, Beat())
    assert bench.world.journal == []


async def test_a_session_begins_once_the_registration_is_stored(bench: RequestBench) -> None:
    response = await bench.register()
    assert response.error_code == 0
    assert bench.world.status(BROKER, "broker-1")["brokerEpoch"] == response.broker_epoch
    assert bench.sessions == [1]


async def test_a_broker_that_knows_a_higher_epoch_ends_the_term(bench: RequestBench) -> None:
    assert (await bench.register(highest_controller_epoch=50)).error_code == NOT_CONTROLLER
    bench.requests.on_stale(1)
    assert [type(end) for end in bench.ends] == [EpochTooLow, ControllerFenced]


@pytest.mark.parametrize(
    # A foreign cluster id, an unknown broker, and epochs that are too far ahead to be real.
    "changes",
    [
        {"cluster_id": "another", "highest_controller_epoch": 50},
        {"broker_id": 7, "highest_controller_epoch": 50},
        {"highest_controller_epoch": 2**31 - 1},
        {"highest_controller_epoch": 2_000_000},
    ],
    ids=str,
)
async def test_implausible_controller_epoch_does_not_end_the_term(
    bench: RequestBench, changes: dict[str, Any]
) -> None:
    response = await bench.register(**changes)
    assert response.error_code not in (0, NOT_CONTROLLER)
    assert response.error_message
    assert bench.ends == []


async def test_an_undecided_registration_is_to_be_retried(bench: RequestBench) -> None:
    # The status write fails for as long as the decision is retried.
    bench.world.api.fail("replace_status Broker", times=100)
    assert (await bench.register()).error_code == NOT_CONTROLLER
    assert bench.sessions == []


async def test_sessions_that_end_in_one_moment_are_fenced_in_one_commit(
    bench: RequestBench,
) -> None:
    world = bench.world
    world.make_broker(2)
    for node_id in (1, 2):
        await world.start_broker(node_id)
    brokers = world.services.state.brokers
    committer = world.services.committer
    groups = committer.groups
    for node_id in (1, 2):
        bench.requests.on_expired(node_id, brokers[node_id].broker_epoch)
    # A session of an earlier epoch expires too, which must not count.
    bench.requests.on_expired(1, 1)
    await until(lambda: committer.groups > groups)
    assert not brokers[1].live
    assert not brokers[2].live
    # Both fencings share one write of the slices.
    assert committer.groups == groups + 1


async def test_a_report_counts_under_the_current_registration_only(bench: RequestBench) -> None:
    await bench.world.start_broker(1)
    stale = bench.report(broker_epoch=0)
    found = await bench.requests.broker_status(stale)
    assert found.error_code == int(ErrorCode.stale_broker_epoch)
    assert (await bench.requests.broker_status(bench.report())).error_code == 0
    assert bench.world.services.state.health[1].log_bytes == 10


async def test_an_error_is_shown_at_once_and_figures_later(bench: RequestBench) -> None:
    queue = bench.world.services.queue
    await bench.world.start_broker(1)
    await bench.requests.broker_status(bench.report())
    # The first report was news. From here on only figures change.
    queue._ready.clear()
    key = bench.world.key(BROKER, "broker-1")
    await bench.requests.broker_status(bench.report(log_bytes=20))
    assert key not in queue._ready
    await bench.requests.broker_status(bench.report(storage_error="the disk is full"))
    assert {key, bench.world.services.cluster_key} <= set(queue._ready)


async def test_an_event_reports_once_that_a_replica_is_set_aside(bench: RequestBench) -> None:
    world = bench.world
    await world.start_broker(1)
    world.make_topic(replicas=1)
    await TopicReconciler(world.services).reconcile(world.key(TOPIC, "t"))
    (row,) = world.services.state.all_rows()
    replica = control.SetAsideReplica(
        topic_id=row.topic_id, partition=0, message="t-0.1f-stray: offsets 0 to 9 are missing"
    )
    for _ in range(2):
        await bench.requests.broker_status(bench.report(set_aside=(replica,)))
    (event,) = [item for item in world.events.emitted if item.reason == "ReplicaSetAside"]
    assert event.kind == "Topic"
    assert "broker 1 lacked records of partition 0" in event.message
    assert "offsets 0 to 9 are missing" in event.message


async def test_leader_with_failed_storage_is_replaced_at_once(bench: RequestBench) -> None:
    world = bench.world
    world.make_broker(2)
    for node_id in (1, 2):
        await world.start_broker(node_id)
    world.make_topic(replicas=2)
    await TopicReconciler(world.services).reconcile(world.key(TOPIC, "t"))
    state = world.services.state
    (row,) = state.all_rows()
    # The leader reports that its log directory refuses writes for this partition.
    failed = control.TopicPartitions(topic_id=row.topic_id, partitions=(0,))
    broker = state.brokers[row.leader]
    request = bench.report(
        broker_id=row.leader, broker_epoch=broker.broker_epoch, failed_replicas=(failed,)
    )
    await bench.requests.broker_status(request)
    await until(lambda: next(iter(state.all_rows())).leader not in (-1, row.leader))


async def test_waiting_users_are_reconciled_once_all_brokers_acknowledged(
    bench: RequestBench,
) -> None:
    services = bench.world.services
    behind = [1]
    services.engine.users_behind = lambda _: behind  # type: ignore[method-assign]
    while services.queue.depth:
        services.queue.done(await services.queue.get())
    services.state.users.wait("ns/alice")
    bench.requests.on_users(2)
    assert not services.queue.depth, "broker 1 has not acknowledged them"
    behind.clear()
    # The last broker acknowledges the version: the User can become Ready.
    bench.requests.on_users(1)
    assert await services.queue.get() == bench.world.key(USER, "alice")
    bench.requests.end()
    bench.requests.on_users(1)


async def test_topic_is_reconciled_on_acknowledgement_and_when_it_is_overdue(
    bench: RequestBench,
) -> None:
    world, services = bench.world, bench.world.services
    await world.start_broker(1)
    world.make_topic()
    key, reconciler = world.key(TOPIC, "t"), TopicReconciler(services)
    await reconciler.reconcile(key)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("False", "LeadersStarting")
    services.queue._ready.clear()
    # Two ticks without an acknowledgement make the broker overdue.
    for _ in range(2):
        services.state.acknowledgements.tick(now_ms=0)
    await Pacemaker(services, world.questions)._turn(2)
    assert list(services.queue._ready) == [key]
    await reconciler.reconcile(key)
    assert "broker 1 did not" in world.condition(TOPIC, "t", "Ready")[2]
    services.queue._ready.clear()
    # Once it acknowledges, the topic goes ahead of the routine work.
    answer = control.PartitionStatesResponse(
        error_code=0, broker_epoch=services.state.brokers[1].broker_epoch, errors=()
    )
    bench.requests.on_states(1, snapshot.full(services.state), answer)
    assert key in services.queue._ahead
    await reconciler.reconcile(key)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("True", "Serving")
