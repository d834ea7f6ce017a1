"""One Topic on a fake API server: decide, commit, write the status, push to brokers."""

import dataclasses
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tidemark.annotations import RESTORE_FROM_TIER
from tidemark.ids import id_text
from tidemark.tier.maintenance.topic_restore import TierOrigin
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import open_tier
from tidemark.tier.stores.config import from_json
from tidemark.tiering import Tiering, TieringState
from tidemark_operator.controller import elections, snapshot, topics
from tidemark_operator.controller.topics import PUT_OFF_MS
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict
from tidemark_operator.kube.kinds import CLUSTER, PARTITION_SLICE, TOPIC
from tidemark_operator.reconcile.topic_reconciler import LOOK_AGAIN_S, TopicReconciler
from tidemark_operator.resources.names import TOPIC_FINALIZER, slice_name
from tidemark_operator.slices import committer

T = ShellWorld.key(TOPIC, "t")


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster(UNDER_REPLICATED)
    made.make_broker(1)
    async with made.term():
        await made.start_broker(1)
        yield made


@pytest.fixture
def busy_world(world: ShellWorld, monkeypatch: pytest.MonkeyPatch) -> ShellWorld:
    """Return a busy world in which no second request arrives."""
    monkeypatch.setattr(committer, "GROWS_WITHIN_S", 0)
    world.busy = True
    return world


async def test_nothing_is_pushed_before_it_is_stored(world: ShellWorld) -> None:
    world.make_topic()
    await TopicReconciler(world.services).reconcile(T)
    # The slice depends on the topic's random id.
    slice_name = world.journal[1].rpartition(" ")[2]
    assert world.journal == [
        "apply Topic t",
        f"replace PartitionSlice {slice_name}",
        "slice landed",
        "states pushed",
        "replace_status Topic t",
        "published ns/t",
    ]
    assert world.status(TOPIC, "t")["partitionsPlaced"] == 1
    assert world.server.find(TOPIC, "t")["metadata"]["finalizers"] == [TOPIC_FINALIZER]


async def test_new_topic_among_many_costs_one_status_write(busy_world: ShellWorld) -> None:
    """Another slice records its placement before a broker receives it."""
    reconciler = TopicReconciler(busy_world.services)
    busy_world.make_topic()
    assert await reconciler.reconcile(T) == PUT_OFF_MS / 1000
    state = busy_world.services.state
    # The placement record must be in another slice, so that one loss never hits both.
    topic_id = state.topics["ns/t"].id
    home = state.slice_index((topic_id, 0))
    slices = [
        f"replace PartitionSlice {slice_name('main', index)}"
        for index in (home, state.record_home(topic_id))
    ]
    assert slices[0] != slices[1]
    landed = ["slice landed", "states pushed"]
    assert busy_world.journal == [
        "apply Topic t", slices[0], *landed, slices[1], *landed, "published ns/t"
    ]  # fmt: skip
    # Brokers receive the topic before it has a status.
    assert (topic_id, 0) in {
        (topic.topic_id, part.partition)
        for topic in snapshot.full(state).topics
        for part in topic.partitions
    }
    busy_world.journal.clear()
    assert 0 < (await reconciler.reconcile(T) or 0) <= PUT_OFF_MS / 1000
    assert busy_world.journal == [], "no broker has acknowledged"
    # The only status write already reports Serving.
    busy_world.acknowledge(1)
    await reconciler.reconcile(T)
    assert busy_world.journal == ["replace_status Topic t"]
    assert busy_world.condition(TOPIC, "t", "Ready")[:2] == ("True", "Serving")
    assert busy_world.status(TOPIC, "t")["partitionsPlaced"] == 1


async def test_first_status_is_deferred_for_a_bounded_time(
    busy_world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000]
    monkeypatch.setattr("tidemark_operator.reconcile.topic_reconciler.wall_ms", lambda: now[0])
    monkeypatch.setattr("tidemark_operator.reconcile.shared_steps.wall_ms", lambda: now[0])
    reconciler = TopicReconciler(busy_world.services)
    busy_world.make_topic()
    await reconciler.reconcile(T)
    now[0] += PUT_OFF_MS - 1
    assert await reconciler.reconcile(T) == pytest.approx(0.001)
    now[0] += 1
    await reconciler.reconcile(T)
    assert busy_world.condition(TOPIC, "t", "Ready")[:2] == ("False", "LeadersStarting")


