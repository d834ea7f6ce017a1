"""One Topic from manifest to conditions, by the rows of the table of states."""

import dataclasses
import json

import pytest

from tests.unit.controller.controller_world import (
    KIP_409,
    T0,
    TIERED,
    ControllerWorld,
    acknowledge,
    broker,
    cluster,
    messages,
    numbered_uuid,
    ready,
    row,
    tiered,
    topic,
)
from tidemark.ids import id_text
from tidemark.tiering import TieringState
from tidemark.wire.control import PartitionStatus
from tidemark_operator.controller import elections, tiering_disablement
from tidemark_operator.controller.epochs import EPOCH_MAX
from tidemark_operator.controller.placement import fill_placeholders
from tidemark_operator.controller.state.commit import SLICE_BYTES_MAX
from tidemark_operator.controller.state.model import (
    BrokerHealth,
    BrokerInfo,
    OrphanedTopic,
    TieringSpec,
)
from tidemark_operator.controller.status import Pacer, StatusResult, broker_status, cluster_status
from tidemark_operator.controller.status.cluster import needs_tier
from tidemark_operator.controller.status.conditions import approximate_bytes, time_text
from tidemark_operator.controller.status.write_pacing import quiet_deletion_ms

ON = TieringSpec(enabled=True)
STORE = {"remote_storage": '{"filesystem":{"path":"/t"}}'}


def _main(result: StatusResult) -> tuple[str, str, str]:
    conditions = ready(result)
    return tuple(conditions[type_][0] for type_ in ("Ready", "Reconciling", "Stalled"))  # type: ignore[return-value]


def _brokers(*node_ids: int) -> list[BrokerInfo]:
    return [broker(node_id) for node_id in node_ids]


# ---------------------------------------------------------------- table of states


def test_waiting_for_brokers_nothing_created() -> None:
    world = ControllerWorld(brokers=_brokers(1), topics=[topic()])
    result = world.reconcile()
    assert _main(result) == ("False", "True", "False")
    assert messages(result)["Ready"].startswith("2 brokers missing (1 of 3 are live)")
    assert "topicId" not in result.status
    assert "FullyReplicated" not in ready(result)
    assert result.status["observedGeneration"] == 1


def test_under_replicated_and_accepted() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2), topics=[topic(partitions=2)], view=cluster(KIP_409)
    )
    result = world.reconcile()
    assert _main(result) == ("True", "False", "False")
    assert ready(result)["FullyReplicated"] == ("False", "Placeholders")
    assert result.status["replicas"] == {
        "desired": 6,
        "placed": 4,
        "inSync": 4,
        "placeholders": 2,
        "summary": "4/6",
    }
    assert result.status["partitionsPlaced"] == 2
    assert result.status["topicId"] == id_text(numbered_uuid(1))


def test_placeholders_are_trouble_if_they_stop_producers() -> None:
    """An accepted placeholder is none, and neither hides one that is late."""
    world = ControllerWorld(brokers=_brokers(1), topics=[topic()], view=cluster(KIP_409))
    assert ready(world.reconcile())["FullyReplicated"] == ("False", "Placeholders")
    orders = world.state.topics[topic().key]
    world.state.put_topic(dataclasses.replace(orders, config={"min.insync.replicas": "2"}))
    assert ready(world.reconcile())["FullyReplicated"] == ("False", "UnderMinIsr")
    text = messages(world.reconcile())["FullyReplicated"]
    assert text.startswith("partition 0 refuses acks=all writes")
    # The second broker makes writes possible again.
    world.state.put_broker(broker(2))
    draft = world.draft()
    fill_placeholders(draft, limit=10)
    world.commit(draft)
    assert ready(world.reconcile())["FullyReplicated"] == ("False", "ReplicasBehind")
    row = world.row()
    world.state.put_row(dataclasses.replace(row, isr=row.hosts))
    assert ready(world.reconcile())["FullyReplicated"] == ("False", "Placeholders")
    # Then it goes down.
    world.state.put_row(row)
    world.state.put_broker(broker(2, fenced=True))
    assert ready(world.reconcile())["FullyReplicated"] == ("False", "ReplicasBehind")
    text = messages(world.reconcile())["FullyReplicated"]
    assert text.startswith("1 replica of 3 not in sync")
    assert text.endswith("1 of 3 replicas waits for a broker to join (placeholders)")


def test_third_broker_completes_the_replicas() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2), topics=[topic()], view=cluster(KIP_409))
    world.reconcile()
    world.state.put_broker(broker(3))
    draft = world.draft()
    fill_placeholders(draft, limit=10)
    world.commit(draft)
    # The new replica is placed, but it is not in the ISR yet.
    assert ready(world.reconcile())["FullyReplicated"] == ("False", "ReplicasBehind")
    world.state.put_row(dataclasses.replace(world.row(), isr=world.row().replicas))
    result = world.reconcile()
    assert ready(result)["FullyReplicated"][0] == "True"
    assert _main(result) == ("True", "False", "False")


