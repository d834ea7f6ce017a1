"""Transition rules: immutable fields, and unchanged objects that must always be writable."""

from typing import Any

import pytest

from tests.integration.admission.api_server import (
    AdmissionApi,
    AdmissionRefused,
    Object,
    acl,
    azure_storage,
    broker,
    broker_in_a_pod,
    broker_pod,
    cluster,
    edited,
    export,
    gcs_storage,
    partition_slice,
    record_deletion,
    s3_storage,
    tiered_topic,
    topic,
    user,
)
from tidemark_operator.resources.names import API_VERSION

TOPIC_ID = "bwwKHlTUSlWLQz_z2aDwqg"


# A condition as the operator writes it.
def _condition(type_: str = "Ready") -> Object:
    return {
        "type": type_,
        "status": "True",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Settled",
        "message": "well",
    }


def _tiering(state: str, epoch: int, **more: Any) -> Object:
    return {"state": state, "epoch": epoch, **more}


def _topic_status(**fields: Any) -> Object:
    base = {
        "observedGeneration": 1,
        "controllerEpoch": 3,
        "topicId": TOPIC_ID,
        "replicas": {"desired": 9, "placed": 6, "inSync": 6, "placeholders": 3},
        "partitionsPlaced": 3,
        "conditions": [_condition()],
    }
    return {**base, **fields}


DISABLING = _tiering("Disabling", 2, policy="Retain", pendingBrokers=[3], remoteSegments=5)
# Every optional field is set, so that rules about any of them are evaluated.
FULL_TOPIC = tiered_topic(
    topicName="Flights",
    config={"retention.ms": 7200000, "cleanup.policy": "delete"},
    tiering={"enabled": False, "disablePolicy": "Retain", "localRetention": {"time": "1h"}},
)
CLUSTER_STATUS = {
    "observedGeneration": 1,
    "controller": {"identity": "a", "epoch": 3},
    "clusterId": "QEZgf1X9SuGZ3K1vG3pXwA",
    "storeId": "store",
    "acceptedStorage": {"filesystem": {"path": "/var/lib/tier"}},
    "slices": 64,
    "tieredTopics": 1,
    "brokers": {"registered": 3, "fenced": 0},
    "remoteBytes": 17,
    "nextProducerId": 1000,
    "leftBehind": [{"topicName": "a", "topicId": TOPIC_ID, "since": "2026-01-01T00:00:00Z"}],
    "conditions": [_condition()],
}
BROKER_STATUS = {
    "observedGeneration": 1,
    "controllerEpoch": 3,
    "brokerEpoch": 40,
    "incarnationId": "6f0c0a1e-54d4-4a55-8b43-3ff3d9a0f0aa",
    "directoryId": "6f0c0a1e-54d4-4a55-8b43-3ff3d9a0f0ab",
    "endpoints": [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092}],
    "leaders": 1,
    "replicas": 3,
    "logBytes": 17,
    "conditions": [_condition(), _condition("Registered"), _condition("Draining")],
}
DELETION_STATUS = {
    "observedGeneration": 1,
    "controllerEpoch": 3,
    "topicId": TOPIC_ID,
    "resolved": [{"partition": 0, "offset": 10, "leaderEpoch": 2}],
    "partitions": [{"partition": 0, "lowWatermark": 4}, {"partition": 1, "error": "timed out"}],
    "records": 10,
    "bytes": 1000,
    "startTime": "2026-01-01T00:00:00Z",
    "completionTime": "2026-01-01T00:00:01Z",
    "conditions": [_condition("Succeeded")],
}

PASSWORD = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}}
USER_STATUS = {
    "observedGeneration": 1,
    "controllerEpoch": 3,
    "username": "user",
    "secret": "user",
    "conditions": [_condition()],
}