async def test_everything_is_stored_before_a_broker_receives_it(
    busy_world: ShellWorld,
) -> None:
    state = busy_world.services.state
    # A tiered topic needs its epoch in the status before brokers may upload.
    state.cluster = dataclasses.replace(
        state.cluster,
        remote_storage="{}",
        config={**state.cluster.config, "remote.log.storage.system.enable": "true"},
    )
    busy_world.make_topic(tiering={"enabled": True})
    await TopicReconciler(busy_world.services).reconcile(T)
    assert busy_world.journal[-2:] == ["replace_status Topic t", "published ns/t"]
    assert busy_world.status(TOPIC, "t")["tiering"]["state"] == "Enabled"


async def test_without_room_for_a_record_the_status_is_written_first(
    busy_world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "RECORDS_MAX", 0)
    busy_world.make_topic()
    await TopicReconciler(busy_world.services).reconcile(T)
    assert busy_world.journal[-2:] == ["replace_status Topic t", "published ns/t"]


async def test_a_record_is_evidence_that_a_slice_has_lost_rows(busy_world: ShellWorld) -> None:
    busy_world.make_topic()
    await TopicReconciler(busy_world.services).reconcile(T)
    state = busy_world.services.state
    home = state.slice_index((state.topics["ns/t"].id, 0))
    # The slice is restored from a backup that lacks the row.
    body = busy_world.server.find(PARTITION_SLICE, slice_name("main", home))
    assert body is not None
    busy_world.server.replace("backup", PARTITION_SLICE, {**body, "partitions": []})
    # The new controller must not read the former placement from the status.
    busy_world.server.edit(CLUSTER, "main", {})
    async with busy_world.term():
        await TopicReconciler(busy_world.services).reconcile(T)
        assert busy_world.condition(TOPIC, "t", "Ready")[:2] == ("False", "Rebuilding")
        assert not busy_world.services.state.rows_of(state.topics["ns/t"].id)


async def test_a_settled_topic_costs_nothing(world: ShellWorld) -> None:
    world.make_topic()
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    world.journal.clear()
    await reconciler.reconcile(T)
    assert world.journal == []


async def test_a_failed_status_write_pushes_nothing_to_brokers(world: ShellWorld) -> None:
    world.make_topic()
    reconciler = TopicReconciler(world.services)
    # The status write fails, so brokers must not receive the new topic yet.
    world.api.fail("replace_status Topic", Conflict(409, "modified"))
    with pytest.raises(Conflict):
        await reconciler.reconcile(T)
    assert not any(entry.startswith("published") for entry in world.journal)
    await reconciler.reconcile(T)
    assert world.journal[-1] == "published ns/t"


async def test_a_change_of_configuration_is_announced_once(world: ShellWorld) -> None:
    world.make_topic()
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    world.journal.clear()
    world.edit(TOPIC, "t", config={"retention.ms": "1000"})
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
    assert world.journal.count("published ns/t") == 1
    assert world.status(TOPIC, "t")["observedGeneration"] == 2


async def test_a_field_of_a_newer_version_is_reported_and_the_rest_applies(
    world: ShellWorld,
) -> None:
    world.make_topic()
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    # The field is of a newer CRD version, and the rest of the spec is valid.
    world.edit(TOPIC, "t", later=1, config={"retention.ms": "1000"})
    await reconciler.reconcile(T)
    assert world.services.state.topics["ns/t"].config["retention.ms"] == "1000"
    status, reason, message = world.condition(TOPIC, "t", "Stalled")
    assert (status, reason) == ("True", "ObjectUnreadable")
    assert "spec.later" in message
    assert "Upgrade the operator" in message
    # The user removes the unknown field.
    body = world.known(TOPIC, "t")
    spec = {name: value for name, value in body["spec"].items() if name != "later"}
    world.services.objects.put(world.server.replace("user", TOPIC, {**body, "spec": spec}))
    await reconciler.reconcile(T)
    assert world.condition(TOPIC, "t", "Stalled")[0] == "False"


async def test_the_observed_generation_is_the_decided_one(world: ShellWorld) -> None:
    """An edit or a pause before the status write must not advance it (invariant 22)."""
    world.make_topic()
    reconciler = TopicReconciler(world.services)

    # The edit arrives between the decision and the status write.
    def edited(call: str) -> None:
        if call.startswith("replace PartitionSlice"):
            world.api.before = lambda _: None
            world.annotate(TOPIC, "t", **{"tidemark.dev/paused": "true"})
            world.edit(TOPIC, "t", config={"retention.ms": "1000"})

    world.api.before = edited
    await reconciler.reconcile(T)
    assert world.known(TOPIC, "t")["metadata"]["generation"] == 2
    assert world.status(TOPIC, "t")["observedGeneration"] == 1
    await reconciler.reconcile(T)
    _, reason, message = world.condition(TOPIC, "t", "Reconciling")
    assert reason == "Paused"
    assert "Generation 2 of the spec is not applied" in message