def test_replicas_out_of_sync_are_named_with_what_to_do() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic(partitions=2)])
    world.reconcile()
    first = world.row()
    follower, other = (node for node in first.replicas if node != first.leader)
    world.state.put_row(dataclasses.replace(first, isr=(first.leader, other)))
    text = messages(world.reconcile())["FullyReplicated"]
    assert "1 replica of 6 not in sync, in partition 0" in text
    assert f"broker {follower} is catching up" in text
    # The follower goes down: catching up becomes a matter of starting the broker.
    world.state.put_broker(broker(follower, fenced=True))
    text = messages(world.reconcile())["FullyReplicated"]
    assert f"broker {follower} is down. Start it, or delete each Broker" in text
    assert "catching up" not in text


def test_min_insync_replicas_above_the_replication_factor_is_reported() -> None:
    config = {"min.insync.replicas": "3"}
    world = ControllerWorld(
        brokers=_brokers(1, 2), topics=[topic(replication_factor=2, config=config)]
    )
    result = world.reconcile()
    assert ready(result)["ConfigEffective"] == ("False", "MinInsyncReplicasTooHigh")
    assert (
        "exceeds the replication factor 2, so 2 is in force" in messages(result)["ConfigEffective"]
    )
    assert _main(result) == ("True", "False", "False")
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic(config=config)])
    assert "ConfigEffective" not in ready(world.reconcile())


def test_a_fenced_broker_reports_the_time_and_the_remedy() -> None:
    world = ControllerWorld(brokers=[broker(1, fenced=True)], topics=[])
    first = broker_status(world.state, world.state.brokers[1], now_ms=T0)
    text = messages(first)["Ready"]
    assert f"fenced since {time_text(T0)}" in text
    assert "Start the broker with node.id 1" in text
    assert "delete this Broker" in text
    assert ready(first)["Registered"] == ("False", "Fenced")
    # A minute later the message must be the same, or it would be written again.
    later = dataclasses.replace(world.state.brokers[1], status=first.status)
    again = broker_status(world.state, later, now_ms=T0 + 60_000)
    assert messages(again)["Ready"] == text, "the time is that of the beginning"


def test_a_settled_topic_is_written_once() -> None:
    """Invariant 21: in a steady state nothing is written."""
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    pacer = Pacer()
    first = world.reconcile(now_ms=T0)
    assert pacer.should_write("t", {}, first.status, now_ms=T0)
    slices = dict(world.slices)
    again = world.reconcile(now_ms=T0 + 3_600_000)
    assert not pacer.should_write("t", first.status, again.status, now_ms=T0 + 3_600_000)
    assert world.slices == slices


def test_disablement_from_start_to_end() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(tiering_spec=ON)], view=cluster(TIERED, **STORE)
    )
    result = world.reconcile()
    assert ready(result)["TieringSettled"] == ("True", "Enabled")
    assert result.status["tiering"] == {
        "state": "Enabled",
        "epoch": 0,
        "since": "2027-01-15T08:00:00Z",
        "summary": "Enabled",
    }
    # The user turns tiering off: first the state is persisted, then brokers are queried.
    off = dataclasses.replace(world.view(), tiering_spec=TieringSpec(), generation=2)
    world.state.put_topic(off)
    decision = world.decide()
    assert [event.reason for event in decision.events] == ["TieringDisabling"]
    result = world.reconcile()
    assert _main(result) == ("True", "True", "False")
    assert ready(result)["TieringSettled"] == ("False", "Disabling")
    result = world.reconcile()
    tiering_now = result.status["tiering"]
    assert isinstance(tiering_now, dict)
    assert (tiering_now["epoch"], tiering_now["policy"]) == (1, "Retain")
    assert tiering_now["pendingBrokers"] == [1, 2, 3]
    assert "waiting for brokers 1, 2, 3" in messages(result)["Ready"]
    requests = tiering_disablement.requests(world.state, world.view(), world.disablements)
    for node_id, request in requests.items():
        # Every broker acknowledges that it has stopped uploading.
        world.disablements.take(
            world.state, request.topic_id, node_id, acknowledge(world, node_id, request), now_ms=T0
        )
    result = world.reconcile()
    assert _main(result) == ("True", "False", "False")
    assert ready(result)["TieringSettled"] == ("True", "Disabled")
    assert world.view().tiering.state is TieringState.DISABLED


