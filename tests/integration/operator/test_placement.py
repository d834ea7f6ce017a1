"""From a manifest to partitions on brokers: waiting, KIP-409's placeholders, growth, quiet."""

import asyncio
import contextlib

import pytest

from tests.integration.operator.broker_peer import BrokerPeer, ControllerRefused
from tests.integration.operator.cluster_world import ClusterWorld, condition_of
from tidemark_operator.kube.client import FIELD_MANAGER
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC

UNDER_REPLICATED = {"enable.under.replicated.topic.creation": "true"}


@pytest.mark.full
async def test_topic_reports_how_many_brokers_are_missing(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    await world.start_broker(1, operator)
    await world.create_topic("t", replicas=3)
    ready = await world.condition(TOPIC, "t", "Ready", "False", "BrokersMissing")
    assert "2 brokers missing" in ready["message"]
    status = (await world.get(TOPIC, "t"))["status"]
    assert condition_of(status, "Reconciling")["status"] == "True"
    assert condition_of(status, "Stalled")["status"] == "False"
    # No partial placement: the rows are written once all replicas have a broker.
    assert await world.rows() == [], "nothing is created without enough brokers"
    # The status has one writer, so that no other field manager can hold stale conditions.
    writers = {
        entry["manager"]
        for entry in (await world.get(TOPIC, "t"))["metadata"]["managedFields"]
        if entry.get("subresource") == "status"
    }
    assert writers == {FIELD_MANAGER}
    await world.start_broker(2, operator)
    await world.start_broker(3, operator)
    await world.condition(TOPIC, "t", "FullyReplicated", "True")


async def test_placeholders_are_accepted_then_filled_by_a_broker_that_joins(
    world: ClusterWorld,
) -> None:
    await world.create_cluster(**UNDER_REPLICATED)
    operator = await world.start_operator()
    first = await world.start_broker(1, operator)
    await world.start_broker(2, operator)
    await world.create_topic("t", partitions=4, replicas=3, config={"min.insync.replicas": "2"})
    await world.condition(TOPIC, "t", "Ready", "True")
    under_replicated = await world.condition(TOPIC, "t", "FullyReplicated", "False", "Placeholders")
    assert "4 of 12 replicas wait" in under_replicated["message"]
    await world.until(lambda: len(first.rows) == 4, "the broker knows its partitions")
    # Placeholders are negative node ids at the end of the replicas, never in the ISR.
    assert all(row.replicas[-1] == -1 for row in first.rows.values())
    assert all(-1 not in row.isr and row.leader > 0 for row in first.rows.values())
    await world.start_broker(3, operator)
    await world.until(
        lambda: all(
            sorted(row.replicas) == [1, 2, 3] for peer in world.peers for row in peer.rows.values()
        ),
        "every placeholder is filled by the third broker",
    )
    leaders = {peer.node_id: peer for peer in world.peers}
    # Leaders add the filled replicas to their ISRs, one partition at a time.
    for (topic, partition), row in list(first.rows.items()):
        result = await leaders[row.leader].alter(topic, partition, (*row.isr, 3))
        assert result.error_code == 0
    await world.condition(TOPIC, "t", "FullyReplicated", "True")


async def test_partitions_are_sent_only_after_the_status_contains_them(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", partitions=2, replicas=1)
    await world.until(lambda: ("t", 1) in peer.rows, "the broker is notified")
    # The status was written before the broker received the partitions.
    status = (await world.get(TOPIC, "t"))["status"]
    assert status["partitionsPlaced"] == 2
    await world.patch(TOPIC, "t", partitions=5)
    await world.until(lambda: ("t", 4) in peer.rows, "the added partitions are sent")
    assert (await world.get(TOPIC, "t"))["status"]["partitionsPlaced"] == 5
    assert len(await world.rows()) == 5


async def test_changed_configuration_reaches_every_broker(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1, config={"retention.ms": "1000"})

    def broker_config() -> dict[str, str]:
        topic = peer.topics.get("t")
        return {} if topic is None else {entry.name: entry.value for entry in topic.config}

    await world.until(lambda: broker_config().get("retention.ms") == "1000", "the first value")
    await world.patch(TOPIC, "t", config={"retention.ms": "2000"})
    await world.until(lambda: broker_config().get("retention.ms") == "2000", "the second value")


async def test_in_a_steady_state_nothing_is_written(world: ClusterWorld) -> None:
    await world.create_cluster(**UNDER_REPLICATED)
    operator = await world.start_operator()
    await world.start_broker(1, operator)
    await world.start_broker(2, operator)
    for number in range(5):
        await world.create_topic(f"t{number}", partitions=2)
        await world.condition(TOPIC, f"t{number}", "FullyReplicated", "True")
    await world.condition(CLUSTER, "demo", "Ready", "True")

    # Broker statuses are written with a delay, and would change versions below.
    async def replicas_reported() -> bool:
        bodies = [await world.get(BROKER, f"broker-{node}") for node in (1, 2)]
        return all(body["status"].get("replicas") == 10 for body in bodies)

    await world.until(replicas_reported, "the brokers' statuses have settled", timeout_s=40)
    # Four seconds of heartbeats without any write.
    before = await world.versions()
    passes = await operator.metric("tidemark_operator_reconciles_total")
    for peer in world.peers:
        assert peer.requests is not None
    await asyncio.sleep(4)
    assert await world.versions() == before
    # Heartbeats cause some passes, but not one for each of them.
    assert await operator.metric("tidemark_operator_reconciles_total") - passes < 20


async def test_registration_needs_a_broker_object_and_a_free_node_id(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    cluster_id = await world.cluster_id()
    stranger = BrokerPeer(9, cluster_id, world.certificates)
    world.peers.append(stranger)

    async def refusal(peer: BrokerPeer) -> int:
        try:
            await peer.register(operator.control)
        except ControllerRefused as error:
            return error.code
        return 0

    async def leads() -> bool:
        # The certificate authority does not exist yet.
        with contextlib.suppress(OSError):  # it has no authority yet
            # 41 is NOT_CONTROLLER.
            return await refusal(stranger) != 41
        return False

    await world.until(leads, "the controller has taken over")
    # 102 is BROKER_ID_NOT_REGISTERED: no Broker object has this node id.
    assert await refusal(stranger) == 102
    peer = await world.start_broker(1, operator)
    twin = BrokerPeer(1, cluster_id, world.certificates)
    world.peers.append(twin)
    # 101 is DUPLICATE_BROKER_REGISTRATION: the first process is alive.
    assert await refusal(twin) == 101
    other_cluster_peer = BrokerPeer(1, "another-cluster", world.certificates)
    world.peers.append(other_cluster_peer)
    with pytest.raises((ConnectionError, EOFError)):  # its certificate is another cluster's
        await refusal(other_cluster_peer)
    # Once its session has ended, another process may take over the node id.
    await peer.close()
    await world.condition(BROKER, "broker-1", "Ready", "False", "Fenced")
    await world.start_peer(twin, operator)
    assert twin.broker_epoch > peer.broker_epoch


@pytest.mark.full
async def test_second_cluster_and_its_objects_report_the_conflict(world: ClusterWorld) -> None:
    await world.create_cluster()
    await world.start_operator()
    await world.condition(CLUSTER, "demo", "Ready", "False", "NoBrokers")
    body = {
        "apiVersion": CLUSTER.api_version,
        "kind": "Cluster",
        "metadata": {"name": "second"},
        "spec": {},
    }
    await world.api.create(CLUSTER, world.namespace, body)
    await world.condition(CLUSTER, "second", "Stalled", "True", "SecondCluster")
    # A reference to a Cluster that does not exist is reported on the Topic.
    await world.create_topic("t", clusterRef={"name": "nowhere"})
    await world.condition(TOPIC, "t", "Ready", "False", "ClusterNotFound")


@pytest.mark.full
async def test_deleted_broker_leaves_placeholders(world: ClusterWorld) -> None:
    await world.create_cluster(**UNDER_REPLICATED)
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    other = await world.start_broker(2, operator)
    await world.create_topic("t")
    await world.until(lambda: ("t", 0) in peer.rows, "placed")
    await world.delete(BROKER, "broker-2")
    # One broker is left, so the replicas have no destination.
    stays = await world.condition(BROKER, "broker-2", "Draining", "True", "ReplicasCannotMove")
    assert "Start another broker" in stays["message"]
    assert "stop the broker: its replicas then become placeholders" in stays["message"]
    await other.close()
    await world.until(lambda: world.is_deleted(BROKER, "broker-2"), "the finalizer goes")
    await world.until(lambda: sorted(peer.rows["t", 0].replicas) == [-1, 1], "a placeholder")
    await world.until(lambda: 2 not in peer.brokers, "the broker is known no more")


async def test_broker_is_drained_and_deleted_while_it_runs(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    one = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.until(lambda: ("t", 0) in one.rows, "placed")
    two = await world.start_broker(2, operator)
    # Drain: replicas move while the broker continues to lead.
    await world.api.merge_patch(BROKER, world.namespace, "broker-1", {"spec": {"drain": True}})
    await world.until(lambda: ("t", 0) in two.rows, "the successor is notified")
    await world.until(lambda: 2 in one.rows["t", 0].replicas, "and the leader")
    assert one.rows["t", 0].leader == 1
    await world.condition(BROKER, "broker-1", "Draining", "True", "MovingReplicas")
    # The leader adds the successor to the ISR, then leadership moves.
    assert (await one.alter("t", 0, (1, 2))).error_code == 0
    await world.until(lambda: two.rows["t", 0].leader == 2, "the successor leads")
    await world.condition(BROKER, "broker-1", "Draining", "False", "Drained")
    await world.delete(BROKER, "broker-1")
    await world.until(lambda: world.is_deleted(BROKER, "broker-1"), "nothing holds it")


@pytest.mark.full
async def test_topic_changes_do_not_repeat_the_broker_list(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    one = await world.start_broker(1, operator)
    two = await world.start_broker(2, operator)
    await world.until(lambda: all(not b.fenced for b in one.brokers.values()), "both are known")
    # One list of brokers was sent so far; topics must not repeat it.
    before = one.broker_lists
    for number in range(5):
        await world.create_topic(f"t{number}")
        await world.until(lambda n=number: (f"t{n}", 0) in one.rows, "placed")  # type: ignore[misc]
    assert one.broker_lists == before
    assert sorted(one.brokers) == [1, 2]
    # A change of the brokers is sent.
    await two.close()
    await world.until(lambda: one.brokers[2].fenced, "the change is sent")


@pytest.mark.full
async def test_configuration_edits_of_a_paused_topic_are_not_applied(
    world: ClusterWorld,
) -> None:
    """Pause and edit may come in one write; the next controller keeps the old configuration too."""
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1, config={"retention.ms": "1000"})
    await world.until(lambda: ("t", 0) in peer.rows, "placed")
    # One patch sets the annotation and changes the configuration.
    both = {
        "metadata": {"annotations": {"tidemark.dev/paused": "true"}},
        "spec": {"config": {"retention.ms": "2000"}},
    }
    await world.api.merge_patch(TOPIC, world.namespace, "t", both)
    paused = await world.condition(TOPIC, "t", "Reconciling", "False", "Paused")
    assert "Generation 2 of the spec is not applied" in paused["message"]
    await world.create_topic("other", replicas=1)
    await world.until(lambda: ("other", 0) in peer.rows, "others continue")
    # The edit is not applied to brokers.
    assert retention(peer) == "1000"
    await operator.kill()
    await peer.close()
    # The new controller has only the API server's state, which keeps the accepted configuration.
    second = await world.start_operator()
    await peer.start(second.control)
    await world.until(lambda: peer.snapshots == 2, "a new snapshot")
    assert retention(peer) == "1000"
    note = {"metadata": {"annotations": {"tidemark.dev/paused": None}}}
    await world.api.merge_patch(TOPIC, world.namespace, "t", note)
    await world.until(lambda: retention(peer) == "2000", "it reaches the brokers after the pause")
    status = await world.status_where(TOPIC, "t", lambda s: s["observedGeneration"] == 2)
    # The kept configuration is removed with the pause.
    assert "heldConfig" not in status


def retention(peer: BrokerPeer) -> str:
    """Return retention.ms of topic t as a broker received it."""
    return {entry.name: entry.value for entry in peer.topics["t"].config}["retention.ms"]


@pytest.mark.full
async def test_local_retention_above_a_default_total_is_refused_in_a_condition(
    world: ClusterWorld,
) -> None:
    # The default of the brokers is one hour, shorter than the local retention of two hours.
    await world.create_cluster(**{"log.retention.ms": "3600000"})
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    tiering = {"enabled": True, "localRetention": {"time": "2h"}}
    await world.create_topic("t", replicas=1, tiering=tiering)
    refused = await world.condition(TOPIC, "t", "Stalled", "True", "LocalRetentionTooLong")
    assert "retention.ms 3600000" in refused["message"]
    assert ("t", 0) not in peer.rows
    # Three hours of total retention: the Topic is accepted without a new object.
    await world.patch(TOPIC, "t", config={"retention.ms": "10800000"})
    await world.condition(TOPIC, "t", "Ready", "True")


@pytest.mark.full
async def test_paused_topic_does_not_grow(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.until(lambda: ("t", 0) in peer.rows, "placed")
    note = {"metadata": {"annotations": {"tidemark.dev/paused": "true"}}}
    await world.api.merge_patch(TOPIC, world.namespace, "t", note)
    await world.condition(TOPIC, "t", "Reconciling", "False", "Paused")
    await world.patch(TOPIC, "t", partitions=3)
    # The pause applies to one Topic only.
    await world.create_topic("other", replicas=1)
    await world.until(lambda: ("other", 0) in peer.rows, "others continue")
    assert ("t", 2) not in peer.rows
    note = {"metadata": {"annotations": {"tidemark.dev/paused": "false"}}}
    await world.api.merge_patch(TOPIC, world.namespace, "t", note)
    await world.until(lambda: ("t", 2) in peer.rows, "it continues after the pause")
