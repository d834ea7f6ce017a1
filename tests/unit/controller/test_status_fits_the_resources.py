"""The resources' models, and so the API server's schemas, accept every status of the core."""

import dataclasses
import json

from tests.unit.controller.controller_world import (
    KIP_409,
    T0,
    TIERED,
    ControllerWorld,
    acknowledge,
    broker,
    cluster,
    numbered_uuid,
    topic,
)
from tidemark.wire.deletions import DeletionPoint, DeletionPointQuery, PartitionDeletionResult
from tidemark_operator.controller import record_deletion, tiering_disablement
from tidemark_operator.controller.record_deletion import (
    ALL_PARTITIONS,
    NO_LEADER_EPOCH,
    DeletionInfo,
    Resolve,
)
from tidemark_operator.controller.state import commit
from tidemark_operator.controller.state.model import TieringSpec
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.controller.status import (
    broker_status,
    cluster_status,
    deletion_status,
    user_status,
)
from tidemark_operator.controller.status.user import UserProblem, UserView
from tidemark_operator.resources.broker import BrokerStatus
from tidemark_operator.resources.cluster import ClusterStatus
from tidemark_operator.resources.record_deletion import RecordDeletionStatus
from tidemark_operator.resources.topic import TopicStatus
from tidemark_operator.resources.user import UserStatus


def _world() -> ControllerWorld:
    return ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(tiering_spec=TieringSpec(enabled=True), partitions=2)],
        view=cluster(KIP_409 | TIERED, remote_storage="{}"),
    )


def test_topics() -> None:
    world = _world()
    statuses = [world.reconcile()]
    world.state.put_topic(
        # Enabled, disabling, and disabled after the acknowledgements.
        dataclasses.replace(world.view(), tiering_spec=TieringSpec(), generation=2)
    )
    statuses += [world.reconcile(), world.reconcile()]
    requests = tiering_disablement.requests(world.state, world.view(), world.disablements)
    for node_id, request in requests.items():
        answer = acknowledge(world, node_id, request)
        world.disablements.take(world.state, request.topic_id, node_id, answer, now_ms=T0)
    statuses.append(world.reconcile())
    states = []
    for result in statuses:
        parsed = TopicStatus.model_validate(json.loads(json.dumps(result.status)))
        assert parsed.dump() == result.status, "read and written again it is the same"
        states.append(None if parsed.tiering is None else parsed.tiering.state.value)
    assert states == ["Enabled", "Disabling", "Disabling", "Disabled"]


def test_brokers_and_clusters() -> None:
    world = _world()
    world.reconcile()
    result = broker_status(world.state, world.state.brokers[1], now_ms=T0)
    assert BrokerStatus.model_validate(result.status).dump() == result.status
    cluster_result = cluster_status(world.state, generation=1, now_ms=T0)
    assert ClusterStatus.model_validate(cluster_result.status).dump() == cluster_result.status


def test_record_deletions() -> None:
    world = _world()
    world.reconcile()
    view = DeletionInfo(
        key="ns/purge",
        uid=numbered_uuid(5),
        generation=1,
        topic_key="ns/topic-1",
        targets=(DeletionPointQuery(partition=ALL_PARTITIONS, leader_epoch=NO_LEADER_EPOCH),),
        created_ms=T0,
    )
    step = record_deletion.next_step(world.state, view, now_ms=T0)
    assert isinstance(step, Resolve)
    answers = [
        DeletionPoint(
            partition=query.partition,
            log_start_offset=0,
            high_watermark=7,
            offset=7,
            last_epoch=0,
            size_bytes=query.partition - 1,
        )
        for led in step.queries.values()
        for query in led
    ]
    frozen = record_deletion.freeze(world.state, view, step, answers, now_ms=T0)
    assert isinstance(frozen, DeletionInfo)
    # One partition succeeds and another one fails, for all optional fields.
    done = PartitionDeletionResult(partition=0, low_watermark=7)
    failed = PartitionDeletionResult(partition=1, error_code=6)
    after = record_deletion.record(frozen, [done, failed])
    for made in (view, frozen, after):
        next_step = record_deletion.next_step(world.state, made, now_ms=T0)
        result = deletion_status(world.state, made, next_step, now_ms=T0)
        assert RecordDeletionStatus.model_validate(result.status).dump() == result.status


def test_longest_row_fits_the_slice_schema() -> None:
    world = _world()
    made = topic(7, partitions=1, replication_factor=100, name="n" * 249)
    world.state.put_topic(made)
    world.decide(7)
    texts = [text for content in world.state.slices for text in content.encoded.values()]
    text = next(text for text in texts if "nnn" in text)
    # The limits of the PartitionSlice's CRD.
    assert len(text) < 2048
    assert commit.SLICE_BYTES_MAX <= 1024 * 1024


def test_users() -> None:
    world = _world()
    user = UserInfo(key="ns/alice", uid="u", username="alice", generation=1)
    # A usable, a refused, an omitted and an unacknowledged user.
    views = (
        UserView(secret="alice"),
        UserView(problem=UserProblem("SecretTaken", "it is theirs")),
        UserView(is_left_out=True),
        UserView(secret="alice", behind=(1, 2)),
    )
    for view in views:
        result = user_status(world.state, user, view, now_ms=T0)
        parsed = UserStatus.model_validate(json.loads(json.dumps(result.status)))
        assert parsed.dump() == result.status
        user = dataclasses.replace(user, status=result.status)
    assert "secret" not in user_status(world.state, user, UserView(), now_ms=T0).status