def test_a_disablement_without_progress_is_stalled_and_names_its_exits() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(tiering_spec=ON)], view=cluster(TIERED, **STORE)
    )
    world.reconcile()
    world.state.put_topic(dataclasses.replace(world.view(), tiering_spec=TieringSpec()))
    world.reconcile()
    world.reconcile()
    result = world.reconcile(now_ms=T0 + tiering_disablement.STALL_MS)
    assert _main(result) == ("True", "True", "True")
    assert "delete their Broker" in messages(result)["Stalled"]


def test_paused_topic_keeps_ready_and_observed_generation() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    world.reconcile()
    world.state.put_topic(
        # The spec changes during the pause, but the status keeps the applied generation.
        dataclasses.replace(world.view(), paused=True, generation=5, partitions=9)
    )
    result = world.reconcile(now_ms=T0 + 5_000)
    assert _main(result) == ("True", "False", "False")
    assert ready(result)["Reconciling"] == ("False", "Paused")
    assert result.status["observedGeneration"] == 1
    assert len(list(world.state.all_rows())) == 1


def test_paused_before_anything_happened() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic(paused=True)])
    result = world.reconcile()
    assert ready(result)["Ready"] == ("Unknown", "Paused")
    assert not list(world.state.all_rows())


def test_a_pause_keeps_the_configuration_that_the_brokers_have_until_it_ends() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic(config={"retention.ms": "5"})])
    world.reconcile()
    world.state.put_topic(dataclasses.replace(world.view(), paused=True, generation=2))
    result = world.reconcile()
    assert result.status["heldConfig"] == {"retention.ms": "5"}
    assert "Generation 2 of the spec is not applied" in messages(result)["Reconciling"]
    world.state.put_topic(dataclasses.replace(world.view(), paused=False))
    result = world.reconcile()
    assert "heldConfig" not in result.status
    assert result.status["observedGeneration"] == 2


# ---------------------------------------------------------------- refusals


def _refused(world: ControllerWorld, number: int, reason: str) -> str:
    decision = world.decide(number)
    assert decision.blocker is not None
    assert [event.reason for event in decision.events] == [reason]
    result = world.reconcile(number)
    assert _main(result) == ("False", "False", "True")
    assert ready(result)["Stalled"] == ("True", reason)
    assert not [made for made in world.state.all_rows() if made.topic_id == numbered_uuid(number)]
    return messages(result)["Stalled"]


def test_name_belongs_to_the_oldest_or_placed_topic() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3),
        topics=[topic(1), topic(2, name="topic-1"), topic(0, name="topic-1")],
    )
    # Topic 0 is placed first, which counts more than the age of topic 9.
    world.reconcile(0)
    assert "ns/topic-0" in _refused(world, 1, "NameTaken")
    world.state.put_topic(topic(9, name="topic-1", created_ms=-5))
    assert "ns/topic-0" in _refused(world, 9, "NameTaken")


def test_name_in_rows_of_another_id_needs_adoption() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), rows=[row((1,), number=5, name="topic-1")])
    world.state.put_topic(topic(1))
    assert id_text(numbered_uuid(5)) in _refused(world, 1, "AdoptionRequired")
    assert world.row(number=5).replicas == (1,)


def test_a_name_that_was_left_behind_needs_adoption() -> None:
    orphan = OrphanedTopic(topic_id=numbered_uuid(5), name="topic-1", since_ms=T0)
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(1)], view=cluster(orphans=(orphan,))
    )
    _refused(world, 1, "AdoptionRequired")


def test_tombstone_does_not_block_the_name() -> None:
    world = ControllerWorld(
        brokers=_brokers(1),
        # Only the tombstone of the deleted topic remains.
        topics=[topic(1, replication_factor=1, partitions_placed=1, deletion_ms=T0)],
        rows=[row((1,))],
    )
    world.decide(1)
    world.state.topics.drop("ns/topic-1")
    world.state.put_topic(topic(2, name="topic-1", replication_factor=1))
    assert _main(world.reconcile(2)) == ("True", "False", "False")


@pytest.mark.parametrize(
    ("config", "fields", "word"),
    [
        ({}, STORE, "remote.log.storage.system.enable"),
        (TIERED, {}, "remoteStorage"),
        (
            TIERED,
            {**STORE, "storage_problem": "the Secret s3 is missing"},
            "the Secret s3 is missing",
        ),
    ],
)
def test_tiering_cannot_begin_without_storage(
    config: dict[str, str], fields: dict[str, object], word: str
) -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(tiering_spec=ON)], view=cluster(config, **fields)
    )
    assert word in _refused(world, 1, "StorageUnavailable")


