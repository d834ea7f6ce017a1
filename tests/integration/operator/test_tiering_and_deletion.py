"""Tiering disablement, record deletion, topic deletion, and the identity of the store."""

from typing import Any

import pytest

from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld, condition_of
from tests.integration.operator.operator_process import OperatorProcess
from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.tiering import TieringState
from tidemark_operator.kube.errors import Invalid
from tidemark_operator.kube.kinds import CLUSTER, RECORD_DELETION, TOPIC, Json


async def tiered(world: ClusterWorld, **spec: Any) -> tuple[OperatorProcess, list[BrokerPeer]]:
    """Start two brokers and a tiered topic ``t`` with two partitions."""
    await world.create_cluster()
    operator = await world.start_operator()
    peers = [await world.start_broker(node, operator) for node in (1, 2)]
    await world.create_topic("t", partitions=2, tiering={"enabled": True}, **spec)
    await world.until(lambda: all(("t", 1) in peer.rows for peer in peers), "placed")
    return operator, peers


def tiering_of(status: Json) -> Json:
    return status.get("tiering") or {}


async def test_brokers_get_the_accepted_storage_and_its_identity(world: ClusterWorld) -> None:
    _, (peer, _) = await tiered(world)
    status = (await world.get(CLUSTER, "demo"))["status"]
    assert str(world.tier) in peer.remote_storage
    # The store's id was written by the operator and is sent to brokers.
    assert peer.store_id == status["storeId"]
    assert (world.tier / "tidemark.json").exists()
    assert status["acceptedStorage"] == {"filesystem": {"path": str(world.tier)}}
    assert peer.topics["t"].tiering_state == TieringState.ENABLED


async def test_disablement_waits_for_every_broker_and_refuses_changes(
    world: ClusterWorld,
) -> None:
    _, (one, two) = await tiered(world)
    # Broker 2 applies the state, but does not acknowledge.
    two.acknowledge_disable = False
    await world.patch(TOPIC, "t", tiering={"enabled": False, "disablePolicy": "Retain"})
    status = await world.status_where(
        TOPIC, "t", lambda found: tiering_of(found).get("pendingBrokers") == [2]
    )
    assert tiering_of(status)["state"] == "Disabling"
    assert tiering_of(status)["epoch"] == 1
    assert condition_of(status, "TieringSettled")["status"] == "False"
    # The topic is served meanwhile.
    assert condition_of(status, "Ready")["status"] == "True"
    assert one.topics["t"].tiering_state == TieringState.DISABLING
    assert {request.tiered_epoch for request in one.disable_requests} == {1}
    # The CRD's validation rules refuse a change in the middle of a disablement.
    with pytest.raises(Invalid, match="TIERED_STORAGE_DISABLEMENT_IN_PROGRESS"):
        await world.patch(TOPIC, "t", tiering={"enabled": True})
    two.acknowledge_disable = True
    status = await world.status_where(
        TOPIC, "t", lambda found: tiering_of(found).get("state") == "Disabled"
    )
    assert "pendingBrokers" not in tiering_of(status)
    await world.until(
        lambda: one.topics["t"].tiering_state == TieringState.DISABLED, "brokers are notified"
    )
    await world.patch(TOPIC, "t", tiering={"enabled": True, "disablePolicy": None})
    await world.until(
        lambda: one.topics["t"].tiering_state == TieringState.ENABLED, "enabled again"
    )


async def test_disablement_continues_under_the_next_controller(world: ClusterWorld) -> None:
    operator, peers = await tiered(world)
    # No broker acknowledges, so the disablement is pending when the operator dies.
    for peer in peers:
        peer.acknowledge_disable = False
    await world.patch(TOPIC, "t", tiering={"enabled": False, "disablePolicy": "Delete"})
    await world.status_where(
        TOPIC, "t", lambda found: tiering_of(found).get("pendingBrokers") == [1, 2]
    )
    await operator.kill()
    successor = await world.start_operator()
    # Brokers acknowledge to the successor.
    for peer in peers:
        await peer.close()
        peer.acknowledge_disable = True
        await peer.start(successor.control)
    status = await world.status_where(
        TOPIC, "t", lambda found: tiering_of(found).get("state") == "Disabled"
    )
    # Policy and epoch came from the status.
    assert tiering_of(status)["policy"] == "Delete"
    assert tiering_of(status)["epoch"] == 1


