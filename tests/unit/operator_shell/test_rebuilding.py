"""Detection of lost or old slices by the shell, before a broker is admitted or receives a state."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.control_messages import topic_state
from tests.loop_turns import many_turns
from tests.unit.controller.controller_world import T0, numbered_uuid, row
from tests.unit.operator_shell.broker_request_frames import RequestBench
from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark.leader_epochs import GENERATION
from tidemark.wire import control
from tidemark_operator.controller import snapshot
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC
from tidemark_operator.leadership.terms import SlicesBehind
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.term import broker_requests, takeover
from tidemark_operator.term.broker_requests import REPLICAS_MAX, ReplicaStates
from tidemark_operator.term.takeover import Takeover

INVALID_REQUEST = int(ErrorCode.invalid_request)
NOT_CONTROLLER = int(ErrorCode.not_controller)


def page(
    *topics: control.TopicState, number: int = 0, is_last: bool = True, incarnation: int = 1
) -> control.ReplicaStatesRequest:
    return control.ReplicaStatesRequest(
        broker_id=1,
        incarnation_id=numbered_uuid(incarnation),
        page=number,
        is_last=is_last,
        topics=topics,
    )


# ---------------------------------------------------------------- pages


def test_pages_are_joined_and_taken_once() -> None:
    states = ReplicaStates()
    assert states.take(page(topic_state(numbered_uuid(1), "a"), is_last=False)).error_code == 0
    assert states.take_complete(1, numbered_uuid(1)) is None
    assert states.take(page(topic_state(numbered_uuid(2), "b"), number=1)).error_code == 0
    # Pages of another process of the broker are not returned.
    assert states.take_complete(1, numbered_uuid(9)) is None
    joined = states.take_complete(1, numbered_uuid(1))
    assert joined is not None
    assert [topic.name for topic in joined] == ["a", "b"]
    # The states are handed over once, because they can be large.
    assert states.take_complete(1, numbered_uuid(1)) is None


@pytest.mark.parametrize(
    "second",
    [page(number=2), page(number=1, incarnation=2), page(number=0, is_last=False)],
    ids=["skipped", "another process", "again"],
)
def test_a_page_out_of_order_restarts_the_report(second: control.ReplicaStatesRequest) -> None:
    states = ReplicaStates()
    states.take(page(is_last=False))
    answer = states.take(second).error_code
    assert answer == (INVALID_REQUEST if second.page else 0)
    assert states.take_complete(1, numbered_uuid(1)) is None


def test_page_after_the_last_one_is_refused() -> None:
    states = ReplicaStates()
    states.take(page())
    assert states.take(page(number=1)).error_code == INVALID_REQUEST


def test_report_of_a_broker_is_limited() -> None:
    states = ReplicaStates()
    # One replica above the limit.
    many = topic_state(
        numbered_uuid(1),
        "a",
        partitions=(snapshot.partition_state(row((1,))),) * (REPLICAS_MAX + 1),
    )
    states.take(page(many, is_last=False))
    assert states.take(page(number=1)).error_code == INVALID_REQUEST


# ---------------------------------------------------------------- registration


@pytest.fixture
async def bench() -> AsyncIterator[RequestBench]:
    world = ShellWorld()
    world.make_cluster({"enable.under.replicated.topic.creation": "true"})
    for node_id in (1, 2):
        world.make_broker(node_id)
    world.make_topic()
    async with world.term():
        await world.start_broker(1)
        await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "t"))
        made = RequestBench(world)
        made.begin()
        yield made


def received_state(bench: RequestBench, **changes: Any) -> control.TopicState:
    """Return the state of the one partition that broker 1 received."""
    (made,) = bench.world.services.state.all_rows()
    state = dataclasses.replace(snapshot.partition_state(made), **changes)
    return topic_state(made.topic_id, "t", partitions=(state,))


async def test_a_broker_reports_its_states_before_it_is_admitted(bench: RequestBench) -> None:
    first = await bench.register(has_states=True)
    assert (first.error_code, first.wants_states) == (NOT_CONTROLLER, True)
    answer = await bench.requests.replica_states(page(received_state(bench)))
    assert answer.error_code == 0
    second = await bench.register(has_states=True)
    assert (second.error_code, second.wants_states) == (0, False)
    assert bench.world.services.state.replica_reports.has_reported(1)
    # Every registration needs a new report, since the states change while the broker runs.
    assert (await bench.register(has_states=True)).wants_states, "each time"


async def test_a_broker_of_an_earlier_version_is_not_queried(bench: RequestBench) -> None:
    assert (await bench.register()).error_code == 0
    assert not bench.world.services.state.replica_reports.has_reported(1)


async def test_a_broker_with_newer_states_ends_the_term_before_any_decision(
    bench: RequestBench,
) -> None:
    (before,) = bench.world.services.state.all_rows()
    # The slices have epoch 0: they must be from a backup.
    await bench.requests.replica_states(page(received_state(bench, leader_epoch=9), incarnation=77))
    answer = await bench.register(has_states=True, incarnation_id=numbered_uuid(77))
    assert answer.error_code == NOT_CONTROLLER
    assert [type(end) for end in bench.ends] == [SlicesBehind]
    assert list(bench.world.services.state.all_rows()) == [before]
    assert bench.sessions == []
    assert (await bench.register()).error_code == NOT_CONTROLLER, "this term decides nothing more"


async def test_report_of_a_waiting_process_reveals_old_slices(
    bench: RequestBench,
) -> None:
    """Its former process counts as alive until its session ends. Then others would be elected."""

    async def register() -> control.BrokerRegistrationResponse:
        request = bench.request(has_states=True, incarnation_id=numbered_uuid(77))
        return await bench.requests.register(request, session_alive=True, connected=True)

    assert (await register()).wants_states
    await bench.requests.replica_states(page(received_state(bench), incarnation=77))
    answer = await register()
    # The process is refused as a duplicate, but its states were compared.
    assert answer.error_code == int(ErrorCode.duplicate_broker_registration)
    assert not bench.world.services.state.replica_reports.has_reported(1), (
        "another may speak for it yet"
    )
    await bench.requests.replica_states(page(received_state(bench, leader_epoch=9), incarnation=77))
    assert (await register()).error_code == NOT_CONTROLLER
    assert [type(end) for end in bench.ends] == [SlicesBehind]


async def test_report_of_an_unknown_broker_is_refused(bench: RequestBench) -> None:
    # No Broker object has this node id.
    request = dataclasses.replace(page(), broker_id=7)
    assert (await bench.requests.replica_states(request)).error_code == NOT_CONTROLLER


async def test_new_process_is_admitted_after_all_live_brokers_reported(
    bench: RequestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first broker to report may have the oldest states."""
    services = bench.world.services
    await bench.world.start_broker(2)
    services.first_reports.expect((1, 2))
    registering = asyncio.create_task(bench.register(incarnation_id=numbered_uuid(77)))
    await many_turns()
    assert not registering.done()
    services.first_reports.broker_reported(2)
    assert (await registering).error_code == 0
    # The next takeover: broker 2 has not reported to this controller.
    services.first_reports.expect((2,))
    monkeypatch.setattr(broker_requests, "FIRST_REPORTS_S", 0.01)
    late = await bench.register(incarnation_id=numbered_uuid(78))
    assert late.error_code == NOT_CONTROLLER, "the broker retries"
    same = await bench.register(incarnation_id=numbered_uuid(77))
    assert same.error_code == 0, "nothing is decided about a process that is known"


