"""``Topic``: one topic by its manifest, and its observed state.

The API server itself enforces several rules. Existing partitions only grow, and name and cluster
are immutable. There is no tiering with compaction, and local retention is within total retention.
Nothing under ``spec.tiering`` changes while Disabling (KIP-950). The tiering state machine and its
epoch never go backwards (invariants 7 and 22).
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles.names import COORDINATORS_TOPICS, INTERNAL_TOPICS
from tidemark_operator.resources.acceptances import ACCEPTED_MAX, AcceptanceRecord
from tidemark_operator.resources.conditions import READY, Conditions, pending
from tidemark_operator.resources.config_rules import TopicConfig, cel_list
from tidemark_operator.resources.durations import Duration
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import CATEGORY, PARTITIONS_MAX, PLURALS, REPLICAS_MAX
from tidemark_operator.resources.quantities import Quantity
from tidemark_operator.resources.references import FixedClusterRef
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    PAUSED,
    ApiModel,
    ControllerEpoch,
    Count,
    Generation,
    Int32,
    KubernetesSchema,
    PrinterColumn,
    ResourceKind,
    Rule,
    SpecModel,
    TopicIdText,
    condition_column,
)
from tidemark_operator.resources.times import Time
from tidemark_operator.resources.topic_rules import (
    SPEC_RULES,
    STATUS_RULES,
    TIERING_STATUS_RULES,
    TOPIC_RULES,
)


class DisablePolicyName(enum.StrEnum):
    """Handling of tiered data when tiering is disabled (KIP-950)."""

    RETAIN = "Retain"
    DELETE = "Delete"


class DeletionPolicyName(enum.StrEnum):
    """Handling of the topic when its object is deleted."""

    DELETE = "Delete"
    ORPHAN = "Orphan"


class ClientChangesName(enum.StrEnum):
    """Handling of Kafka clients' requests that would change a spec."""

    ALLOW = "Allow"
    REFUSE = "Refuse"


class TieringStateName(enum.StrEnum):
    """State of tiering (KIP-950)."""

    ENABLED = "Enabled"
    DISABLING = "Disabling"
    DISABLED = "Disabled"


class LocalRetentionSpec(SpecModel):
    """Data of a tiered topic that stays on the brokers' disks.

    Default: the total retention of the topic.
    """

    time: Annotated[
        Duration | None, Field(description="Maximum age of local data, such as 24h.")
    ] = None
    size: Annotated[
        Quantity | None,
        Field(description="Maximum size of local data per partition, such as 10Gi."),
    ] = None


class TopicTieringSpec(SpecModel):
    """Tiered storage of the topic."""

    enabled: Annotated[bool, Field(description="Upload closed segments to the remote tier.")]
    disable_policy: Annotated[
        DisablePolicyName | None,
        Field(
            description="Handling of tiered data when tiering is disabled. Retain keeps it "
            "readable until its retention ends. Delete deletes it. Default: "
            "remote.log.disable.policy of the Cluster, or Retain."
        ),
    ] = None
    local_retention: LocalRetentionSpec | None = None

    @property
    def local_time(self) -> str | None:
        """``localRetention.time``, None if unset."""
        return self.local_retention.time if self.local_retention else None

    @property
    def local_size(self) -> str | None:
        """``localRetention.size``, None if unset."""
        return self.local_retention.size if self.local_retention else None