FIELDS = {"format": "json", "fields": "id BIGINT"}
FULL_EXPORT = export(
    table={
        "format": "iceberg",
        "schema": FIELDS,
        "deadLetters": "db.dlq",
        "mode": "append",
        "partition": "day",
        "keyBuckets": 4,
        "properties": {"a": "b"},
        "catalog": {"type": "rest", "uri": "https://catalog.example"},
    },
    source={"tier": "auto", "options": {"failOnDataLoss": "false"}},
    continuous={"interval": "30s"},
    maintenance={"schedule": "@daily", "expireSnapshots": {"olderThan": "24h", "keepLast": 3}},
    job={"image": "i", "conf": {"spark.driver.memory": "2g"}},
)
EXPORT_STATUS = {
    "observedGeneration": 1,
    "controllerEpoch": 3,
    "topicId": TOPIC_ID,
    "run": {
        "number": 2,
        "generation": 1,
        "order": "0123abcd",
        "startTime": "2026-01-01T00:00:00Z",
        "endTime": "2026-01-01T00:00:01Z",
        "outcome": "Failed",
    },
    "failures": 1,
    "lastFailure": "no",
    "lag": 4,
    "rows": 17,
    "deadLetters": 1,
    "lastCommitTime": "2026-01-01T00:00:00Z",
    "currentTime": "2026-01-01T00:00:00Z",
    "observedTime": "2026-01-01T00:00:03Z",
    "lagSeconds": 3,
    "exportedOffsets": 13,
    "cost": {"cpuSeconds": 40, "writtenBytes": 900, "cpuSecondsPerGigabyte": 44_444_444},
    "conditions": [_condition(), _condition("Exporting")],
}

#: A full status for each kind and state in which a rule of the root compares spec and status.
UNCHANGED: dict[str, tuple[Object, Object | None]] = {
    "Topic, Enabled": (tiered_topic(), _topic_status(tiering=_tiering("Enabled", 1))),
    "Topic, Disabling": (FULL_TOPIC, _topic_status(tiering=DISABLING)),
    "Topic, Disabled": (
        topic(),
        _topic_status(tiering=_tiering("Disabled", 2, policy="Delete", remoteSegments=0)),
    ),
    "Topic without status": (topic(), None),
    "compacted Topic": (topic(config={"cleanup.policy": "compact"}), _topic_status()),
    "Broker": (broker(rack="a"), BROKER_STATUS),
    "Broker in a pod": (broker_in_a_pod(), BROKER_STATUS),
    "Cluster": (cluster(), CLUSTER_STATUS),
    "Cluster with S3": (cluster(remoteStorage=s3_storage(prefix="p")), CLUSTER_STATUS),
    "RecordDeletion": (
        record_deletion(partitions=[{"partition": 0, "beforeOffset": 1}]),
        DELETION_STATUS,
    ),
    "User": (
        user(
            authentication={"type": "scram-sha-256", "password": PASSWORD},
            authorization={"acls": [acl(), acl("Cluster", "Create")]},
            quotas={"producerByteRate": 1},
        ),
        USER_STATUS,
    ),
    "Export": (FULL_EXPORT, EXPORT_STATUS),
    "Export of records": (export(schedule="@daily", timeZone="UTC"), EXPORT_STATUS),
    "Export without status": (export(), None),
    "PartitionSlice": (partition_slice(), None),
}


def _live(api: AdmissionApi, body: Object, status: Object | None) -> Object:
    """The object as created, with its status written, under a name that is free."""
    created = api.create({**body, "metadata": {"generateName": "update-"}})
    return created if status is None else api.replace_status(created, status)


@pytest.mark.parametrize(("body", "status"), UNCHANGED.values(), ids=UNCHANGED.keys())
def test_unchanged_object_can_be_written(
    api: AdmissionApi, body: Object, status: Object | None
) -> None:
    """Otherwise a finalizer could never be removed."""
    # A write without a change, with and without a finalizer.
    live = _live(api, body, status)
    live = api.replace(live)
    with_finalizer = api.replace(edited(live, "metadata.finalizers", ["tidemark.dev/test"]))
    if status is not None:
        with_finalizer = api.replace_status(with_finalizer, with_finalizer["status"])
        with_finalizer = api.replace_status(
            with_finalizer, {**with_finalizer["status"], "conditions": [_condition("Stalled")]}
        )
    # Deletion with a finalizer: the object must stay writable until it is removed.
    api.delete(with_finalizer)
    deleting = api.get(with_finalizer)
    assert deleting["metadata"]["deletionTimestamp"]
    api.replace(edited(deleting, "metadata.finalizers", []))