async def test_a_topic_of_another_cluster_is_marked_and_left_alone(world: ShellWorld) -> None:
    world.make_topic(clusterRef={"name": "other"})
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("False", "ClusterNotFound")
    world.make(CLUSTER, "other", {})
    await reconciler.reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("False", "ClusterNotControlled")
    assert world.journal == ["replace_status Topic t"] * 2


async def test_paused_topic_gets_no_finalizer_and_no_partitions(world: ShellWorld) -> None:
    world.make_topic()
    world.annotate(TOPIC, "t", **{"tidemark.dev/paused": "true"})
    await TopicReconciler(world.services).reconcile(T)
    assert not world.services.state.rows_of(world.services.state.topics["ns/t"].id)
    assert not world.server.find(TOPIC, "t")["metadata"].get("finalizers")


async def test_a_deleted_topic_is_released_only_after_its_brokers_have_confirmed(
    world: ShellWorld,
) -> None:
    world.make_topic()
    reconciler, services = TopicReconciler(world.services), world.services
    await reconciler.reconcile(T)
    topic_id = services.state.topics["ns/t"].id
    world.delete(TOPIC, "t")
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is not None
    # The broker confirms that it has deleted its replica.
    services.deletions._confirmed[topic_id] = {1: services.state.brokers[1].directory_id}
    await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is None
    assert services.objects.get(T) is None
    assert "ns/t" not in services.state.topics


async def test_an_orphan_is_recorded_before_its_topic_is_deleted(world: ShellWorld) -> None:
    world.make_topic(deletionPolicy="Orphan")
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    world.delete(TOPIC, "t")
    # The removal of the finalizer fails after the orphan was recorded.
    world.api.fail("json_patch Topic")
    with pytest.raises(ApiServerUnavailable):
        await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is not None
    (left,) = world.status(CLUSTER, "main")["leftBehind"]
    assert left["topicName"] == "t"
    await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is None
    # The retry does not record the orphan twice.
    assert len(world.status(CLUSTER, "main")["leftBehind"]) == 1


async def test_a_deleted_object_needs_no_work(world: ShellWorld) -> None:
    assert await TopicReconciler(world.services).reconcile(T) is None
    assert world.journal == []


async def test_events_report_that_a_topic_is_offline_and_online(world: ShellWorld) -> None:
    world.make_topic()
    reconciler, services = TopicReconciler(world.services), world.services
    await reconciler.reconcile(T)
    world.acknowledge(1)
    await reconciler.reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[0] == "True"
    assert "TopicOnline" not in world.events.reasons, "it was being made"
    world.events.emitted.clear()
    # The only broker fails, and later returns.
    await services.committer.decide(lambda draft: elections.fence(draft, [1], reason="test"))
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
    assert world.events.reasons == ["BrokerFenced", "PartitionsOffline"]
    world.events.emitted.clear()
    await services.committer.decide(lambda draft: elections.unfence(draft, 1))
    await reconciler.reconcile(T)
    # Unfenced, but the broker has not acknowledged its leadership yet.
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("False", "LeadersStarting")
    world.acknowledge(1)
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
    assert world.events.reasons == ["BrokerReady", "TopicOnline"]


async def test_an_event_reports_missing_brokers_once(world: ShellWorld) -> None:
    world.make_topic(replicas=3, config={"min.insync.replicas": "2"})
    reconciler = TopicReconciler(world.services)
    for _ in range(3):
        await reconciler.reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[1] == "BrokersMissing"
    [event] = [event for event in world.events.emitted if event.reason == "BrokersMissing"]
    assert event.message.startswith("1 broker missing (1 of 2 are live)")


async def test_an_event_reports_a_configuration_change_of_the_manifest(world: ShellWorld) -> None:
    world.make_topic(config={"retention.ms": "1000", "flush.ms": "5"})
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    assert "ConfigChanged" not in world.events.reasons, "it was made so"
    # One value changes, and one key is removed.
    world.edit(TOPIC, "t", config={"retention.ms": "2000"}, partitions=2)
    for _ in range(2):
        await reconciler.reconcile(T)
    [event] = [event for event in world.events.emitted if event.reason == "ConfigChanged"]
    assert event.message == (
        "topic t: flush.ms: '5' -> not set; partitions: '1' -> '2'; retention.ms: '1000' -> '2000'"
    )
    assert (event.kind, event.key) == ("Topic", "ns/t")


async def test_an_event_of_many_and_long_changes_is_short(world: ShellWorld) -> None:
    world.make_topic()
    throttled = {"leader.replication.throttled.replicas": "1:2," * 200}
    changed = {f"{key}.ms": "70000" for key in ("retention", "segment", "flush", "segment.jitter")}
    world.edit(TOPIC, "t", config={**changed, **throttled}, tiering={"enabled": True})
    [event] = [event for event in world.events.emitted if event.reason == "ConfigChanged"]
    assert event.message.endswith("; 1 more")
    assert len(event.message) < 600