class TopicSpec(SpecModel):
    """Desired state of the topic."""

    rules: ClassVar[tuple[Rule, ...]] = SPEC_RULES

    cluster_ref: FixedClusterRef
    topic_name: Annotated[
        str | None,
        Field(
            pattern="^[a-zA-Z0-9._-]+$",
            min_length=1,
            max_length=249,
            description="Kafka name of the topic. Default: the name of the object. Immutable.",
        ),
        KubernetesSchema(
            Rule(rule="self != '.' && self != '..'", message="a topic name must not be . or .."),
            Rule(
                rule=f"!(self in {cel_list(sorted(INTERNAL_TOPICS - COORDINATORS_TOPICS))})",
                message="this internal topic of Kafka is not served. Use another name.",
            ),
        ),
    ] = None
    partitions: Annotated[
        int,
        Field(
            ge=1,
            le=PARTITIONS_MAX,
            description="Number of partitions. It cannot be lowered once they exist.",
        ),
        KubernetesSchema(format="int32"),
    ]
    replication_factor: Annotated[
        int,
        Field(ge=1, le=REPLICAS_MAX, description="Number of replicas of each partition."),
        KubernetesSchema(format="int32"),
    ]
    config: Annotated[
        TopicConfig | None, Field(description="Topic configuration by Kafka's keys.")
    ] = None
    tiering: TopicTieringSpec | None = None
    deletion_policy: Annotated[
        DeletionPolicyName | None,
        Field(
            description="Delete removes the topic and its data with the object. Orphan "
            "keeps them and lists the topic in status.leftBehind of the "
            "Cluster. Default: Delete."
        ),
    ] = None
    deletion_grace_period: Annotated[
        Duration | None,
        Field(
            description="With deletionPolicy Delete, how long the topic is still served after its "
            "object was deleted, such as 24h. Until the end, deletionPolicy: Orphan keeps the "
            "topic. Kafka clients cannot delete the topic. Default: 0s."
        ),
    ] = None

    client_changes: Annotated[
        ClientChangesName | None,
        Field(
            description="Refuse: Kafka clients cannot delete the topic, add partitions, or change "
            "its configuration or replication factor. Default: clientChanges of the Cluster."
        ),
    ] = None

    @property
    def tiering_enabled(self) -> bool:
        """Whether the spec enables tiering."""
        return self.tiering is not None and self.tiering.enabled

    @property
    def is_orphaned_on_delete(self) -> bool:
        """Whether the topic outlives its object."""
        return self.deletion_policy is DeletionPolicyName.ORPHAN


class TieringStatus(ApiModel):
    """State of the topic's tiering."""

    rules: ClassVar[tuple[Rule, ...]] = TIERING_STATUS_RULES

    state: TieringStateName
    epoch: Annotated[
        int,
        Field(ge=0, le=INT32_MAX, description="Tiered epoch (KIP-950)."),
        KubernetesSchema(
            Rule(rule="self >= oldSelf", message="the tiered epoch never goes back"), format="int32"
        ),
    ]
    policy: Annotated[
        DisablePolicyName | None, Field(description="Policy of the latest disablement.")
    ] = None
    since: Annotated[Time | None, Field(description="When the topic entered the state.")] = None
    pending_brokers: Annotated[
        tuple[Int32, ...] | None,
        Field(max_length=1024, description="Brokers that have not acknowledged the state yet."),
        KubernetesSchema(**ATOMIC),
    ] = None
    remote_segments: Count | None = None
    remote_bytes: Count | None = None
    remaining_segments: Annotated[
        Count | None,
        Field(description="Number of segments that the disablement still has to delete."),
    ] = None
    remaining_bytes: Count | None = None
    summary: Annotated[
        str | None,
        Field(
            max_length=128,
            description="The state, or the reason of the first condition that reports trouble "
            "with the tier (TieringSettled, TierIntegrity, RemoteIntegrity).",
        ),
    ] = None


class ReplicaCounts(ApiModel):
    """Number of replicas of all partitions."""

    desired: Count
    placed: Count
    in_sync: Count
    placeholders: Count
    summary: Annotated[
        str | None,
        Field(max_length=64, description="Replicas in sync of those desired, such as 6/10."),
    ] = None


class TopicDeletionStatus(ApiModel):
    """Deletion of a topic that has a grace period."""

    due: Annotated[Time, Field(description="When the grace period ends.")]
    started: Annotated[
        bool | None,
        Field(description="The grace period is over. The topic's data is being deleted."),
    ] = None