@pytest.mark.parametrize(("body", "status"), UNCHANGED.values(), ids=UNCHANGED.keys())
def test_finalizer_by_server_side_apply(
    api: AdmissionApi, body: Object, status: Object | None
) -> None:
    live = _live(api, body, status)
    # A claim of the finalizer only, as controllers apply it.
    claim = {
        "apiVersion": API_VERSION,
        "kind": live["kind"],
        "metadata": {"name": live["metadata"]["name"], "finalizers": ["tidemark.dev/test"]},
    }
    with_finalizer = api.apply(claim, manager="tidemark-test")
    assert with_finalizer["metadata"]["finalizers"] == ["tidemark.dev/test"]
    # Without the field the same manager gives the finalizer up.
    freed = api.apply(edited(claim, "metadata.finalizers", ...), manager="tidemark-test")
    assert not freed["metadata"].get("finalizers")
    api.delete(freed)


IN_PROGRESS = "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS: spec.tiering cannot change while"
# The tier's contents decide whether a topic may become compacted.
ENABLED_WITH_DATA = _topic_status(tiering=_tiering("Enabled", 1, remoteSegments=4))
RETAINED = _topic_status(tiering=_tiering("Disabled", 2, policy="Retain", remoteSegments=4))
EMPTIED = _topic_status(tiering=_tiering("Disabled", 2, policy="Retain", remoteSegments=0))