def test_later_store_failure_is_no_refusal() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(tiering_spec=ON)], view=cluster(TIERED, **STORE)
    )
    world.reconcile()
    # An error of the store affects only what needs the store.
    world.state.cluster = cluster(TIERED, **STORE, storage_problem="timeout")
    assert _main(world.reconcile()) == ("True", "False", "False")
    world.state.reports[numbered_uuid(1), 0] = _report(error="CustomMetadataTooLarge")
    result = world.reconcile()
    assert ready(result)["TieringSettled"] == ("False", "CustomMetadataTooLarge")
    assert "partition 0: it is too large" in messages(result)["TieringSettled"]
    assert "TierIntegrity" not in ready(result)


def test_a_damaged_object_of_the_tier_has_a_condition_of_its_own() -> None:
    """Another partition's error comes first in TieringSettled and must not hide it."""
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3),
        topics=[topic(partitions=3, tiering_spec=ON)],
        view=cluster(TIERED, **STORE),
    )
    world.reconcile()
    world.state.reports[numbered_uuid(1), 0] = _report(error="StorageError")
    # Two damaged objects behind an ordinary error of partition 0.
    for partition, reason in ((1, "TierIntegrity"), (2, "ManifestPageNotFound")):
        world.state.reports[numbered_uuid(1), partition] = dataclasses.replace(
            _report(error=reason), partition=partition, error_message="object x is not"
        )
    result = world.reconcile()
    assert ready(result)["TieringSettled"] == ("False", "StorageError")
    assert ready(result)["TierIntegrity"] == ("False", "ObjectDamaged")
    assert "partitions 1, 2. The first: object x is" in messages(result)["TierIntegrity"]
    for partition in range(3):
        world.state.reports[numbered_uuid(1), partition] = dataclasses.replace(
            _report(), partition=partition
        )
    assert "TierIntegrity" not in ready(world.reconcile())


PROBLEM = "local.retention.ms 9 is more than retention.ms 5: lower spec.tiering.localRetention"


def test_new_topic_with_too_long_local_retention_is_not_created() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic(config_problem=PROBLEM)])
    assert _refused(world, 1, "LocalRetentionTooLong") == PROBLEM
    # The second decision finds the refusal in the status.
    assert not world.decide().events, "one event, not one per reconciliation"
    world.state.put_topic(dataclasses.replace(world.view(), config_problem=""))
    assert _main(world.reconcile()) == ("True", "False", "False")


def test_served_topic_with_too_long_local_retention_continues() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    world.reconcile()
    world.state.put_topic(dataclasses.replace(world.view(), config_problem=PROBLEM))
    assert [event.reason for event in world.decide().events] == ["LocalRetentionTooLong"]
    result = world.reconcile()
    assert _main(result) == ("True", "False", "True")
    assert messages(result)["Stalled"] == PROBLEM
    assert not world.decide().events
    world.state.put_topic(dataclasses.replace(world.view(), config_problem="another"))
    assert [event.message for event in world.decide().events] == ["another"]


def test_refused_configuration_has_its_own_reason() -> None:
    compacted = topic(config_problem="a compacted topic cannot be", config_reason="Compacted")
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[compacted])
    assert _refused(world, 1, "Compacted") == "a compacted topic cannot be"


def test_lost_rows_of_placed_partitions_are_not_recreated() -> None:
    placed = topic(partitions_placed=1, topic_id=numbered_uuid(1))
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[placed])
    (event,) = world.decide().events
    assert event.reason == "Rebuilding"
    result = world.reconcile(brokers_acknowledge=False)
    assert _main(result) == ("False", "True", "False"), "it continues once brokers have reported"
    assert "PartitionSlice" in messages(result)["Reconciling"]
    assert not world.decide().events, "one event"
    assert not list(world.state.all_rows())


def test_topic_serves_while_its_replication_factor_changes() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(partitions_placed=1)], rows=[row((1, 2))]
    )
    result = world.reconcile()
    assert _main(result) == ("True", "False", "False")
    assert ready(result)["FullyReplicated"] == ("False", "ReplicationFactorChanging")


def _edited(world: ControllerWorld, **fields: object) -> None:
    view = world.view()
    world.state.put_topic(
        dataclasses.replace(view, generation=view.generation + 1, **fields)  # type: ignore[arg-type]
    )


def test_pending_replication_factor_blocks_nothing_else() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic(replication_factor=2)])
    world.reconcile()
    _edited(world, replication_factor=4, partitions=2)
    result = world.reconcile()
    assert _main(result) == ("True", "False", "True")
    assert ready(result)["Stalled"] == ("True", "ReplicationFactorPending")
    assert len(world.row(1).replicas) == 2, "placed as the others are"
    # All brokers fail: offline partitions are reported beside the pending factor.
    draft = world.draft()
    elections.fence(draft, [1, 2, 3], reason="test")
    world.commit(draft)
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "PartitionsOffline")
    assert ready(result)["Stalled"] == ("True", "ReplicationFactorPending")


