"""``Topic``: one topic by its manifest, and its observed state.

The API server itself enforces several rules. Existing partitions only grow, and name and cluster
are immutable. There is no tiering with compaction, and local retention is within total retention.
Nothing under ``spec.tiering`` changes while Disabling (KIP-950). The tiering state machine and its
epoch never go backwards (invariants 7 and 22).

Rules that name ``oldSelf`` are transition rules. Those at the root use ``oldSelf.status``, which an
update of the main resource contains. They hold for an unchanged object: otherwise they would block
the removal of a finalizer.
"""

import enum
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles.names import COORDINATORS_TOPICS, INTERNAL_TOPICS
from tidemark.tiering import STEPS
from tidemark_operator.resources.conditions import (
    READY,
    AcceptedLosses,
    Conditions,
    pending,
)
from tidemark_operator.resources.config_rules import TopicConfig, cel_list
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import PARTITIONS_MAX, REPLICAS_MAX
from tidemark_operator.resources.references import FixedClusterRef
from tidemark_operator.resources.scalars import (
    Duration,
    Quantity,
    Time,
    cel_is_duration,
    cel_is_quantity,
)
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
    reason_column,
)

# ------------------------------------------------------------ admission rules


def _is_compacted(topic: str) -> str:
    """Return CEL: the spec of ``topic`` (an expression) enables compaction."""
    config = f"{topic}.config"
    return (
        f"(has({config}) && 'cleanup.policy' in {config} && "
        f"string({config}['cleanup.policy']).contains('compact'))"
    )


_NAME = "(has({0}.spec.topicName) ? {0}.spec.topicName : {0}.metadata.name)"

TOPIC_RULES = (
    # KIP-950: brokers already work on the disablement that the status shows.
    Rule(
        rule=(
            "!has(oldSelf.status) || !has(oldSelf.status.tiering) || "
            "oldSelf.status.tiering.state != 'Disabling' || "
            "(has(self.spec.tiering) == has(oldSelf.spec.tiering) && "
            "(!has(self.spec.tiering) || self.spec.tiering == oldSelf.spec.tiering))"
        ),
        message=(
            "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS: spec.tiering cannot "
            "change while status.tiering.state is Disabling. Wait for the "
            "state Disabled, then apply again."
        ),
        field_path=".spec.tiering",
        reason="FieldValueForbidden",
    ),
    # Kafka cannot rename a topic.
    Rule(
        rule=f"{_NAME.format('self')} == {_NAME.format('oldSelf')}",
        message=(
            "the topic name is immutable. Restore the previous name, or create "
            "another Topic and copy the data."
        ),
        field_path=".spec.topicName",
    ),
    Rule(
        # A number that has not been placed may be lowered, for example a typing error in a paused
        # Topic. The status has the number before a broker, or Apache Kafka, receives a partition.
        rule=(
            "self.spec.partitions >= oldSelf.spec.partitions || !has(oldSelf.status) || "
            "(has(oldSelf.status.partitionsPlaced) ? "
            "self.spec.partitions >= oldSelf.status.partitionsPlaced : "
            "!has(oldSelf.status.topicId))"
        ),
        message=(
            "partitions cannot be lower than status.partitionsPlaced, because "
            "Kafka cannot remove a partition"
        ),
        field_path=".spec.partitions",
    ),
    Rule(
        rule=(
            "!has(self.spec.topicName) || "
            f"!(self.spec.topicName in {cel_list(sorted(COORDINATORS_TOPICS))}) || "
            "self.spec.partitions == oldSelf.spec.partitions"
        ),
        message=(
            "the number of partitions of this internal topic is immutable, "
            "because it determines where the state of each group or "
            "transactional id is stored"
        ),
        field_path=".spec.partitions",
    ),
    Rule(
        rule="has(self.spec.topicName) || self.metadata.name.size() <= 249",
        message="the object's name exceeds Kafka's limit of 249 characters for a topic "
        "name. Set spec.topicName.",
        field_path=".spec.topicName",
    ),
    Rule(
        # Kafka does not compact tiered topics (KIP-405): data in the tier would stay uncompacted.
        rule=(
            "!has(oldSelf.status) || !has(oldSelf.status.tiering) || "
            "(oldSelf.status.tiering.state == 'Disabled' && "
            "has(oldSelf.status.tiering.remoteSegments) && "
            "oldSelf.status.tiering.remoteSegments == 0) || "
            f"{_is_compacted('oldSelf.spec')} || !{_is_compacted('self.spec')}"
        ),
        message=(
            "cleanup.policy cannot become compact while the topic has data in "
            "the remote tier. Disable tiering with disablePolicy Delete and "
            "wait for state Disabled and status.tiering.remoteSegments 0."
        ),
        field_path=".spec.config",
    ),
)