#: Object, status, field, new value (``...`` removes it), and the message (None if accepted).
Change = tuple[Object, Object | None, str, object, str | None]
CHANGES: dict[str, Change] = {
    # ------------------------------------------------------------------ Topic
    "more partitions": (topic(), None, "spec.partitions", 4, None),
    "more partitions of a coordinators' topic": (
        topic(topicName="__consumer_offsets", config={"cleanup.policy": "compact"}),
        None, "spec.partitions", 4, "the number of partitions of this internal topic is immutable",
    ),
    "fewer partitions, none of which exists": (topic(), None, "spec.partitions", 2, None),
    "fewer partitions of a Topic that waits": (
        topic(), {"controllerEpoch": 1}, "spec.partitions", 1, None
    ),
    "fewer partitions than exist": (
        topic(), _topic_status(partitionsPlaced=3), "spec.partitions", 2, "partitions cannot be"
    ),
    "fewer added partitions, as many as exist": (
        topic(), _topic_status(partitionsPlaced=2), "spec.partitions", 2, None
    ),
    "fewer added partitions than exist": (
        topic(), _topic_status(partitionsPlaced=2), "spec.partitions", 1, "partitions cannot be"
    ),
    "fewer partitions of a topic that exists": (
        topic(), {"topicId": TOPIC_ID}, "spec.partitions", 2, "partitions cannot be"
    ),
    "more replicas": (topic(), None, "spec.replicationFactor", 5, None),
    "another cluster": (topic(), None, "spec.clusterRef.name", "b", "clusterRef is immutable"),
    "another name": (
        topic(topicName="a"), None, "spec.topicName", "b", "the topic name is immutable"
    ),
    "name from unset to set": (
        topic(), None, "spec.topicName", "b", "the topic name is immutable"
    ),
    "name from set to unset": (
        topic(topicName="a"), None, "spec.topicName", ..., "the topic name is immutable"
    ),
    "config while Disabling": (
        FULL_TOPIC, _topic_status(tiering=DISABLING), "spec.config.flush/ms", 5, None
    ),
    "partitions while Disabling": (
        FULL_TOPIC, _topic_status(tiering=DISABLING), "spec.partitions", 4, None
    ),
    "enable while Disabling": (
        FULL_TOPIC, _topic_status(tiering=DISABLING), "spec.tiering.enabled", True, IN_PROGRESS
    ),
    "policy while Disabling": (
        FULL_TOPIC,
        _topic_status(tiering=DISABLING),
        "spec.tiering.disablePolicy",
        "Delete",
        IN_PROGRESS,
    ),
    "local retention while Disabling": (
        FULL_TOPIC,
        _topic_status(tiering=DISABLING),
        "spec.tiering.localRetention",
        ...,
        IN_PROGRESS,
    ),
    "block removed while Disabling": (
        FULL_TOPIC, _topic_status(tiering=DISABLING), "spec.tiering", ..., IN_PROGRESS
    ),
    "block added while Disabling": (
        topic(), _topic_status(tiering=DISABLING), "spec.tiering", {"enabled": True}, IN_PROGRESS
    ),
    "disable while Enabled": (
        tiered_topic(), ENABLED_WITH_DATA, "spec.tiering.enabled", False, None
    ),
    "Delete after Retain": (
        FULL_TOPIC, RETAINED, "spec.tiering.disablePolicy", "Delete", None
    ),
    "compaction with data in the tier": (
        topic(tiering={"enabled": False}),
        RETAINED,
        "spec.config.cleanup/policy",
        "compact",
        "cleanup.policy cannot become compact while the topic has data in the remote tier",
    ),
    "compaction while the contents of the tier are unknown": (
        topic(tiering={"enabled": False}),
        _topic_status(tiering=_tiering("Disabled", 2, policy="Delete")),
        "spec.config.cleanup/policy",
        "compact",
        "cleanup.policy cannot become compact while the topic has data in the remote tier",
    ),
    "compaction once the tier is empty": (
        topic(tiering={"enabled": False}), EMPTIED, "spec.config.cleanup/policy", "compact", None
    ),
    "compaction while tiered": (
        tiered_topic(),
        ENABLED_WITH_DATA,
        "spec.config.cleanup/policy",
        "compact",
        "a compacted topic cannot be tiered",
    ),
    "disabling and compaction in one apply": (
        tiered_topic(),
        ENABLED_WITH_DATA,
        "spec",
        {**topic()["spec"], "config": {"cleanup.policy": "compact"}},
        "cleanup.policy cannot become compact while the topic has data in the remote tier",
    ),
    # ------------------------------------------------------------------ Broker
    "another node id": (broker(), None, "spec.nodeId", 2, "nodeId is immutable"),
    "another rack": (broker(), BROKER_STATUS, "spec.rack", "b", None),
    "broker that becomes a Reader": (
        broker(), BROKER_STATUS, "spec.role", "Reader", "role is immutable"
    ),
    "role that is written out": (broker(), BROKER_STATUS, "spec.role", "Broker", None),
    "Reader that becomes a broker": (
        broker(role="Reader"), None, "spec.role", "Broker", "role is immutable"
    ),
    "Reader that is drained": (broker(role="Reader"), None, "spec.drain", True, None),
    "broker that moves into a pod": (
        broker(),
        None,
        "spec",
        {**broker()["spec"], "workload": "Pod", "pod": broker_pod()},
        "workload is immutable",
    ),
    "volume that grows": (
        broker_in_a_pod(storage={"size": "1Gi"}), None, "spec.pod.storage.size", "1025Mi", None
    ),
    "volume that shrinks": (
        broker_in_a_pod(storage={"size": "1Gi"}),
        None,
        "spec.pod.storage.size",
        "1023Mi",
        "a volume cannot shrink",
    ),
    "volume of another class": (
        broker_in_a_pod(),
        None,
        "spec.pod.storage.storageClassName",
        "fast",
        "storageClassName is immutable",
    ),
    "volume of all that a cluster makes that shrinks": (
        cluster(brokers={"replicas": 1, "template": broker_pod()}),
        None,
        "spec.brokers.template.storage.size",
        "1Gi",
        "a volume cannot shrink",
    ),
    "broker of another cluster": (
        broker(), None, "spec.clusterRef.name", "b", "clusterRef is immutable"
    ),
    # ------------------------------------------------------------------ Cluster
    "tier removed while in use": (
        cluster(),
        CLUSTER_STATUS,
        "spec.remoteStorage",
        ...,
        "remoteStorage cannot be removed while topics have data in it",
    ),
    "tier removed": (
        cluster(), {**CLUSTER_STATUS, "tieredTopics": 0}, "spec.remoteStorage", ..., None
    ),
    "tier removed before the first status": (cluster(), None, "spec.remoteStorage", ..., None),
    "tier added": (
        edited(cluster(), "spec.remoteStorage", ...),
        {**CLUSTER_STATUS, "tieredTopics": 0},
        "spec.remoteStorage",
        s3_storage(),
        None,
    ),
    "path changed while in use": (
        cluster(),
        CLUSTER_STATUS,
        "spec.remoteStorage.filesystem.path",
        "/elsewhere",
        "endpoint, prefix and path cannot change",
    ),
    "kind of tier changed while in use": (
        cluster(), CLUSTER_STATUS, "spec.remoteStorage", s3_storage(), "path cannot change"
    ),
    "endpoint changed while in use": (
        cluster(remoteStorage=s3_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage.s3.endpoint",
        "http://127.0.0.1:9001",
        "endpoint, prefix and path cannot change",
    ),
    "prefix added while in use": (
        cluster(remoteStorage=s3_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage.s3.prefix",
        "p",
        "endpoint, prefix and path cannot change",
    ),
    "bucket dropped while in use": (
        cluster(remoteStorage=s3_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage.s3.buckets",
        ["two-bucket"],
        "no bucket or container can be dropped",
    ),
    "container dropped while in use": (
        cluster(remoteStorage=azure_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage.azure.containers",
        ["two"],
        "no bucket or container can be dropped",
    ),
    "account changed while in use": (
        cluster(remoteStorage=azure_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage.azure.account",
        "another",
        "account, endpoint, prefix and path cannot change",
    ),
    "cloud changed while in use": (
        cluster(remoteStorage=gcs_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage",
        azure_storage(),
        "account, endpoint, prefix and path cannot change",
    ),
    "container added while in use": (
        cluster(remoteStorage=azure_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage.azure.containers",
        ["one", "two", "three"],
        None,
    ),
    "bucket added while in use": (
        cluster(remoteStorage=s3_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage.s3.buckets",
        ["two-bucket", "one-bucket", "three-bucket"],
        None,
    ),
    "other credentials while in use": (
        cluster(remoteStorage=s3_storage()),
        CLUSTER_STATUS,
        "spec.remoteStorage.s3.credentialsSecretRef.name",
        "newer-keys",
        None,
    ),
    # ------------------------------------------------------------------ RecordDeletion
    "anything of a deletion": (
        record_deletion(all={"beforeOffset": -1}),
        None,
        "spec.timeout",
        "1h",
        "the spec is immutable, because a RecordDeletion runs once",
    ),
    "label of a deletion": (
        record_deletion(all={"beforeOffset": -1}),
        DELETION_STATUS,
        "metadata.labels",
        {"a": "b"},
        None,
    ),
    # ------------------------------------------------------------------ User
    "another way to prove it": (user(), USER_STATUS, "spec.authentication", {"type": "tls"}, None),
    "user of another cluster": (
        user(), None, "spec.clusterRef.name", "b", "clusterRef is immutable"
    ),
    "authorization switched on": (
        cluster(), CLUSTER_STATUS, "spec.authorization", {"type": "simple"}, None
    ),
    # ------------------------------------------------------------------ Export
    "export of another topic": (
        export(), None, "spec.topicRef.name", "others", "topicRef is immutable"
    ),
    "export to another table": (
        export(), EXPORT_STATUS, "spec.table.name", "db.other", "table.name is immutable"
    ),
    "export to another warehouse": (
        export(), None, "spec.table.warehouse", "/other", "table.warehouse is immutable"
    ),
    "export without its warehouse": (
        FULL_EXPORT, None, "spec.table.warehouse", ..., "table.warehouse is immutable"
    ),
    "export to another format": (
        export(), None, "spec.table.format", "delta", "table.format is immutable"
    ),
    "export partitioned otherwise": (
        export(), None, "spec.table.partition", "hour", "table.partition is immutable"
    ),
    "export sorted otherwise": (
        export(), None, "spec.table.sortBy", [{"column": "key"}], "table.sortBy is immutable"
    ),
    "export with other dead letters": (
        FULL_EXPORT, None, "spec.table.deadLetters", ..., "table.deadLetters is immutable"
    ),
    "export in another mode": (
        export(), None, "spec.table.mode", "upsert", "table.mode is immutable"
    ),
    "export of records becomes one of fields": (
        export(), None, "spec.table.schema", FIELDS, "table.schema cannot be added or removed"
    ),
    "export of fields becomes one of records": (
        FULL_EXPORT, None, "spec.table.schema", ..., "table.schema cannot be added or removed"
    ),
    "export with a field more": (
        FULL_EXPORT, None, "spec.table.schema.fields", "id BIGINT, name STRING", None
    ),
    "export of JSON becomes one of Avro": (
        FULL_EXPORT,
        None,
        "spec.table.schema",
        {"format": "avro", "definition": "{}"},
        "table.schema cannot be added or removed, and its format is immutable",
    ),
    "export that grows from now on": (
        FULL_EXPORT, None, "spec.table.schema.evolution", "grow", None
    ),
    "export whose catalog has moved": (
        FULL_EXPORT, EXPORT_STATUS, "spec.table.catalog.uri", "https://other.example", None
    ),
    "export at another time": (
        export(schedule="@daily"), EXPORT_STATUS, "spec.schedule", "@hourly", None
    ),
    "export is suspended": (FULL_EXPORT, EXPORT_STATUS, "spec.suspend", True, None),
    # ------------------------------------------------------------------ PartitionSlice
    "slice, next commit": (partition_slice(), None, "commit", 11, None),
    "slice, commit goes back": (partition_slice(), None, "commit", 9, "commit never goes back"),
    "slice, higher epoch": (partition_slice(), None, "controllerEpoch", 6, None),
    "slice, lower epoch": (partition_slice(), None, "controllerEpoch", 4, "STALE_CONTROLLER_EPOCH"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "path", "value", "message"), CHANGES.values(), ids=CHANGES.keys()
)
def test_change_is_accepted_or_refused(
    api: AdmissionApi,
    body: Object,
    status: Object | None,
    path: str,
    value: object,
    message: str | None,
) -> None:
    live = _live(api, body, status)
    changed = edited(live, path, value)
    if message is None:
        api.replace(changed)
    else:
        with pytest.raises(AdmissionRefused) as refusal:
            api.replace(changed)
        assert message in str(refusal.value)
    api.delete(live)


def test_the_scale_subresource_of_a_cluster_sets_its_readers(api: AdmissionApi) -> None:
    """Support ``kubectl scale`` and autoscalers, even if the manifest has no readers."""
    made = api.create(cluster(brokers={"replicas": 3, "template": broker_pod()}))
    assert api.scale(made, 2)["spec"]["replicas"] == 2
    made = api.get(made)
    assert (made["spec"]["readers"], made["spec"]["brokers"]["replicas"]) == ({"replicas": 2}, 3)
    # Autoscalers read the present number and the labels of the pods.
    status = {"readers": {"replicas": 1, "ready": 1, "selector": "a=b"}}
    api.replace_status(made, {**made["status"], **status})
    assert api.scale(made, 3)["status"] == {"replicas": 1, "selector": "a=b"}
    with pytest.raises(AdmissionRefused, match=r"readers require brokers"):
        api.scale(api.create(cluster()), 1)