def test_changed_replication_factor_does_not_block_a_disablement() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(tiering_spec=ON)], view=cluster(TIERED, **STORE)
    )
    world.reconcile()
    _edited(world, tiering_spec=TieringSpec())
    world.reconcile()
    _edited(world, replication_factor=1)
    result = world.reconcile()
    assert _main(result) == ("True", "True", "False")
    assert ready(result)["Reconciling"] == ("True", "Disabling")
    # The figures follow the placed replicas while the factor waits for the disablement.
    assert result.status["replicas"]["desired"] == 3  # type: ignore[index]
    for node_id, request in tiering_disablement.requests(
        world.state, world.view(), world.disablements
    ).items():
        answer = acknowledge(world, node_id, request)
        world.disablements.take(world.state, numbered_uuid(1), node_id, answer, now_ms=T0)
    result = world.reconcile()
    assert ready(result)["TieringSettled"] == ("True", "Disabled")


def test_lower_replication_factor_keeps_min_isr_until_applied() -> None:
    config = {"min.insync.replicas": "2"}
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic(config=config)])
    world.reconcile()
    _edited(world, replication_factor=1)
    assert world.state.min_isr(world.row()) == 2


def test_refused_tiering_blocks_nothing_else() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    world.reconcile()
    _edited(world, tiering_spec=ON, partitions=2)
    result = world.reconcile()
    assert _main(result) == ("True", "False", "True")
    assert ready(result)["Stalled"] == ("True", "StorageUnavailable")
    assert result.status["partitionsPlaced"] == 2
    assert "tiering" not in result.status
    assert not world.decide().events, "one event"


def test_two_refusals_are_both_reported() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    world.reconcile()
    _edited(world, tiering_spec=ON, replication_factor=5)
    result = world.reconcile()
    assert ready(result)["Stalled"] == ("True", "StorageUnavailable")
    assert (
        "ReplicationFactorPending: replicationFactor 5 is not applied"
        in messages(result)["Stalled"]
    )


def test_all_refusals_of_a_new_topic_are_reported() -> None:
    """Reporting them one by one would cost the user one edit per refusal."""
    view = topic(tiering_spec=ON, config_problem="too long", config_reason="LocalRetentionTooLong")
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[view], view=cluster(slices=1))
    # The only slice is full as well.
    world.state.slices[0].row_bytes = SLICE_BYTES_MAX
    result = world.reconcile()
    assert ready(result)["Stalled"] == ("True", "StorageUnavailable")
    message = messages(result)["Stalled"]
    assert "StorageUnavailable: tiering cannot start" in message
    assert "LocalRetentionTooLong: too long" in message
    assert messages(result)["Ready"] == message


def test_full_slice_blocks_only_new_partitions() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()], view=cluster(slices=1))
    world.reconcile()
    world.state.slices[0].row_bytes = SLICE_BYTES_MAX
    _edited(world, partitions=2)
    result = world.reconcile()
    assert _main(result) == ("True", "False", "True")
    assert ready(result)["Stalled"] == ("True", "SliceFull")
    assert result.status["partitionsPlaced"] == 1


def test_lost_partition_does_not_block_a_disablement() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3),
        topics=[topic(partitions=2, tiering_spec=ON)],
        view=cluster(TIERED, **STORE),
    )
    world.reconcile()
    # One partition's row is lost before the disablement.
    world.state.remove_row((numbered_uuid(1), 1))
    _edited(world, tiering_spec=TieringSpec())
    result = world.reconcile()
    assert ready(result)["Reconciling"] == ("True", "Rebuilding")
    assert world.view().tiering.state is TieringState.DISABLING
    assert (numbered_uuid(1), 1) not in {made.key for made in world.state.all_rows()}


def test_a_full_slice_refuses_a_topic_and_leaves_no_trace_in_the_draft() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(1), topic(2)], view=cluster(slices=1)
    )
    world.state.slices[0].row_bytes = SLICE_BYTES_MAX
    assert "partition slice 0" in _refused(world, 1, "SliceFull")
    assert world.slices == {}


# ---------------------------------------------------------------- failures