@pytest.mark.full
async def test_grace_period_of_a_deletion_ends_under_the_next_controller(
    world: ClusterWorld,
) -> None:
    operator, peers = await tiered(world, deletionGracePeriod="1h")
    await world.status_where(TOPIC, "t", lambda found: "topicId" in found)
    await world.delete(TOPIC, "t")
    note = await world.event("DeletionPending")
    assert f"kubectl --namespace {world.namespace} patch topics.tidemark.dev t" in note
    due = (await world.get(TOPIC, "t"))["status"]["deletion"]["due"]
    await operator.kill()
    successor = await world.start_operator()
    for peer in peers:
        await peer.close()
        await peer.start(successor.control)
    # The successor serves the topic, and knows the same end.
    await world.until(lambda: all(("t", 1) in peer.rows for peer in peers), "still served")
    assert (await world.get(TOPIC, "t"))["status"]["deletion"] == {"due": due}
    await world.patch(TOPIC, "t", deletionGracePeriod="1s")
    await world.until(lambda: world.is_deleted(TOPIC, "t"), "the period is over")


@pytest.mark.full
async def test_store_of_another_cluster_is_refused(world: ClusterWorld) -> None:
    # The identity file of another cluster.
    (world.tier / "tidemark.json").write_text(
        '{"formatVersion": 1, "storeId": "x", "clusterId": "another-cluster"}'
    )
    await world.create_cluster()
    operator = await world.start_operator()
    await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1, tiering={"enabled": True})
    refused = await world.condition(TOPIC, "t", "Stalled", "True", "StorageUnavailable")
    assert "another-cluster" in refused["message"]
    ready = await world.condition(CLUSTER, "demo", "RemoteStorageReady", "False")
    assert "another-cluster" in ready["message"]
    # The documented remedy: remove the foreign identity.
    (world.tier / "tidemark.json").unlink()
    await world.condition(TOPIC, "t", "Ready", "True")


async def test_record_deletion_resolves_its_offsets_once(world: ClusterWorld) -> None:
    _, peers = await tiered(world)
    time = "2026-01-02T03:04:05Z"
    await world.create_deletion(
        "d",
        "t",
        # The offset -1 means the high watermark (1000), the time resolves to offset 100.
        partitions=[{"partition": 0, "beforeOffset": -1}, {"partition": 1, "beforeTime": time}],
    )
    await world.condition(RECORD_DELETION, "d", "Succeeded", "True")
    status = (await world.get(RECORD_DELETION, "d"))["status"]
    assert {point["partition"]: point["offset"] for point in status["resolved"]} == {
        0: 1000,
        1: 100,
    }
    assert {part["partition"]: part["lowWatermark"] for part in status["partitions"]} == {
        0: 1000,
        1: 100,
    }
    # 1000 records of partition 0 and 100 of partition 1.
    assert status["records"] == 1100
    deleted = {key: offset for peer in peers for key, offset in peer.deleted.items()}
    assert deleted == {("t", 0): 1000, ("t", 1): 100}
    # Deletions were sent to leaders only.
    leaders = {row.leader for row in peers[0].rows.values()}
    assert all(not peer.deleted or peer.node_id in leaders for peer in peers)


@pytest.mark.full
async def test_dry_run_reports_what_it_would_delete(world: ClusterWorld) -> None:
    _, peers = await tiered(world)
    await world.create_deletion("d", "t", all={"beforeOffset": -1}, dryRun=True)
    await world.condition(RECORD_DELETION, "d", "Succeeded", "True", "DryRun")
    status = (await world.get(RECORD_DELETION, "d"))["status"]
    # Two partitions with 1000 records of ten bytes each.
    assert (status["records"], status["bytes"]) == (2000, 20_000)
    assert [(item["records"], item["bytes"]) for item in status["resolved"]] == [(1000, 10_000)] * 2
    assert not any(peer.deleted for peer in peers)