@pytest.mark.parametrize(
    ("policy", "reason"), [("Delete", "TopicDeleted"), ("Orphan", "TopicLeftBehind")]
)
async def test_an_event_reports_that_a_topic_is_deleted_or_left_behind(
    world: ShellWorld, policy: str, reason: str
) -> None:
    world.make_topic(deletionPolicy=policy)
    reconciler, services = TopicReconciler(world.services), world.services
    await reconciler.reconcile(T)
    topic_id = services.state.topics["ns/t"].id
    services.deletions._confirmed[topic_id] = {1: services.state.brokers[1].directory_id}
    world.delete(TOPIC, "t")
    for _ in range(3):
        await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is None
    assert world.events.reasons.count(reason) == 1


async def test_a_deleted_paused_topic_names_the_obstacle_of_its_deletion(
    world: ShellWorld,
) -> None:
    world.make_topic()
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    world.annotate(TOPIC, "t", **{"tidemark.dev/paused": "true"})
    world.delete(TOPIC, "t")
    await reconciler.reconcile(T)
    _, reason, message = world.condition(TOPIC, "t", "Reconciling")
    assert reason == "Paused"
    assert "remove the annotation tidemark.dev/paused" in message
    assert "The Topic's deletion is also paused" in message
    assert world.server.find(TOPIC, "t") is not None


async def _restores(world: ShellWorld, folder: Path, topic_id: uuid.UUID) -> float | None:
    """Create a Topic as ``tidemark restore`` does, reconcile it and return the delay."""
    state = world.services.state
    text = json.dumps({"filesystem": {"path": str(folder)}})
    state.cluster = dataclasses.replace(state.cluster, remote_storage=text)
    origin = TierOrigin(
        topic_id=topic_id, partitions=1, leader_epoch=4, tiering=Tiering(TieringState.ENABLED, 1)
    )
    spec = {"clusterRef": {"name": "main"}, "partitions": 1, "replicationFactor": 1}
    world.make(TOPIC, "t", spec, metadata={"annotations": {RESTORE_FROM_TIER: origin.text()}})
    return await TopicReconciler(world.services).reconcile(T)


async def test_topic_deleted_in_the_tier_is_not_restored(world: ShellWorld, tmp_path: Path) -> None:
    """The annotated manifest of an earlier restore may be applied again."""
    topic_id, cluster_id = uuid.uuid4(), world.services.state.cluster.cluster_id
    folder = tmp_path / "tier"
    folder.mkdir()
    # The tier has the tombstone of the topic.
    catalog = open_tier(from_json(json.dumps({"filesystem": {"path": str(folder)}}))).topics
    catalog.put_tombstone(
        TopicObject(topic_id=topic_id, name="t", cluster_id=cluster_id, partitions=1)
    )
    await _restores(world, folder, topic_id)
    _, reason, message = world.condition(TOPIC, "t", "Stalled")
    assert reason == "AdoptionRefused"
    assert "was deleted" in message
    assert "topicId" not in world.status(TOPIC, "t")


async def test_a_topic_is_restored_from_a_tier_that_answers(
    world: ShellWorld, tmp_path: Path
) -> None:
    folder, topic_id = tmp_path / "tier", uuid.uuid4()
    # The store's folder does not exist yet, so the tombstones cannot be read.
    assert await _restores(world, folder, topic_id) == LOOK_AGAIN_S
    assert "The request is repeated" in world.condition(TOPIC, "t", "Stalled")[2]
    folder.mkdir()
    await TopicReconciler(world.services).reconcile(T)
    assert world.status(TOPIC, "t")["topicId"] == id_text(topic_id)


async def test_partitions_that_were_not_placed_can_be_removed() -> None:
    world = ShellWorld()
    world.make_cluster()
    world.make_topic(partitions=3000)
    async with world.term():
        reconciler = TopicReconciler(world.services)
        await reconciler.reconcile(world.key(TOPIC, "t"))
        assert world.condition(TOPIC, "t", "Ready")[1] == "BrokersMissing"
        assert not world.status(TOPIC, "t").get("partitionsPlaced"), "the API server reads it"
        # Without any placed partition, the count may still be lowered.
        world.edit(TOPIC, "t", partitions=2)
        world.make_broker(1)
        await world.start_broker(1)
        await reconciler.reconcile(world.key(TOPIC, "t"))
        assert world.status(TOPIC, "t")["partitionsPlaced"] == 2
        assert len(list(world.services.state.all_rows())) == 2