async def test_topic_is_not_created_before_live_brokers_reported(bench: RequestBench) -> None:
    bench.world.make_topic("new")
    bench.world.services.first_reports.expect((2,))
    key = ShellWorld.key(TOPIC, "new")
    assert await TopicReconciler(bench.world.services).reconcile(key) is not None
    assert "topicId" not in bench.world.status(TOPIC, "new")


# ---------------------------------------------------------------- takeover


async def _take_over(world: ShellWorld, floor: int = 0, *, behind: bool = False) -> Any:
    return await Takeover(
        api=world.api,  # type: ignore[arg-type]
        namespace=NAMESPACE,
        identity="op",
        leads=lambda: True,
        objects=ObjectCache(),
    ).run("main", floor, behind=behind)


async def test_old_slices_are_doubted_and_the_status_is_written_first(
    bench: RequestBench,
) -> None:
    world = bench.world
    # The previous term ended because a broker's states were newer than the slices.
    taken = await _take_over(world, behind=True)
    assert world.status(CLUSTER, "main")["rebuilding"]["reason"] == "SlicesBehind"
    assert taken.state.unverified_rows == {row.key for row in taken.state.all_rows()} != set()
    # The doubt is persisted: it survives the next takeover.
    again = await _take_over(world)
    assert again.state.unverified_rows == taken.state.unverified_rows, (
        "the next controller continues with it"
    )


