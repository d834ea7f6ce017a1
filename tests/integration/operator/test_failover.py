"""Controllers and brokers that die, hang and return: no late write, no lost state."""

import asyncio

import pytest

from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_operator.controller.state.rows import decode_row
from tidemark_operator.kube.errors import Invalid
from tidemark_operator.kube.kinds import BROKER, CLUSTER, LEASE, PARTITION_SLICE, TOPIC

UNDER_REPLICATED = {"enable.under.replicated.topic.creation": "true"}


async def epoch_of(world: ClusterWorld) -> int:
    status = (await world.get(CLUSTER, "demo")).get("status") or {}
    return int((status.get("controller") or {}).get("epoch", 0))


@pytest.mark.full
async def test_successor_of_a_killed_operator_changes_no_row(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    first = await world.start_operator()
    peer = await world.start_broker(1, first)
    await world.create_topic("t", partitions=3, replicas=1)
    await world.condition(TOPIC, "t", "Ready", "True")
    epoch, rows = await epoch_of(world), sorted(await world.rows())
    # SIGKILL: the Lease is not released, so the successor waits for its expiry.
    await first.kill()
    await peer.close()
    second = await world.start_operator()
    await peer.start(second.control)
    # The same peer registers with the new controller and receives a full snapshot.
    await world.until(lambda: peer.snapshots == 2 and not peer.fenced, "a new snapshot")
    assert await epoch_of(world) > epoch
    assert sorted(await world.rows()) == rows, "a take-over changes no row"
    assert {key: row.leader for key, row in peer.rows.items()} == {("t", n): 1 for n in range(3)}
    assert peer.controller_epoch == await epoch_of(world)
    assert await second.stop() == 0


async def test_api_server_refuses_writes_of_an_older_controller(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    first = await world.start_operator()
    await world.condition(CLUSTER, "demo", "Ready", "False", "NoBrokers")
    # A slice as the first operator last saw it.
    old_slice = (await world.slices())[0]
    await first.stop()
    second = await world.start_operator()
    # A new controller claims every slice with its own epoch before it acts.
    await world.until(
        lambda: _all_claimed(world, old_slice["controllerEpoch"]), "every slice is claimed"
    )
    now = await world.get(PARTITION_SLICE, old_slice["metadata"]["name"])
    # The write has the current resourceVersion, so only the epoch can refuse it.
    late = {**now, "controllerEpoch": old_slice["controllerEpoch"], "commit": now["commit"] + 1}
    with pytest.raises(Invalid, match="STALE_CONTROLLER_EPOCH"):
        await world.api.replace(PARTITION_SLICE, late)
    await second.stop()


async def _all_claimed(world: ClusterWorld, above: int) -> bool:
    found = await world.slices()
    # 64 slices: the number is fixed when a cluster is created.
    return len(found) == 64 and all(body["controllerEpoch"] > above for body in found)


async def test_resumed_controller_writes_nothing(world: ClusterWorld) -> None:
    await world.create_cluster(**UNDER_REPLICATED)
    hung = await world.start_operator()
    peer = await world.start_broker(1, hung)
    await world.create_topic("before", replicas=1)
    await world.condition(TOPIC, "before", "Ready", "True")
    standby = world.operator()
    await standby.launch()
    # SIGSTOP: the process keeps its connections, and believes that it leads.
    hung.pause()
    await standby.wait_ready()
    # The broker finds the standby, which has taken over after the Lease expired.
    await peer.close()
    await peer.start(standby.control)
    await world.create_topic("after", replicas=1)
    await world.until(lambda: ("after", 0) in peer.rows, "the standby leads")
    epoch, rows = await epoch_of(world), sorted(await world.rows())
    # The old leader resumes in the middle of whatever it did.
    hung.resume()
    await world.until(lambda: "no longer the leader" in hung.log, "it notices")
    # One second is enough for a late write.
    await asyncio.sleep(1)
    assert await epoch_of(world) == epoch
    assert sorted(await world.rows()) == rows
    assert not peer.fenced


async def test_stopped_operator_releases_its_lease(world: ClusterWorld) -> None:
    """An operator that stops releases it: its successor need not wait for its expiry."""
    await world.create_cluster()
    # 60 s: a successor that waited for the expiry would exceed the time-out below.
    first = world.operator(lease_duration_s=60)
    await first.start()
    standby = world.operator(lease_duration_s=60)
    await standby.launch()
    before = await world.get(LEASE, "tidemark-operator")
    assert await first.stop() == 0
    await standby.wait_ready(timeout_s=30)
    after = await world.get(LEASE, "tidemark-operator")
    assert after["spec"]["leaseTransitions"] == before["spec"]["leaseTransitions"] + 1
    # leaseTransitions counts changes of the holder, as in client-go.
    assert after["spec"]["holderIdentity"] != before["spec"]["holderIdentity"]


@pytest.mark.full
async def test_deleted_lease_places_no_topic_twice(
    world: ClusterWorld,
) -> None:
    await world.create_cluster(**UNDER_REPLICATED)
    operator = await world.start_operator()
    standby = world.operator()
    await standby.launch()
    peer = await world.start_broker(1, operator)
    await world.until(lambda: "brokers: " in standby.log, "the standby competes")
    # Both candidates see no Lease at the same moment.
    await world.api.delete(LEASE, world.namespace, "tidemark-operator")
    for number in range(10):
        await world.create_topic(f"t{number}", replicas=1)

    # A topic that was placed by both would have two rows.
    async def all_placed() -> bool:
        rows = [decode_row(text) for text in await world.rows()]
        return len({row.topic_id for row in rows}) == 10

    acquisitions = {operator: 1, standby: 0}

    async def follow_and_look() -> bool:
        """Connect the broker to whichever operator has acquired the Lease, the former one too."""
        for candidate, seen in acquisitions.items():
            acquired = candidate.log.count("acquired the Lease")
            if acquired == seen:
                continue
            acquisitions[candidate] = acquired
            # The ready line is printed at the first acquisition only.
            if not candidate.metrics:
                await candidate.wait_ready()
            await peer.close()
            await peer.start(candidate.control)
        return await all_placed()

    await world.until(follow_and_look, "every topic is placed once")
    rows = [decode_row(text) for text in await world.rows()]
    assert len(rows) == 10


async def test_partitions_of_a_dead_broker_get_a_new_leader(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    one = await world.start_broker(1, operator)
    two = await world.start_broker(2, operator)
    await world.create_topic("t", partitions=6)
    await world.until(lambda: len(two.rows) == 6, "placed")
    await one.close()
    await world.until(
        lambda: all(row.leader == 2 and row.isr == (2,) for row in two.rows.values()),
        "the other leads everything, alone in the ISR",
    )
    # Elections are sent first. Then the leader hears that its former peer is fenced.
    await world.until(lambda: two.brokers[1].fenced, "the leader knows that its peer is fenced")
    await world.condition(BROKER, "broker-1", "Ready", "False", "Fenced")
    rows = {row.partition: row for row in map(decode_row, await world.rows())}
    # Rows in the API server precede what brokers receive.
    assert all(row.isr == (2,) for row in rows.values()), "persisted before it was sent"
    # The broker returns unfenced but outside the ISR; its leader adds it again.
    back = await world.start_peer(one.restarted(clean=False), operator)
    assert back.snapshots == 1
    await world.condition(BROKER, "broker-1", "Ready", "True")
    result = await two.alter("t", 0, (2, 1))
    assert result.error_code == 0
    assert set(result.isr) == {1, 2}


@pytest.mark.full
async def test_unclean_leader_recovers_before_its_isr_grows(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    one = await world.start_broker(1, operator)
    two = await world.start_broker(2, operator)
    # Only with unclean election may a replica outside the ISR lead.
    unclean = {"unclean.leader.election.enable": "true"}
    await world.create_topic("t", config=unclean)
    await world.until(lambda: ("t", 0) in two.rows, "placed")
    # Broker 2 remains in the ISR alone, then dies: broker 1 is known to be behind.
    await one.close()
    await world.until(lambda: two.rows["t", 0].isr == (2,), "broker 1 left the ISR")
    await two.close()
    await world.condition(TOPIC, "t", "Ready", "False", "PartitionsOffline")
    one = await world.start_peer(one.restarted(clean=False), operator)
    await world.until(
        # Recovery state 1 is RECOVERING (KIP-704).
        lambda: one.rows["t", 0].leader == 1 and one.rows["t", 0].leader_recovery_state == 1,
        "elected uncleanly",
    )
    assert [decode_row(text).recovering for text in await world.rows()] == [True]
    # The leader reports why it cannot serve yet.
    await one.report(0, 0, waits_for="TierUnavailable")
    shown = await world.condition(TOPIC, "t", "Ready", "False", "TierUnavailable")
    assert shown["message"] == "partition 0 is offline: it waits"
    two = await world.start_peer(two.restarted(clean=False), operator)
    # While it recovers, the ISR must not grow (42 is INVALID_REQUEST).
    result = await one.alter("t", 0, (1, 2))
    assert (result.error_code, result.isr, result.leader_recovery_state) == (42, (1,), 1)
    # An ISR of the leader alone with state RECOVERED ends the recovery.
    result = await one.alter("t", 0, (1,))
    assert (result.error_code, result.leader_recovery_state) == (0, 0)
    assert [decode_row(text).recovering for text in await world.rows()] == [False]
    await world.until(lambda: one.rows["t", 0].leader_recovery_state == 0, "it is sent")
    await one.report(0, 0)
    await world.condition(TOPIC, "t", "Ready", "True", "Serving")
    # From now on followers may join.
    assert (await one.alter("t", 0, (1, 2))).error_code == 0


@pytest.mark.full
async def test_controlled_shutdown_moves_leaders_first(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    one = await world.start_broker(1, operator)
    two = await world.start_broker(2, operator)
    await world.create_topic("t", partitions=4)
    await world.until(lambda: len(two.rows) == 4, "placed")
    # A controlled shutdown: leaders move before the broker is let go.
    one.want_shut_down = True
    await world.until(lambda: one.should_shut_down, "the controller lets it go")
    await world.until(lambda: all(row.leader == 2 for row in two.rows.values()), "leaders moved")
    await one.close()
    await world.condition(BROKER, "broker-1", "Ready", "False")


@pytest.mark.full
async def test_broker_with_a_higher_controller_epoch_causes_a_takeover(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    await world.create(BROKER, "broker-1", nodeId=1, workload="External")
    peer = await world.peer(1)
    # The broker remembers epoch 40 of a controller that this one does not know of.
    peer.highest_epoch = 40
    await world.start_peer(peer, operator)
    # The controller takes over with a higher epoch, so that its commands are not stale.
    assert peer.controller_epoch > 40
    assert await epoch_of(world) == peer.controller_epoch


@pytest.mark.full
async def test_missing_slice_is_recreated_and_its_loss_is_reported(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    await world.condition(CLUSTER, "demo", "Ready", "False", "NoBrokers")
    await operator.stop()
    name = (await world.slices())[3]["metadata"]["name"]
    # A slice disappears, as after a faulty restore.
    await world.api.merge_patch(
        PARTITION_SLICE, world.namespace, name, {"metadata": {"finalizers": None}}
    )
    await world.delete(PARTITION_SLICE, name)
    await world.create(BROKER, "broker-1", nodeId=1, workload="External")
    await world.start_operator()
    # The report stays until the brokers' logs have shown what the slice had.
    status = await world.status_where(CLUSTER, "demo", lambda status: "rebuilding" in status)
    assert status["rebuilding"]["reason"] == "SlicesMissing"

    async def all_there() -> bool:
        return len(await world.slices()) == 64

    await world.until(all_there, "the slice to be made again")