class TopicStatus(ApiModel):
    """Observed state of the topic."""

    rules: ClassVar[tuple[Rule, ...]] = STATUS_RULES

    observed_generation: Generation | None = None
    controller_epoch: Annotated[
        ControllerEpoch | None, Field(description="Epoch of the controller that wrote the status.")
    ] = None
    topic_id: Annotated[
        TopicIdText | None,
        Field(description="Kafka topic id (base64url, 22 characters). It never changes."),
        KubernetesSchema(Rule(rule="self == oldSelf", message="topicId never changes")),
    ] = None
    tiering: TieringStatus | None = None
    replicas: ReplicaCounts | None = None
    deletion: TopicDeletionStatus | None = None
    partitions_placed: Annotated[
        Count | None,
        Field(
            description="Number of partitions whose placement is stored. With engine kafka "
            "and without topicId, the number in the create request."
        ),
    ] = None
    config_keys: Annotated[
        tuple[Annotated[str, Field(max_length=256)], ...] | None,
        Field(
            max_length=128,
            description="Configuration keys that the operator has set on Apache Kafka. A "
            "key that is removed from the manifest is reset.",
        ),
        KubernetesSchema(**ATOMIC),
    ] = None
    held_config: Annotated[
        Mapping[str, Annotated[str, Field(max_length=1024)]] | None,
        Field(
            max_length=128,
            description="Configuration in force on the brokers while reconciliation is "
            "paused, by Kafka's keys. Changes of spec.config do not apply "
            "until it resumes.",
        ),
    ] = None
    accepted: Annotated[
        tuple[AcceptanceRecord, ...] | None,
        Field(
            max_length=ACCEPTED_MAX, description="Latest losses that were accepted by annotation."
        ),
        KubernetesSchema(**ATOMIC),
    ] = None
    conditions: Conditions = ()


class Topic(Resource):
    """Topic of a Tidemark cluster."""

    rules: ClassVar[tuple[Rule, ...]] = TOPIC_RULES

    spec: TopicSpec
    status: Annotated[TopicStatus, KubernetesSchema(default=pending(READY))] = Field(
        default_factory=TopicStatus
    )

    @property
    def topic_name(self) -> str:
        """Kafka's name of the topic."""
        return self.spec.topic_name or self.metadata.name


def parse_topic(obj: Mapping[str, Any]) -> Topic:
    """Read a Topic; raises InvalidResource."""
    return Topic.parse(obj)


TOPIC = ResourceKind(
    kind="Topic",
    plural=PLURALS["Topic"],
    singular="topic",
    short_names=("tmt",),
    category=CATEGORY,
    model=Topic,
    columns=(
        PrinterColumn(
            name="Topic",
            type="string",
            json_path=".spec.topicName",
            description="Kafka name of the topic, if it differs from the object's name",
            priority=1,
        ),
        PrinterColumn(
            name="Partitions",
            type="integer",
            json_path=".spec.partitions",
            description="Partitions wanted",
        ),
        PrinterColumn(
            name="Replicas",
            type="integer",
            json_path=".spec.replicationFactor",
            description="Number of replicas of each partition",
            priority=1,
        ),
        PrinterColumn(
            name="In-Sync",
            type="string",
            json_path=".status.replicas.summary",
            description="Replicas in sync of those desired, of all partitions",
        ),
        PrinterColumn(
            name="Placeholders",
            type="integer",
            json_path=".status.replicas.placeholders",
            description="Number of replicas without a broker",
        ),
        PrinterColumn(
            name="Tiering",
            type="string",
            json_path=".status.tiering.summary",
            description="State of tiering, or the reason of its trouble",
        ),
        PrinterColumn(
            name="Remote segments",
            type="integer",
            json_path=".status.tiering.remoteSegments",
            description="Number of segments in the remote tier",
            priority=1,
        ),
        condition_column("Ready"),
        PrinterColumn(
            name="Reason",
            type="string",
            json_path='.status.conditions[?(@.type=="Ready")].reason',
            description="Reason of the condition Ready",
        ),
        PAUSED,
        AGE,
    ),
)