@pytest.mark.full
async def test_deletion_beyond_the_high_watermark_is_refused(world: ClusterWorld) -> None:
    _, peers = await tiered(world)
    # The topic was created again with fewer records than the deletion's offset.
    for peer in peers:
        peer.high_watermark = 5
    await world.create_deletion("d", "t", partitions=[{"partition": 0, "beforeOffset": 50}])
    found = await world.condition(RECORD_DELETION, "d", "Succeeded", "False")
    assert "OFFSET_OUT_OF_RANGE" in found["message"]
    assert not any(peer.deleted for peer in peers)


@pytest.mark.full
async def test_finished_deletion_is_removed_after_its_time_to_live(world: ClusterWorld) -> None:
    await tiered(world)
    await world.create_deletion(
        "d", "t", partitions=[{"partition": 0, "beforeOffset": 10}], ttlAfterFinished="1s"
    )
    await world.until(lambda: world.is_deleted(RECORD_DELETION, "d"), "removed")


async def test_topic_deletion_removes_replicas_and_tier_first(
    world: ClusterWorld,
) -> None:
    _, (one, two) = await tiered(world)
    # Brokers and tier are cleaned before the finalizer is removed.
    topic_id = one.topics["t"].topic_id
    await world.delete(TOPIC, "t")
    await world.until(lambda: world.is_deleted(TOPIC, "t"), "the Topic goes")
    for peer in (one, two):
        assert (topic_id, -1) in peer.removed
    assert len(one.remote_deletions) + len(two.remote_deletions) >= 1

    # Tombstones of rows are collected once every broker has confirmed.
    async def nothing_left() -> bool:
        bodies = await world.slices()
        return not any(body.get("partitions") or body.get("tombstones") for body in bodies)

    await world.until(nothing_left, "rows and tombstones are collected")


@pytest.mark.full
async def test_fenced_broker_removes_deleted_topic_on_return(world: ClusterWorld) -> None:
    operator, (one, two) = await tiered(world)
    topic_id = one.topics["t"].topic_id
    await two.close()
    # A fenced broker does not block the deletion.
    await world.until(lambda: one.brokers[2].fenced, "broker 2 is fenced")
    await world.delete(TOPIC, "t")
    await world.until(
        lambda: world.is_deleted(TOPIC, "t"), "the Topic goes without the dead broker"
    )
    back = await world.start_peer(two.restarted(clean=False), operator)
    # It receives the removal in its first snapshot.
    assert (topic_id, -1) in back.removed


@pytest.mark.full
async def test_orphaned_topic_is_recorded_and_can_be_adopted(world: ClusterWorld) -> None:
    _, (one, _) = await tiered(world, deletionPolicy="Orphan")
    await world.delete(TOPIC, "t")
    await world.until(lambda: world.is_deleted(TOPIC, "t"), "released")
    # The Cluster records what was left behind, with the id that adoption needs.
    left = (await world.get(CLUSTER, "demo"))["status"]["leftBehind"]
    assert [entry["topicName"] for entry in left] == ["t"]
    assert len(await world.rows()) == 2, "what is left behind stays where it is"
    assert not one.removed
    # Another object that claims the same topic.
    await world.create_topic("again", partitions=2, topicName="t", tiering={"enabled": True})
    await world.condition(TOPIC, "again", "Stalled", "True", "AdoptionRequired")
    message = condition_of((await world.get(TOPIC, "again"))["status"], "Stalled")["message"]
    assert f"{ADOPT_TOPIC_ID}: {left[0]['topicId']}" in message
    await world.annotate(TOPIC, "again", **{ADOPT_TOPIC_ID: left[0]["topicId"]})
    await world.condition(TOPIC, "again", "Ready", "True")
    adopted = (await world.get(TOPIC, "again"))["status"]
    assert adopted["topicId"] == left[0]["topicId"]
    assert adopted["tiering"]["state"] == "Enabled"
    # The adoption is recorded once.
    assert [record["annotation"] for record in adopted["accepted"]] == [ADOPT_TOPIC_ID]
    # Its rows are the old ones.
    assert len(await world.rows()) == 2

    async def forgotten() -> bool:
        return "leftBehind" not in (await world.get(CLUSTER, "demo"))["status"]

    await world.until(forgotten, "what was adopted is not left behind any more")
