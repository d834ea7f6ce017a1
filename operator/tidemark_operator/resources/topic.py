"""``Topic``: one topic as its manifest describes it, and how far the operator is.

Rules that the API server itself keeps: partitions that exist only grow, name and cluster are
fixed, no tiering with compaction, local retention within total retention, nothing under
``spec.tiering`` changes while Disabling (KIP-950), the tiering state machine and its epoch never go
backwards (invariants 7 and 22).
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles.names import COORDINATORS_TOPICS, INTERNAL_TOPICS
from tidemark_operator.resources.accepted import ACCEPTED_MAX, Accepted
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
    Column,
    ControllerEpoch,
    Count,
    Generation,
    Int32,
    Kube,
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


class DisablePolicy(enum.StrEnum):
    """What becomes of tiered data when tiering is switched off (KIP-950)."""

    RETAIN = "Retain"
    DELETE = "Delete"


class DeletionPolicy(enum.StrEnum):
    """What becomes of the topic when its object is deleted."""

    DELETE = "Delete"
    ORPHAN = "Orphan"


class TieringState(enum.StrEnum):
    """KIP-950's states."""

    ENABLED = "Enabled"
    DISABLING = "Disabling"
    DISABLED = "Disabled"


class LocalRetention(SpecModel):
    """How much of a tiered topic stays on the brokers' disks; unset is as long as the topic's own
    retention."""

    time: Annotated[
        Duration | None, Field(description="Age up to which data stays local, such as 24h.")
    ] = None
    size: Annotated[
        Quantity | None, Field(description="Bytes per partition that stay local, such as 10Gi.")
    ] = None


class Tiering(SpecModel):
    """Tiered storage of the topic."""

    enabled: Annotated[
        bool, Field(description="Whether closed segments are copied to the remote tier.")
    ]
    disable_policy: Annotated[
        DisablePolicy | None,
        Field(
            description="What becomes of tiered data when tiering is switched off: Retain keeps "
            "it readable until its retention ends, Delete removes it. Unset: the Cluster's "
            "remote.log.disable.policy, else Retain."
        ),
    ] = None
    local_retention: LocalRetention | None = None

    @property
    def local_time(self) -> str | None:
        """``localRetention.time`` where it is set."""
        return self.local_retention.time if self.local_retention else None

    @property
    def local_size(self) -> str | None:
        """``localRetention.size`` where it is set."""
        return self.local_retention.size if self.local_retention else None


class TopicSpec(SpecModel):
    """The topic as it is wanted."""

    rules: ClassVar[tuple[Rule, ...]] = SPEC_RULES

    cluster_ref: FixedClusterRef
    topic_name: Annotated[
        str | None,
        Field(
            pattern="^[a-zA-Z0-9._-]+$",
            min_length=1,
            max_length=249,
            description="Kafka's name of the topic; unset: the object's name. Immutable.",
        ),
        Kube(
            Rule(rule="self != '.' && self != '..'", message="a topic is not called . or .."),
            Rule(
                rule=f"!(self in {cel_list(sorted(INTERNAL_TOPICS - COORDINATORS_TOPICS))})",
                message="it is an internal topic of Kafka that is not served: use another name",
            ),
        ),
    ] = None
    partitions: Annotated[
        int,
        Field(
            ge=1,
            le=PARTITIONS_MAX,
            description="Number of partitions; it may only grow once they exist.",
        ),
        Kube(format="int32"),
    ]
    replication_factor: Annotated[
        int,
        Field(ge=1, le=REPLICAS_MAX, description="Replicas of each partition."),
        Kube(format="int32"),
    ]
    config: Annotated[
        TopicConfig | None, Field(description="Kafka's topic configuration keys and their values.")
    ] = None
    tiering: Tiering | None = None
    deletion_policy: Annotated[
        DeletionPolicy | None,
        Field(
            description="Delete (also when unset) removes the topic and its data with the object; "
            "Orphan leaves them where they are and says so in the Cluster's status."
        ),
    ] = None

    @property
    def tiering_enabled(self) -> bool:
        """Tiering is asked for."""
        return self.tiering is not None and self.tiering.enabled

    @property
    def is_orphaned_on_delete(self) -> bool:
        """The topic outlives its object."""
        return self.deletion_policy is DeletionPolicy.ORPHAN