def test_offline_partitions_and_lost_copies() -> None:
    world = ControllerWorld(brokers=_brokers(1), topics=[topic(replication_factor=1, partitions=2)])
    world.reconcile()
    draft = world.draft()
    elections.fence(draft, [1], reason="test")
    world.commit(draft)
    result = world.reconcile()
    assert _main(result) == ("False", "True", "False")
    assert "partitions 0, 1 have no leader" in messages(result)["Ready"]
    assert result.status["replicas"] == {
        "desired": 2,
        "placed": 2,
        "inSync": 0,
        "placeholders": 0,
        "summary": "0/2",
    }
    # The broker returns with an empty directory, so the copies are lost.
    world.register(1, incarnation=44, directory=45)
    result = world.reconcile()
    assert ready(result)["Stalled"] == ("True", "LastCopyMissing")


def test_pending_growth_reports_that_old_partitions_continue() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    world.reconcile()
    draft = world.draft()
    # With two live brokers, the factor of three cannot be placed.
    elections.fence(draft, [3], reason="test")
    world.commit(draft)
    world.state.put_topic(dataclasses.replace(world.view(), partitions=2, generation=2))
    result = world.reconcile()
    assert _main(result) == ("False", "True", "False")
    assert "the added partitions were not created" in messages(result)["Ready"]
    assert result.status["partitionsPlaced"] == 1


def test_a_deletion_names_the_brokers_that_it_waits_for() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    world.reconcile()
    world.state.put_topic(dataclasses.replace(world.view(), deletion_ms=T0))
    world.decide()
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "Deleting")
    assert "brokers 1, 2, 3" in messages(result)["Ready"]


def test_a_young_deletion_reports_nothing() -> None:
    left = [quiet_deletion_ms(T0, now_ms=T0 + age) for age in (0, 4_000, 5_000, 90_000, -60_000)]
    assert left == [5_000, 1_000, 0, 0, 0]


def test_leaders_of_a_paused_topic_are_not_balanced() -> None:
    moved = row((1, 2), leader=2, leader_epoch=3)
    for paused, leader in ((True, 2), (False, 1)):
        world = ControllerWorld(brokers=_brokers(1, 2), topics=[topic(paused=paused)], rows=[moved])
        draft = world.draft()
        elections.balance_leaders(draft, limit=5)
        world.commit(draft)
        assert world.row().leader == leader


# ---------------------------------------------------------------- figures and write rates


def _report(*, segments: int = 0, error: str = "", remaining: int = 0) -> PartitionStatus:
    return PartitionStatus(
        topic_id=numbered_uuid(1),
        partition=0,
        leader_epoch=0,
        log_start_offset=0,
        local_log_start_offset=0,
        high_watermark=0,
        next_offset=0,
        highest_remote_offset=-1,
        low_watermark=0,
        local_bytes=0,
        remote_segments=segments,
        remote_bytes=segments * 1000,
        remaining_segments=remaining,
        remaining_bytes=remaining * 1000,
        error_reason=error,
        error_message="it is too large" if error else "",
    )


def test_lag_of_the_tier_is_shown_with_the_waiting_records() -> None:
    lagging = {"tidemark.remote.copy.max.lag.ms": "10000"}
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3),
        topics=[topic(tiering_spec=ON, config=lagging)],
        view=cluster(TIERED, **STORE),
    )
    key = numbered_uuid(1), 0
    world.state.reports[key] = _report(segments=1)
    result = world.reconcile()
    assert ready(result)["TieringLagging"] == ("False", "WithinMaxLag")
    assert messages(result)["TieringLagging"] == "committed records are in the tier within 10 s"
    # Offsets 5 to 1,204 wait.
    late = dataclasses.replace(
        _report(segments=1), high_watermark=1205, highest_remote_offset=4, lagging_since_ms=T0 + 1
    )
    world.state.reports[key] = late
    result = world.reconcile()
    assert ready(result)["TieringLagging"] == ("True", "MaxLagExceeded")
    message = messages(result)["TieringLagging"]
    assert message.startswith("the maximum lag of 10 s is exceeded. Records of partition 0 from ")
    assert "(about 1024 offsets). Check for a slow store" in message
    assert result.status["tiering"]["summary"] == "MaxLagExceeded"
    # A few more records do not change the status.
    world.state.reports[key] = dataclasses.replace(late, high_watermark=1300)
    assert world.reconcile().status == result.status
    # An error of the leader is the cause.
    world.state.reports[key] = dataclasses.replace(late, error_reason="StoreUnreachable")
    assert (
        "The condition TieringSettled has the cause"
        in messages(world.reconcile())["TieringLagging"]
    )


def test_pause_of_copying_is_shown_without_a_maximum_lag() -> None:
    paused = {"tidemark.remote.copy.paused": "true"}
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3),
        topics=[topic(tiering_spec=ON, config=paused)],
        view=cluster(TIERED, **STORE),
    )
    result = world.reconcile()
    assert ready(result)["TieringLagging"] == ("True", "CopyingPaused")
    assert "No records wait. To resume, remove the field" in messages(result)["TieringLagging"]
    world.state.put_topic(dataclasses.replace(world.view(), config={}))
    assert "TieringLagging" not in ready(world.reconcile())


