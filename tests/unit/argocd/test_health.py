"""Argo CD's health of an object, for every reason of a condition and for the operator's own
statuses.

A new reason (``tidemark/reason_table.py``) fails this until :data:`VERDICTS` contains it.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import lua
from tests.argocd import states
from tests.argocd.states import GENERATION
from tests.unit.controller.controller_world import (
    KIP_409,
    T0,
    TIERED,
    ControllerWorld,
    broker,
    cluster,
    numbered_uuid,
    topic,
)
from tidemark.reason_table import TABLE
from tidemark_operator.controller.record_deletion import DeletionInfo, DeletionWait, Finished
from tidemark_operator.controller.state.model import TieringSpec
from tidemark_operator.controller.status import broker_status, cluster_status, deletion_status
from tidemark_operator.controller.status.conditions import condition, render, summary
from tools import argocd_files

ROOT = Path(__file__).parents[3]
#: By the headings of the table of reasons. Additional conditions are judged beside good ones.
VERDICTS = {
    "Topic": {
        "Healthy": "Serving Settled Progressing Stalled AllInSync Enabled Disabled "
        "ReplicationFactorChanging Placeholders UnderMinIsr ReplicasBehind AuditPassed DamageFound "
        "ManifestContradicts NotAudited AuditOutdated MinInsyncReplicasTooHigh "
        "WithinMaxLag MaxLagExceeded CopyingPaused",
        "Progressing": "Pending BrokersMissing Placing LeadersStarting PartitionsOffline "
        "ElectionPending StorageFailed Deleting DeletionPending Adopting Rebuilding Disabling",
        "Suspended": "Paused",
        "Degraded": "LastCopyMissing NameTaken AdoptionRequired AdoptionRefused SliceFull "
        "PartitionsBeyondSpec "
        "ReplicationFactorPending StorageUnavailable LocalRetentionTooLong CopyLagTooLong "
        "Compacted NoProgress "
        "ObjectDamaged",
    },
    # A topic is served although its tier cannot be read or written. What a leader cannot do without
    # the tier is in Ready.
    "Topic, as the leaders report of the tier": {
        "Healthy": "TierIntegrity CustomMetadataTooLarge LocalDataMissing LogDiverged "
        "ManifestNotFound ManifestPageNotFound ManifestCorrupt ManifestRefused ManifestContended "
        "ObjectVersionUnsupported "
        "RemoteObjectMissing Fenced TopicDeleted RemoteLogError RemoteStorageNotConfigured "
        "RemoteStorageNotVerified InvalidRemoteStorage WrongStore BucketMissing "
        "BucketNotConfigured EncryptionKeyMissing EncryptionKeyUnavailable ForeignCustomMetadata "
        "StoreAccessDenied StoreFull StoreCredentialsMissing "
        "StorePermissionDenied StoreNotAFile StoreInputOutputError RemoteStorageUnavailable "
        "StoreNotS3 StoreUnreachable StoreThrottled StoreClockSkewed StoreWithoutETags StoreError "
        "StoreDirectoryMissing "
        "StoreWithoutConditionalWrites StoreNotImplemented StoreRefusesDeletes "
        "StoreDirectoryUnstable",
        "Progressing": "TakingOverFromTier TierUnavailable StorageError",
    },
    "Broker": {
        "Healthy": "Serving Registered ReplicasFailed RemoteStorageUnavailable Drained UpToDate "
        "Advertised",
        "Progressing": "NeverRegistered Fenced ShutDown BrokerUnreachable MovingReplicas "
        "ReplicasCannotMove ReplicasInUse RestartPending PodStarting AddressPending",
        "Degraded": "LogDirectoryFailed NodeIdTaken PodMissing PodRefused VolumeRefused "
        "AddressRefused",
    },
    "Cluster": {
        "Healthy": "Serving Available Swept OrphansLeft Advertised CreationRefused",
        "Progressing": "Deleting NoBrokers BrokersUnreachable Rebuilding AddressPending",
        "Degraded": "RemoteStorageUnavailable SecondCluster EpochsRunningOut EpochsExhausted "
        "CertificatesUnusable SlicesMissing SlicesOfAnotherCluster SliceUnreadable SliceRefused "
        "SlicesContended BrokersRefused AddressRefused",
    },
    "RecordDeletion": {
        "Healthy": "Deleted DryRun Finished Progressing",
        "Progressing": "Abandoned Pending Resolving Deleting TopicNotFound TopicNotReady "
        "PartitionsOffline",
        "Degraded": "PartitionUnknown PartitionsFailed TopicReplaced Timeout",
    },
    "User": {
        "Healthy": "Usable",
        "Progressing": "Pending AcknowledgementsPending",
        "Degraded": "SecretTaken SecretRefused PasswordUnusable CertificatesUnusable LimitReached",
    },
    "Export": {
        # The table exists and receives what it can, so that its age fails no sync.
        "Healthy": "Running Scheduled UpToDate CatchingUp Lagging NoProgress TopicsFailing "
        "Maintained MaintenanceFailed",
        "Progressing": "Pending JobStarting ReportMissing TopicNotFound",
        "Suspended": "Suspended",
        "Degraded": "JobFailed TopicReplaced TableTaken TableTakenOver ScheduleInvalid "
        "SourceUnusable ImageMissing JobRefused PolicyRefused SecretNotOffered",
    },
    "Topic, with engine kafka": {
        "Progressing": "KafkaUnavailable KafkaBusy Creating ReassignmentInProgress",
        "Degraded": "KafkaRejected ConfigRefused PolicyViolation NameRefused TopicMissing "
        "TopicReplaced PartitionsAdded TieringEnabledExternally ClientChangesNotRefused "
        "TieringFieldNotSupported",
    },
    "Cluster, with engine kafka": {
        "Progressing": "EngineUnavailable",
        "Degraded": "EngineRejected",
    },
    "Broker and User, with engine kafka": {"Degraded": "EngineKafka"},
    "Export, with engine kafka": {"Degraded": "EngineKafka"},
    # Argo CD itself reports an object under deletion as Progressing.
    "Topic, Broker, Cluster, User and Export": {"Progressing": "Deleted"},
    "Topic, Broker and Cluster": {"Degraded": "DeletionProtected DefinitionDeleted"},
    "Topic, Broker and User": {
        "Progressing": "ClusterNotFound",
        "Degraded": "ClusterNotControlled",
    },
    "Every kind": {
        "Degraded": "Contended AccessDenied WriteRefused ObjectUnreadable DecisionNotStored "
        "InternalError"
    },
}


def health(kind: str, status: Any, *, generation: int = GENERATION) -> tuple[str, str]:
    """Return Argo CD's health of a status, and its message."""
    return _health_of(states.body(kind, status, generation=generation))