_WHOLE_NUMBER = "^[0-9]{1,18}$"
_LOCAL_TIME = "self.tiering.localRetention.time"
_LOCAL_SIZE = "string(self.tiering.localRetention.size)"
_TOTAL_TIME = "string(self.config['retention.ms'])"
_TOTAL_SIZE = "string(self.config['retention.bytes'])"


def _has_local(field: str, key: str) -> str:
    return (
        "has(self.tiering) && has(self.tiering.localRetention) && "
        f"has(self.tiering.localRetention.{field}) && has(self.config) && '{key}' in self.config"
    )


_LEAST_LAG = "string(self.config['min.compaction.lag.ms'])"
_MOST_LAG = "string(self.config['max.compaction.lag.ms'])"

SPEC_RULES = (
    Rule(
        rule=(
            "!has(self.config) || !('min.compaction.lag.ms' in self.config) || "
            "!('max.compaction.lag.ms' in self.config) || "
            f"!{_LEAST_LAG}.matches('{_WHOLE_NUMBER}') || "
            f"!{_MOST_LAG}.matches('{_WHOLE_NUMBER}') || "
            f"int({_LEAST_LAG}) <= int({_MOST_LAG})"
        ),
        message="min.compaction.lag.ms exceeds max.compaction.lag.ms. Lower it.",
        message_expression=(
            f"'min.compaction.lag.ms ' + {_LEAST_LAG} + ' exceeds "
            f"max.compaction.lag.ms ' + {_MOST_LAG} + '. Lower it, or raise "
            "max.compaction.lag.ms.'"
        ),
        field_path=".config",
    ),
    Rule(
        # Kafka stores the state of groups and transactions by key: without compaction it grows for
        # ever.
        rule=(
            f"!has(self.topicName) || !(self.topicName in {cel_list(sorted(COORDINATORS_TOPICS))})"
            " || ((!has(self.tiering) || !self.tiering.enabled) && has(self.config) && "
            "'cleanup.policy' in self.config && "
            "string(self.config['cleanup.policy']) == 'compact')"
        ),
        message=(
            "this internal topic stores the state of groups or transactions. "
            "It needs config cleanup.policy: compact and cannot be tiered."
        ),
        field_path=".topicName",
    ),
    Rule(
        rule=f"!has(self.tiering) || !self.tiering.enabled || !{_is_compacted('self')}",
        message=(
            "a compacted topic cannot be tiered. Set cleanup.policy to delete, or disable tiering."
        ),
        field_path=".tiering",
    ),
    Rule(
        # Only if both values are valid: their own rules report invalid ones.
        rule=(
            f"!({_has_local('time', 'retention.ms')}) || "
            f"!{cel_is_duration(_LOCAL_TIME)} || "
            f"!{_TOTAL_TIME}.matches('{_WHOLE_NUMBER}') || "
            f"duration({_LOCAL_TIME}).getMilliseconds() <= int({_TOTAL_TIME})"
        ),
        message="tiering.localRetention.time exceeds retention.ms. Lower it.",
        message_expression=(
            f"'tiering.localRetention.time ' + {_LOCAL_TIME} + ' exceeds "
            f"retention.ms ' + {_TOTAL_TIME} + '. Lower it, or raise "
            "retention.ms.'"
        ),
        field_path=".tiering.localRetention",
    ),
    Rule(
        rule=(
            f"!({_has_local('size', 'retention.bytes')}) || "
            f"!{cel_is_quantity(_LOCAL_SIZE)} || "
            f"!{_TOTAL_SIZE}.matches('{_WHOLE_NUMBER}') || "
            f"quantity({_LOCAL_SIZE}).compareTo(quantity({_TOTAL_SIZE})) <= 0"
        ),
        message="tiering.localRetention.size exceeds retention.bytes. Lower it.",
        message_expression=(
            f"'tiering.localRetention.size ' + {_LOCAL_SIZE} + ' exceeds "
            f"retention.bytes ' + {_TOTAL_SIZE} + '. Lower it, or raise "
            "retention.bytes.'"
        ),
        field_path=".tiering.localRetention",
    ),
)

STATUS_RULES = (
    Rule(
        rule="!has(oldSelf.topicId) || has(self.topicId)",
        message="topicId cannot be removed",
        field_path=".topicId",
    ),
    Rule(
        rule="!has(oldSelf.tiering) || has(self.tiering)",
        message="status.tiering cannot be removed",
        field_path=".tiering",
    ),
)