def test_figures_are_written_once_a_minute_and_everything_else_at_once() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(tiering_spec=ON)], view=cluster(TIERED, **STORE)
    )
    pacer = Pacer()
    old = world.reconcile()
    assert pacer.should_write("t", {}, old.status, now_ms=T0)
    world.state.reports[numbered_uuid(1), 0] = _report(segments=3)
    new = world.reconcile()
    assert new.status["tiering"] == {
        "state": "Enabled",
        "epoch": 0,
        "since": "2027-01-15T08:00:00Z",
        "remoteSegments": 3,
        "remoteBytes": 3000,
        "summary": "Enabled",
    }
    # The first figures of a topic need not wait for the interval.
    assert pacer.should_write("t", old.status, new.status, now_ms=T0 + 1), "the first at once"
    world.state.reports[numbered_uuid(1), 0] = _report(segments=4)
    more = world.reconcile()
    assert not pacer.should_write("t", new.status, more.status, now_ms=T0 + 60_000)
    assert pacer.should_write("t", new.status, more.status, now_ms=T0 + 60_001)
    changed = {**more.status, "observedGeneration": 2}
    assert pacer.should_write("t", more.status, changed, now_ms=T0 + 60_002)


def test_progress_of_a_disablement_is_written_every_five_seconds() -> None:
    pacer = Pacer()
    old = {"tiering": {"state": "Disabling", "remainingSegments": 9}}
    new = {"tiering": {"state": "Disabling", "remainingSegments": 8}}
    assert not pacer.should_write("t", old, new, now_ms=T0)
    assert not pacer.should_write("t", old, new, now_ms=T0 + 4_999)
    assert pacer.should_write("t", old, new, now_ms=T0 + 5_000)


def test_transition_times_move_only_with_the_status() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    world.reconcile(now_ms=T0)
    world.state.put_topic(dataclasses.replace(world.view(), generation=2))
    later = world.reconcile(now_ms=T0 + 60_000)
    conditions = later.status["conditions"]
    assert isinstance(conditions, list)
    assert {item["lastTransitionTime"] for item in conditions} == {"2027-01-15T08:00:00Z"}
    assert {item["observedGeneration"] for item in conditions} == {2}


def test_figures_survive_a_takeover() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(tiering_spec=ON)], view=cluster(TIERED, **STORE)
    )
    world.reconcile()
    world.state.reports[numbered_uuid(1), 0] = _report(segments=3)
    before = world.reconcile()
    # Reports are only in memory, and so are lost in a takeover.
    world.state.reports.clear()
    assert world.reconcile().status == before.status


def test_the_status_of_a_broker() -> None:
    world = ControllerWorld(brokers=_brokers(1), topics=[topic(replication_factor=1)])
    world.reconcile()
    world.state.health[1] = BrokerHealth(log_bytes=77)
    result = broker_status(world.state, world.state.brokers[1], now_ms=T0)
    body = json.loads(json.dumps(result.status))
    assert (body["brokerEpoch"], body["leaders"], body["replicas"], body["logBytes"]) == (
        101,
        1,
        1,
        77,
    )
    assert body["endpoints"] == [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9093}]
    assert ready(result)["Registered"][0] == "True"
    assert _main(result) == ("True", "False", "False")


@pytest.mark.parametrize(
    ("info", "health", "reason", "main"),
    [
        (
            BrokerInfo(node_id=1, key="k"),
            BrokerHealth(),
            "NeverRegistered",
            ("False", "True", "False"),
        ),
        (broker(1, fenced=True), BrokerHealth(), "Fenced", ("False", "True", "False")),
        (
            dataclasses.replace(broker(1), shutting_down=True),
            BrokerHealth(),
            "ShutDown",
            ("False", "True", "False"),
        ),
        (
            broker(1),
            BrokerHealth(storage_error="no space left", directory_error="no space left"),
            "LogDirectoryFailed",
            ("False", "False", "True"),
        ),
        (
            broker(1),
            BrokerHealth(storage_error="t-0: bad magic"),
            "ReplicasFailed",
            ("True", "False", "False"),
        ),
        (
            broker(1),
            BrokerHealth(remote_error="403"),
            "RemoteStorageUnavailable",
            ("True", "False", "False"),
        ),
    ],
)
def test_broker_conditions_by_problem(
    info: BrokerInfo, health: BrokerHealth, reason: str, main: tuple[str, str, str]
) -> None:
    world = ControllerWorld(brokers=[info])
    world.state.health[1] = health
    result = broker_status(world.state, info, now_ms=T0)
    assert ready(result)["Ready"][1] == reason
    assert _main(result) == main