def _health_of(body: dict[str, Any]) -> tuple[str, str]:
    found = lua.run(lua.customization("health", body["kind"]), body)
    return found["status"], found["message"]


def test_every_kind_has_the_same_script_but_the_internal_one() -> None:
    definitions = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    kinds = {definition["spec"]["names"]["kind"] for definition in definitions}
    # The internal kind is never in a repository that Argo CD applies.
    assert kinds - {"PartitionSlice"} == set(argocd_files.KINDS)
    assert len({lua.customization("health", kind) for kind in argocd_files.KINDS}) == 1


@pytest.mark.parametrize("heading", TABLE)
def test_every_reason_has_a_health(heading: str) -> None:
    expected = {
        reason: verdict for verdict, names in VERDICTS[heading].items() for reason in names.split()
    }
    found = {}
    for reason, body in states.in_every_state(heading):
        found[reason] = _health_of(body)[0]
        assert found[reason] == expected.get(reason), (body["kind"], reason)
    assert found.keys() == expected.keys()


# ---------------------------------------------------------------- generations


def test_an_unreconciled_object_is_in_progress() -> None:
    assert health("Topic", None)[0] == "Progressing"
    pending = {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Pending"}]}
    assert health("Topic", pending)[0] == "Progressing"


def test_good_conditions_of_a_former_spec_are_in_progress() -> None:
    former = states.status("Topic", [], generation=GENERATION - 1)
    assert health("Topic", former)[0] == "Progressing"


def test_refused_spec_does_not_affect_its_correction() -> None:
    refused = summary(ready=False, reason="NameTaken", message="taken", stalled=True)
    former = states.status("Topic", refused, generation=GENERATION - 1)
    assert health("Topic", former) == (
        "Progressing",
        "the operator has not observed this generation yet",
    )
    assert health("Topic", states.status("Topic", refused)) == ("Degraded", "NameTaken: taken")


def test_unreadable_spec_is_degraded_although_never_observed() -> None:
    """:mod:`tidemark_operator.reconcile.failures` adds the condition to the former status."""
    former = states.status("Topic", [], generation=GENERATION - 1)
    added = [condition("Stalled", True, "ObjectUnreadable", "no such key")]
    kept = [item for item in former["conditions"] if item["type"] != "Stalled"]
    stalled = render(added, former, generation=GENERATION, now_ms=T0)
    assert health("Topic", former | {"conditions": [*kept, *stalled]}) == (
        "Degraded",
        "ObjectUnreadable: no such key",
    )


# ---------------------------------------------------------------- as the operator writes them


def _topics(*node_ids: int, **fields: object) -> ControllerWorld:
    return ControllerWorld(
        brokers=[broker(node_id) for node_id in node_ids],
        topics=[topic(generation=GENERATION, **fields)],
        view=cluster(TIERED | KIP_409, remote_storage="{}"),
    )


def test_a_served_topic_that_waits_for_replicas_reports_it() -> None:
    verdict, message = health("Topic", _topics(1, 2).reconcile().status)
    assert (verdict, message.split(":")[0]) == ("Healthy", "Placeholders")


def test_a_topic_whose_tiering_is_turned_off_is_in_progress_until_brokers_have_acknowledged() -> (
    None
):
    world = _topics(1, 2, 3, tiering_spec=TieringSpec(enabled=True))
    assert health("Topic", world.reconcile().status)[0] == "Healthy"
    # The next generation turns tiering off, and no broker has acknowledged that.
    off = dataclasses.replace(world.view(), tiering_spec=TieringSpec(), generation=GENERATION + 1)
    world.state.put_topic(off)
    verdict, message = health("Topic", world.reconcile().status, generation=GENERATION + 1)
    assert verdict == "Progressing"
    assert message.startswith("Disabling: tiering is being disabled")


@pytest.mark.parametrize("behind", [0, 1])
def test_a_paused_topic_is_suspended_also_while_a_change_of_it_waits(behind: int) -> None:
    world = _topics(1, 2, 3)
    world.reconcile()
    world.state.put_topic(dataclasses.replace(world.view(), paused=True))
    paused = world.reconcile().status
    verdict, message = health("Topic", paused, generation=GENERATION + behind)
    assert verdict == "Suspended"
    assert "tidemark.dev/paused" in message


def test_a_broker_that_is_drained_is_in_progress_until_nothing_is_left() -> None:
    world = _topics(1, 2, 3)
    world.reconcile()
    leaving = dataclasses.replace(broker(1), drain=True, generation=GENERATION)
    world.state.put_broker(leaving)
    status = broker_status(world.state, leaving, now_ms=T0).status
    assert health("Broker", status)[0] == "Progressing"
    # Without partitions on the broker, the drain is complete.
    empty = ControllerWorld(brokers=[leaving])
    assert health("Broker", broker_status(empty.state, leaving, now_ms=T0).status)[0] == "Healthy"


def test_a_cluster_whose_storage_is_refused_is_degraded() -> None:
    good = ControllerWorld(brokers=[broker(1)])
    status = cluster_status(good.state, generation=GENERATION, now_ms=T0).status
    assert health("Cluster", status)[0] == "Healthy"
    world = ControllerWorld(
        brokers=[broker(1)], view=cluster(storage_problem="the secret s is missing")
    )
    status = cluster_status(world.state, generation=GENERATION, now_ms=T0).status
    assert health("Cluster", status) == (
        "Degraded",
        "RemoteStorageUnavailable: the secret s is missing",
    )


@pytest.mark.parametrize(
    ("step", "verdict"),
    [
        (DeletionWait(reason="TopicNotFound", message="no Topic"), "Progressing"),
        (DeletionWait(reason="Paused", message="paused"), "Suspended"),
        (Finished(succeeded=True, reason="Deleted", message="3 records"), "Healthy"),
        (Finished(succeeded=False, reason="Timeout", message="timed out"), "Degraded"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.reason,
)
def test_a_record_deletion(step: DeletionWait | Finished, verdict: str) -> None:
    view = DeletionInfo(
        key="ns/purge",
        uid=numbered_uuid(77),
        generation=GENERATION,
        topic_key="ns/topic-1",
        targets=(),
        created_ms=T0,
    )
    status = deletion_status(ControllerWorld().state, view, step, now_ms=T0).status
    assert health("RecordDeletion", status) == (verdict, f"{step.reason}: {step.message}")


# ---------------------------------------------------------------- differences


def test_the_api_server_adds_nothing_to_a_spec() -> None:
    """A default in a list would make it differ from the repository's manifest."""
    for path in (ROOT / "crds").glob("*.yaml"):
        for version in yaml.safe_load(path.read_text())["spec"]["versions"]:
            fields = dict(version["schema"]["openAPIV3Schema"]["properties"])
            fields.pop("status", None)
            assert '"default":' not in json.dumps(fields), path.name