_TIERING_STEPS = ", ".join(
    f"['{before.name.capitalize()}', '{after.name.capitalize()}']" for before, after in STEPS
)

TIERING_STATUS_RULES = (
    Rule(
        rule=(f"self.state == oldSelf.state || [oldSelf.state, self.state] in [{_TIERING_STEPS}]"),
        message="the tiering state changes only from Enabled to Disabling to Disabled to Enabled",
        field_path=".state",
    ),
    Rule(
        # Brokers acknowledge by epoch, so an answer to an earlier disablement must not count.
        rule=(
            "self.state != 'Disabling' || oldSelf.state == 'Disabling' || self.epoch > "
            "oldSelf.epoch"
        ),
        message="a disablement requires a higher tiered epoch",
        field_path=".epoch",
    ),
    Rule(
        rule=(
            "oldSelf.state != 'Disabling' || (has(self.policy) == has(oldSelf.policy) && "
            "(!has(self.policy) || self.policy == oldSelf.policy))"
        ),
        message="policy cannot change while state is Disabling",
        field_path=".policy",
    ),
    Rule(
        rule="self.state != 'Disabling' || has(self.policy)",
        message="state Disabling requires a policy",
        field_path=".policy",
    ),
)


# ------------------------------------------------------------ fields


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

    time: Duration | None = None
    """Maximum age of local data, such as 24h."""
    size: Quantity | None = None
    """Maximum size of local data per partition, such as 10Gi."""


class MaxLagSpec(SpecModel):
    """Committed records of a tiered topic that may be outside the tier: its recovery point if all
    brokers are lost.

    The active segment is closed at half of it, so a short time makes many small objects. Default:
    tidemark.remote.copy.max.lag.ms and tidemark.remote.copy.max.lag.bytes of the Cluster, or the
    closing of segments by segment.ms and segment.bytes.
    """

    time: Annotated[
        Duration | None,
        KubernetesSchema(
            Rule(
                rule=f"!{cel_is_duration('self')} || duration(self) >= duration('1s')",
                message="maxLag.time must be at least 1s",
            )
        ),
    ] = None
    """Maximum time until a committed record is in the tier, such as 10s. At least 1s."""
    size: Annotated[
        Quantity | None,
        KubernetesSchema(
            Rule(
                rule=(
                    f"!{cel_is_quantity('string(self)')} || "
                    "quantity(string(self)).compareTo(quantity('2Mi')) >= 0"
                ),
                message="maxLag.size must be at least 2Mi",
            )
        ),
    ] = None
    """Maximum bytes of a partition that are not in the tier, such as 64Mi. At least 2Mi."""


class TopicTieringSpec(SpecModel):
    """Tiered storage of the topic."""

    enabled: bool
    """Upload closed segments to the remote tier."""
    disable_policy: DisablePolicyName | None = None
    """Handling of tiered data when tiering is disabled. Retain keeps it readable until its
    retention ends. Delete deletes it. Default: remote.log.disable.policy of the Cluster, or Retain.
    """
    local_retention: LocalRetentionSpec | None = None
    max_lag: MaxLagSpec | None = None
    paused: bool | None = None
    """Copy nothing to the tier for now. Reads, retention and deletions continue. Local data that is
    not in the tier stays on the disks of the brokers. The condition TieringLagging shows the gap.
    Default: false."""