async def test_higher_epoch_of_a_broker_doubts_all_rows(bench: RequestBench) -> None:
    epoch = bench.world.status(CLUSTER, "main")["controller"]["epoch"]
    assert not (await _take_over(bench.world, epoch)).state.unverified_rows
    # A broker has seen an epoch that the restored Cluster does not know.
    taken = await _take_over(bench.world, epoch + 7)
    assert taken.state.unverified_rows
    assert taken.state.controller_epoch == epoch + 8


async def test_lost_slice_does_not_hide_outdated_slices(bench: RequestBench) -> None:
    world = bench.world
    (made,) = world.services.state.all_rows()
    index = world.services.state.slice_index(made.key)
    for number in range(64):
        # Remove any slice except the one with the partition.
        if number != index:
            world.server._objects.pop((PARTITION_SLICE.kind, f"main-{number:02d}"))
            break
    assert not (await _take_over(world)).state.unverified_rows
    # The lost slice alone doubts no row of the others.
    since = world.status(CLUSTER, "main")["rebuilding"]["since"]
    taken = await _take_over(world, behind=True)
    assert taken.state.unverified_rows
    assert world.status(CLUSTER, "main")["rebuilding"]["since"] >= since


async def test_a_later_loss_is_another_rebuilding(
    bench: RequestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was given up for one rebuilding is not given up for a later loss."""
    world, names = bench.world, ("main-00", "main-01")
    since = []
    for day, name in enumerate(names):
        monkeypatch.setattr(takeover, "wall_ms", lambda day=day: T0 + day * 86_400_000)
        world.server._objects.pop((PARTITION_SLICE.kind, name))
        await _take_over(world)
        since.append(world.status(CLUSTER, "main")["rebuilding"]["since"])
        # A repeated takeover without a further loss keeps the time.
        await _take_over(world)
        assert world.status(CLUSTER, "main")["rebuilding"]["since"] == since[-1]
    assert since[0] < since[1]


# ---------------------------------------------------------------- end of the rebuilding


@contextlib.asynccontextmanager
async def _without_a_slice(world: ShellWorld) -> AsyncIterator[None]:
    """Remove the slice of the only Topic, and take over."""
    (made,) = world.services.state.all_rows()
    index = world.services.state.slice_index(made.key)
    world.server._objects.pop((PARTITION_SLICE.kind, f"main-{index:02d}"))
    async with world.term():
        yield


async def test_rebuilding_ends_once_every_broker_has_reported() -> None:
    world = ShellWorld()
    world.make_cluster()
    for node_id in (1, 2):
        world.make_broker(node_id)
    world.make_topic()
    async with world.term():
        await world.start_broker(1)
        await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "t"))
        (made,) = world.services.state.all_rows()
        await world.start_broker(2)
    async with _without_a_slice(world):
        services = world.services
        clusters = ClusterReconciler(services)
        # Only broker 1 has registered since the takeover, without its states yet.
        await world.start_broker(1)
        await clusters.reconcile(services.cluster_key)
        status, reason, message = world.condition(CLUSTER, "main", "Ready")
        assert (status, reason) == ("False", "Rebuilding")
        assert "Brokers 1, 2 have not reported" in message
        # Broker 1 reports the partition, which is then rebuilt under a higher generation.
        report = topic_state(made.topic_id, "t", partitions=(snapshot.partition_state(made),))
        services.state.take_replica_report(1, [report])
        await TopicReconciler(services).reconcile(ShellWorld.key(TOPIC, "t"))
        (rebuilt,) = services.state.all_rows()
        assert rebuilt.leader_epoch == made.leader_epoch + GENERATION
        await clusters.reconcile(services.cluster_key)
        assert "Broker 2 has not reported" in world.condition(CLUSTER, "main", "Ready")[2]
        # Broker 2 reports that it has no replica, which completes the rebuilding.
        services.state.take_replica_report(2, [])
        await clusters.reconcile(services.cluster_key)
        assert world.condition(CLUSTER, "main", "Ready")[:2] == ("True", "Serving")
        assert "rebuilding" not in world.status(CLUSTER, "main")


async def test_stray_topic_is_listed_while_a_broker_reports_it(
    bench: RequestBench,
) -> None:
    services = bench.world.services
    services.state.take_replica_report(1, [topic_state(numbered_uuid(5), "stray")])
    clusters = ClusterReconciler(services)
    await clusters.reconcile(services.cluster_key)
    (stray,) = bench.world.status(CLUSTER, "main")["strayTopics"]
    assert stray["topicName"] == "stray"
    services.state.take_replica_report(1, [])
    await clusters.reconcile(services.cluster_key)
    assert "strayTopics" not in bench.world.status(CLUSTER, "main")


@pytest.mark.parametrize("is_admitted", [False, True])
async def test_a_broker_with_a_later_commit_proves_that_the_slices_are_old(
    bench: RequestBench, is_admitted: bool
) -> None:
    """The broker has no replica of the change.

    Once it was admitted, this controller has pushed more to it.
    """
    state = bench.world.services.state
    epoch, commit = state.controller_epoch, state.stored_commit
    # The state as this controller found it: its own epoch and last commit.
    state.found = epoch, commit
    if is_admitted:
        assert (await bench.register()).error_code == 0
    await bench.requests.replica_states(page())
    request = {"has_states": True, "highest_controller_epoch": epoch}
    answer = await bench.register(**request, highest_commit=commit + 1)
    assert answer.error_code == (0 if is_admitted else NOT_CONTROLLER)
    assert [type(end) for end in bench.ends] == ([] if is_admitted else [SlicesBehind])


async def test_recreated_broker_object_does_not_reveal_old_slices(
    bench: RequestBench,
) -> None:
    """The newer states that the broker reports come from this controller itself."""
    world, state = bench.world, bench.world.services.state
    report = received_state(bench)
    await bench.requests.replica_states(page(report))
    assert (await bench.register(has_states=True)).error_code == 0
    (made,) = state.all_rows()
    # This controller decides a change and pushes it to broker 1.
    later = dataclasses.replace(made, partition_epoch=made.partition_epoch + 1)
    await world.services.committer.decide(lambda draft: draft.put_row(later))
    report = received_state(bench)
    body = world.server.find(BROKER, "broker-1")
    assert body is not None
    # The Broker object is deleted by force and created again.
    world.services.objects.remove(body)
    world.server._remove(body)
    assert 1 not in state.brokers
    world.make_broker(1)
    await bench.requests.replica_states(page(report))
    await bench.register(has_states=True)
    assert bench.ends == []


async def test_commits_of_lost_slices_are_not_missed(bench: RequestBench) -> None:
    world = bench.world
    world.server._objects.pop((PARTITION_SLICE.kind, "main-07"))
    taken = await _take_over(world)
    assert taken.state.found[1] > world.services.state.stored_commit


async def test_a_recreated_cluster_without_slices_takes_the_id_that_brokers_know() -> None:
    world = ShellWorld()
    cluster_id = "AAAAAAAAQACAAAAAAAAAAQ"
    meta = {"annotations": {ADOPT_CLUSTER_ID: cluster_id}}
    world.make(CLUSTER, "main", {"config": {}}, metadata=meta)
    taken = await _take_over(world)
    status = world.status(CLUSTER, "main")
    assert (status["clusterId"], status["slices"]) == (cluster_id, 64)
    assert status["rebuilding"]["reason"] == "SlicesMissing"
    assert len(world.server.of_kind(PARTITION_SLICE)) == 64
    assert taken.adopted is not None
    # The next takeover continues under the adopted id, without the annotation's help.
    assert (await _take_over(world)).state.cluster.cluster_id == cluster_id