class TieringStatus(ApiModel):
    """Where the topic's tiering state machine stands."""

    rules: ClassVar[tuple[Rule, ...]] = TIERING_STATUS_RULES

    state: TieringState
    epoch: Annotated[
        int,
        Field(ge=0, le=INT32_MAX, description="KIP-950's tiered epoch."),
        Kube(
            Rule(rule="self >= oldSelf", message="the tiered epoch never goes back"), format="int32"
        ),
    ]
    policy: Annotated[
        DisablePolicy | None, Field(description="Policy of the latest disablement.")
    ] = None
    since: Annotated[Time | None, Field(description="When the state began.")] = None
    pending_brokers: Annotated[
        tuple[Int32, ...] | None,
        Field(max_length=1024, description="Brokers whose acknowledgement is awaited."),
        Kube(**ATOMIC),
    ] = None
    remote_segments: Count | None = None
    remote_bytes: Count | None = None
    remaining_segments: Annotated[
        Count | None, Field(description="Segments that a disablement still has to delete.")
    ] = None
    remaining_bytes: Count | None = None


class ReplicaCounts(ApiModel):
    """Replicas of all partitions together."""

    desired: Count
    placed: Count
    in_sync: Count
    placeholders: Count


class TopicStatus(ApiModel):
    """The topic as it is."""

    rules: ClassVar[tuple[Rule, ...]] = STATUS_RULES

    observed_generation: Generation | None = None
    controller_epoch: Annotated[
        ControllerEpoch | None, Field(description="Epoch of the controller that wrote this.")
    ] = None
    topic_id: Annotated[
        TopicIdText | None,
        Field(description="Kafka's topic id (base64url, 22 characters); never changes."),
        Kube(Rule(rule="self == oldSelf", message="topicId never changes")),
    ] = None
    tiering: TieringStatus | None = None
    replicas: ReplicaCounts | None = None
    partitions_placed: Annotated[
        Count | None,
        Field(
            description="Partitions whose placement is in the slices; on Apache Kafka, without "
            "topicId: it was asked to create so many."
        ),
    ] = None
    config_keys: Annotated[
        tuple[Annotated[str, Field(max_length=256)], ...] | None,
        Field(
            max_length=128,
            description="On Apache Kafka: keys that were set for this manifest. One that it names "
            "no more is taken away.",
        ),
        Kube(**ATOMIC),
    ] = None
    held_config: Annotated[
        Mapping[str, Annotated[str, Field(max_length=1024)]] | None,
        Field(
            max_length=128,
            description="While reconciling is paused: the configuration that holds on the brokers, "
            "by Kafka's keys, whatever spec.config says meanwhile.",
        ),
    ] = None
    accepted: Annotated[
        tuple[Accepted, ...] | None,
        Field(max_length=ACCEPTED_MAX, description="What was accepted by annotation, the latest."),
        Kube(**ATOMIC),
    ] = None
    conditions: Conditions = ()


class Topic(Resource):
    """A topic of a Tidemark cluster."""

    rules: ClassVar[tuple[Rule, ...]] = TOPIC_RULES

    spec: TopicSpec
    status: Annotated[TopicStatus, Kube(default=pending(READY))] = Field(
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
        Column(
            name="Topic",
            type="string",
            json_path=".spec.topicName",
            description="Kafka's name of the topic, where it is not the object's",
        ),
        Column(
            name="Partitions",
            type="integer",
            json_path=".spec.partitions",
            description="Partitions wanted",
        ),
        Column(
            name="Replicas",
            type="integer",
            json_path=".spec.replicationFactor",
            description="Replicas of each partition",
        ),
        Column(
            name="Tiering",
            type="string",
            json_path=".status.tiering.state",
            description="State of tiered storage",
        ),
        Column(
            name="Placeholders",
            type="integer",
            json_path=".status.replicas.placeholders",
            description="Replicas that no broker could take yet",
            priority=1,
        ),
        Column(
            name="Remote segments",
            type="integer",
            json_path=".status.tiering.remoteSegments",
            description="Segments in the remote tier",
            priority=1,
        ),
        condition_column("FullyReplicated", name="In-Sync"),
        condition_column("Ready"),
        Column(
            name="Reason",
            type="string",
            json_path='.status.conditions[?(@.type=="Ready")].reason',
            description="Reason of the condition Ready",
        ),
        PAUSED,
        AGE,
    ),
)