class TopicSpec(SpecModel):
    """Desired state of the topic."""

    rules: ClassVar[tuple[Rule, ...]] = SPEC_RULES

    cluster_ref: FixedClusterRef
    topic_name: Annotated[
        str | None,
        Field(pattern="^[a-zA-Z0-9._-]+$", min_length=1, max_length=249),
        KubernetesSchema(
            Rule(rule="self != '.' && self != '..'", message="a topic name must not be . or .."),
            Rule(
                rule=f"!(self in {cel_list(sorted(INTERNAL_TOPICS - COORDINATORS_TOPICS))})",
                message="this internal topic of Kafka is not served. Use another name.",
            ),
        ),
    ] = None
    """Kafka name of the topic. Default: the name of the object. Immutable."""
    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_MAX), KubernetesSchema(format="int32")]
    """Number of partitions. It cannot be lowered once they exist."""
    replication_factor: Annotated[
        int, Field(ge=1, le=REPLICAS_MAX), KubernetesSchema(format="int32")
    ]
    """Number of replicas of each partition."""
    config: TopicConfig | None = None
    """Topic configuration by Kafka's keys."""
    tiering: TopicTieringSpec | None = None
    deletion_policy: DeletionPolicyName | None = None
    """Delete removes the topic and its data with the object. Orphan keeps them and lists the topic
    in status.leftBehind of the Cluster. Default: Delete."""
    deletion_grace_period: Duration | None = None
    """With deletionPolicy Delete, how long the topic is still served after its object was deleted,
    such as 24h. Until the end, deletionPolicy: Orphan keeps the topic. Kafka clients cannot delete
    the topic. Default: 0s."""

    client_changes: ClientChangesName | None = None
    """Refuse: Kafka clients cannot delete the topic, add partitions, or change its configuration or
    replication factor. Default: clientChanges of the Cluster."""

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
        Field(ge=0, le=INT32_MAX),
        KubernetesSchema(
            Rule(rule="self >= oldSelf", message="the tiered epoch never goes back"), format="int32"
        ),
    ]
    """Tiered epoch (KIP-950)."""
    policy: DisablePolicyName | None = None
    """Policy of the latest disablement."""
    since: Time | None = None
    """When the topic entered the state."""
    pending_brokers: Annotated[
        tuple[Int32, ...] | None, Field(max_length=1024), KubernetesSchema(**ATOMIC)
    ] = None
    """Brokers that have not acknowledged the state yet."""
    remote_segments: Count | None = None
    remote_bytes: Count | None = None
    remaining_segments: Count | None = None
    """Number of segments that the disablement still has to delete."""
    remaining_bytes: Count | None = None
    summary: Annotated[str | None, Field(max_length=128)] = None
    """The state, or the reason of the first condition that reports trouble with the tier
    (TieringSettled, TierIntegrity, RemoteIntegrity, TieringLagging)."""


class ReplicaCounts(ApiModel):
    """Number of replicas of all partitions."""

    desired: Count
    placed: Count
    in_sync: Count
    placeholders: Count
    summary: Annotated[str | None, Field(max_length=64)] = None
    """Replicas in sync of those desired, such as 6/10."""


class TopicDeletionStatus(ApiModel):
    """Deletion of a topic that has a grace period."""

    due: Time
    """When the grace period ends."""
    started: bool | None = None
    """The grace period is over. The topic's data is being deleted."""


class TopicStatus(ApiModel):
    """Observed state of the topic."""

    rules: ClassVar[tuple[Rule, ...]] = STATUS_RULES

    observed_generation: Generation | None = None
    controller_epoch: ControllerEpoch | None = None
    """Epoch of the controller that wrote the status."""
    topic_id: Annotated[
        TopicIdText | None,
        KubernetesSchema(Rule(rule="self == oldSelf", message="topicId never changes")),
    ] = None
    """Kafka topic id (base64url, 22 characters). It never changes."""
    tiering: TieringStatus | None = None
    replicas: ReplicaCounts | None = None
    deletion: TopicDeletionStatus | None = None
    partitions_placed: Count | None = None
    """Number of partitions whose placement is stored. With engine kafka and without topicId, the
    number in the create request."""
    config_keys: Annotated[
        tuple[Annotated[str, Field(max_length=256)], ...] | None,
        Field(max_length=128),
        KubernetesSchema(**ATOMIC),
    ] = None
    """Configuration keys that the operator has set on Apache Kafka. A key that is removed from the
    manifest is reset."""
    held_config: Annotated[
        Mapping[str, Annotated[str, Field(max_length=1024)]] | None, Field(max_length=128)
    ] = None
    """Configuration in force on the brokers while reconciliation is paused, by Kafka's keys.
    Changes of spec.config do not apply until it resumes."""
    accepted: AcceptedLosses | None = None
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


TOPIC = ResourceKind(
    Topic,
    short_names=("tmt",),
    columns=(
        PrinterColumn(
            "Topic",
            "string",
            ".spec.topicName",
            "Kafka name of the topic, if it differs from the object's name",
            priority=1,
        ),
        PrinterColumn("Partitions", "integer", ".spec.partitions", "Partitions wanted"),
        PrinterColumn(
            "Replicas",
            "integer",
            ".spec.replicationFactor",
            "Number of replicas of each partition",
            priority=1,
        ),
        PrinterColumn(
            "In-Sync",
            "string",
            ".status.replicas.summary",
            "Replicas in sync of those desired, of all partitions",
        ),
        PrinterColumn(
            "Placeholders",
            "integer",
            ".status.replicas.placeholders",
            "Number of replicas without a broker",
        ),
        PrinterColumn(
            "Tiering",
            "string",
            ".status.tiering.summary",
            "State of tiering, or the reason of its trouble",
        ),
        PrinterColumn(
            "Remote segments",
            "integer",
            ".status.tiering.remoteSegments",
            "Number of segments in the remote tier",
            priority=1,
        ),
        condition_column("Ready"),
        reason_column("Ready"),
        PAUSED,
        AGE,
    ),
)
