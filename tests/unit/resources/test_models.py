"""Reading objects as the API serves them, and dumping parts for it."""

import datetime
import uuid
from typing import Any

import pytest

from tidemark_operator.resources.broker import Broker
from tidemark_operator.resources.cluster import Cluster, ClusterStatus, ControllerStatus
from tidemark_operator.resources.conditions import READY, Condition, ConditionStatus, find_condition
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.names import slice_name
from tidemark_operator.resources.partition_slice import PartitionSlice
from tidemark_operator.resources.record_deletion import RecordDeletion
from tidemark_operator.resources.scalars import ms_of_time, time_text
from tidemark_operator.resources.topic import DisablePolicyName, TieringStateName, Topic


def _object(kind: str, spec: dict[str, Any], **rest: Any) -> dict[str, Any]:
    metadata = {
        "name": "thing",
        "namespace": "default",
        "uid": "6f0c0a1e-54d4-4a55-8b43-3ff3d9a0f0aa",
        "generation": 3,
        "resourceVersion": "17",
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"tidemark.dev/paused": "true"},
    }
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
        **rest,
    }


TOPIC_SPEC: dict[str, Any] = {
    "clusterRef": {"name": "demo"},
    "partitions": 3,
    "replicationFactor": 2,
    "config": {"retention.ms": 604800000, "cleanup.policy": "delete"},
    "tiering": {"enabled": True, "localRetention": {"time": "1h", "size": 1048576}},
}


def test_topic_with_all_fields_is_parsed() -> None:
    status = {
        "observedGeneration": 2,
        "topicId": "bwwKHlTUSlWLQz_z2aDwqg",
        "tiering": {"state": "Disabling", "epoch": 2, "policy": "Delete", "pendingBrokers": [3]},
        "conditions": [
            {
                "type": "Ready",
                "status": "Unknown",
                "reason": "Pending",
                "message": "",
                "lastTransitionTime": "1970-01-01T00:00:00Z",
            }
        ],
        # A newer operator may have written it, so it must be ignored.
        "aFieldOfALaterVersion": 1,
    }
    topic = Topic.parse(_object("Topic", TOPIC_SPEC, status=status))
    assert topic.metadata.key == "default/thing"
    assert topic.metadata.uid == uuid.UUID("6f0c0a1e-54d4-4a55-8b43-3ff3d9a0f0aa")
    assert topic.metadata.generation == 3
    assert not topic.metadata.is_deleting
    assert topic.topic_name == "thing"
    assert topic.spec.tiering_enabled
    assert topic.spec.config == {"retention.ms": "604800000", "cleanup.policy": "delete"}
    assert topic.status.tiering is not None
    assert topic.status.tiering.state is TieringStateName.DISABLING
    assert topic.status.tiering.policy is DisablePolicyName.DELETE
    assert find_condition(topic.status.conditions, READY) is not None
    assert find_condition(topic.status.conditions, "Stalled") is None


def test_dumped_status_omits_unset_fields() -> None:
    condition = Condition(
        type=READY,
        status=ConditionStatus.TRUE,
        observed_generation=3,
        last_transition_time=datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC),
        reason="Settled",
        message="3 partitions",
    )
    status = Topic.parse(_object("Topic", TOPIC_SPEC)).status
    # Only what the operator has set is written, in the API's camel case.
    dumped = status.model_copy(update={"observed_generation": 3, "conditions": (condition,)}).dump()
    assert dumped == {
        "observedGeneration": 3,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "observedGeneration": 3,
                "lastTransitionTime": "2023-11-14T22:13:20Z",
                "reason": "Settled",
                "message": "3 partitions",
            }
        ],
    }


def test_unknown_field_of_a_spec_is_an_error_with_its_path() -> None:
    spec = {**TOPIC_SPEC, "tiering": {"enabled": True, "localRetension": {}}}
    with pytest.raises(InvalidResource, match=r"Topic thing: spec\.tiering\.localRetension"):
        Topic.parse(_object("Topic", spec))