def test_cluster_status_keeps_foreign_fields() -> None:
    view = cluster(TIERED, **STORE, status={"clusterId": "x", "slices": 64})
    world = ControllerWorld(
        brokers=[*_brokers(1, 2, 3), broker(4, fenced=True)],
        topics=[topic(1, tiering_spec=ON), topic(2)],
        view=view,
    )
    world.reconcile(1)
    world.reconcile(2)
    world.state.health[2] = BrokerHealth(remote_error="wrong key")
    result = cluster_status(world.state, generation=1, now_ms=T0)
    assert result.status["brokers"] == {"registered": 4, "fenced": 1}
    assert (result.status["tieredTopics"], result.status["slices"]) == (1, 64)
    assert ready(result)["RemoteStorageReady"] == ("False", "RemoteStorageUnavailable")
    assert _main(result) == ("True", "False", "False")


@pytest.mark.parametrize(("left", "stalled"), [(2**24, "False"), (2**24 - 1, "True")])
def test_exhaustion_of_epochs_is_reported_in_advance(left: int, stalled: str) -> None:
    world = ControllerWorld(brokers=[broker(1)])
    world.state.controller_epoch = EPOCH_MAX - left
    result = cluster_status(world.state, generation=1, now_ms=T0)
    assert _main(result) == ("True", "False", stalled)


def test_topic_with_placeholders_shows_at_once_that_all_others_are_in_sync() -> None:
    def replicas(in_sync: int) -> dict[str, object]:
        summary = f"{in_sync}/4"
        counts = {"desired": 4, "placed": 3, "inSync": in_sync, "placeholders": 1}
        return {"replicas": {**counts, "summary": summary}}

    pacer = Pacer()
    assert pacer.should_write("t", {}, replicas(1), now_ms=T0)
    # Progress is a figure. Its end is not: nothing would be written for a minute.
    assert not pacer.should_write("t", replicas(1), replicas(2), now_ms=T0 + 1_000)
    assert pacer.should_write("t", replicas(1), replicas(3), now_ms=T0 + 2_000)


def test_approximate_sizes_are_powers_of_two() -> None:
    sizes = (5, 1023, 1024, 5 << 20, 7 << 20, 9 << 20, 3 << 30, 5 << 40)
    texts = [approximate_bytes(size) for size in sizes]
    assert texts == [
        "5 bytes",
        "1,023 bytes",
        "about 1 KiB",
        "about 4 MiB",
        "about 4 MiB",
        "about 8 MiB",
        "about 2 GiB",
        "about 4 TiB",
    ]


# ---------------------------------------------------------------- leaders that cannot lead yet


def test_leader_waiting_for_the_tier_makes_its_topic_unready() -> None:
    world = ControllerWorld(
        brokers=_brokers(1, 2, 3), topics=[topic(tiering_spec=ON)], view=cluster(TIERED, **STORE)
    )
    world.reconcile()
    key = numbered_uuid(1), 0
    world.state.reports[key] = _report(segments=3)
    # Figures of the last report stay visible while the leader waits.
    figures = world.reconcile().status["tiering"]
    waiting = dataclasses.replace(_report(error="TierUnavailable"), offline=True)
    world.state.reports[key] = waiting
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "TierUnavailable")
    assert ready(result)["Reconciling"] == ("True", "TierUnavailable")
    assert messages(result)["Ready"] == "partition 0 is offline: it is too large"
    assert ready(result)["TieringSettled"] == ("False", "TierUnavailable")
    # kubectl's column shows the trouble in place of the state.
    assert result.status["tiering"] == {**figures, "summary": "TierUnavailable"}
    world.state.reports[key] = _report(segments=3)
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_report_of_a_former_leader_is_ignored() -> None:
    world = ControllerWorld(brokers=_brokers(1, 2, 3), topics=[topic()])
    world.reconcile()
    report = dataclasses.replace(_report(error="TierUnavailable"), offline=True, leader_epoch=-1)
    world.state.reports[numbered_uuid(1), 0] = report
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_an_offline_partition_proves_nothing_about_the_tier() -> None:
    world = ControllerWorld(
        brokers=_brokers(1),
        topics=[topic(replication_factor=1, **tiered(False, TieringState.DISABLED))],
        view=cluster(TIERED, **STORE),
    )
    world.reconcile()
    key = numbered_uuid(1), 0
    world.state.reports[key] = _report()
    assert not needs_tier(world.state, world.view())
    # A leader that could not read the tier cannot vouch that it is empty.
    world.state.reports[key] = dataclasses.replace(_report(), offline=True)
    assert needs_tier(world.state, world.view())