@pytest.mark.parametrize("value", [True, 1.5, None, ["x"]])
def test_config_value_must_be_text_or_whole_number(value: object) -> None:
    with pytest.raises(InvalidResource, match=r"spec\.config\.retention\.ms"):
        Topic.parse(_object("Topic", {**TOPIC_SPEC, "config": {"retention.ms": value}}))


def test_broker() -> None:
    spec = {"clusterRef": {"name": "demo"}, "nodeId": 1, "rack": "a", "workload": "External"}
    broker = Broker.parse(_object("Broker", spec))
    assert (broker.spec.node_id, broker.spec.rack) == (1, "a")
    assert broker.status.dump() == {"endpoints": [], "conditions": []}


def test_cluster() -> None:
    spec = {
        "config": {"log.retention.ms": 1000},
        "remoteStorage": {"filesystem": {"path": "/var/lib/tier"}},
    }
    cluster = Cluster.parse(_object("Cluster", spec))
    assert cluster.spec.remote_storage is not None
    assert cluster.spec.remote_storage.s3 is None
    status = ClusterStatus(controller=ControllerStatus(identity="me", epoch=4), slices=64)
    assert status.dump() == {
        "controller": {"identity": "me", "epoch": 4},
        "slices": 64,
        "conditions": [],
    }


def test_partition_slice() -> None:
    body = _object("PartitionSlice", {}, controllerEpoch=2, commit=9, partitions=["row"])
    del body["spec"]
    # Lists that are absent in the object read as empty.
    piece = PartitionSlice.parse(body)
    assert (piece.controller_epoch, piece.commit, piece.partitions) == (2, 9, ("row",))
    assert piece.tombstones == ()
    assert slice_name("demo", 7) == "demo-07"


@pytest.mark.parametrize(
    "scope",
    [
        {"all": {"beforeTime": "2013-07-01T00:00:00Z"}},
        {"all": {"beforeOffset": -1}},
        {"partitions": [{"partition": 0, "beforeOffset": 10}]},
    ],
)
def test_record_deletion(scope: dict[str, Any]) -> None:
    deletion = RecordDeletion.parse(
        _object("RecordDeletion", {"topicRef": {"name": "flights"}, **scope})
    )
    assert deletion.spec.dump() == {"topicRef": {"name": "flights"}, **scope}


@pytest.mark.parametrize(
    "scope",
    [
        # No scope, two scopes, incomplete ones, and times without a zone or before 1970.
        {},
        {"all": {"beforeOffset": -1}, "partitions": [{"partition": 0, "beforeOffset": 10}]},
        {"all": {}},
        {"partitions": [{"partition": 0}]},
        {"partitions": [{"partition": 0, "beforeOffset": 1, "beforeTime": "2013-07-01T00:00:00Z"}]},
        {"all": {"beforeTime": "2013-07-01T00:00:00"}},
        {"all": {"beforeTime": "1969-12-31T23:59:59.999Z"}},
        {"all": {"beforeTime": "0001-01-01T00:00:00+14:00"}},
        {"partitions": [{"partition": 0, "beforeTime": "1969-12-31T23:59:59.999Z"}]},
    ],
)
def test_ambiguous_record_deletion_is_refused(scope: dict[str, Any]) -> None:
    with pytest.raises(InvalidResource):
        RecordDeletion.parse(_object("RecordDeletion", {"topicRef": {"name": "flights"}, **scope}))


def test_times_keep_milliseconds() -> None:
    time = datetime.datetime(2013, 7, 1, microsecond=123_000, tzinfo=datetime.UTC)
    assert time_text(time) == "2013-07-01T00:00:00.123Z"
    assert ms_of_time(time) == 1_372_636_800_123
    # Times are normalized to UTC.
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert time_text(datetime.datetime(2013, 7, 1, 2, tzinfo=zone)) == "2013-07-01T00:00:00Z"
