"""``RecordDeletion``: delete the records below an offset or a time, once, like a Job (KIP-107).

The spec is immutable. Its offsets are resolved once and frozen in ``status.resolved`` before
anything is deleted, so that a re-apply, a restart or a recreated topic never deletes more.
"""

from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from tidemark_operator.resources.conditions import SUCCEEDED, Conditions, pending
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import PARTITIONS_MAX
from tidemark_operator.resources.references import TopicRef
from tidemark_operator.resources.scalars import Duration, RecordTime, Time
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    IMMUTABLE,
    PAUSED,
    ApiModel,
    ControllerEpoch,
    Count,
    Generation,
    Int32,
    Int64,
    KubernetesSchema,
    PrinterColumn,
    ResourceKind,
    Rule,
    SpecModel,
    TopicIdText,
    condition_column,
    keyed_by,
    reason_column,
)

_Model = TypeVar("_Model")
PartitionIndex = Annotated[
    int, Field(ge=0, le=PARTITIONS_MAX - 1), KubernetesSchema(format="int32")
]


class PartitionPoint(SpecModel):
    """Deletion limit of one partition."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.beforeOffset) != has(self.beforeTime)",
            message="exactly one of beforeOffset and beforeTime is required",
        ),
        Rule(
            rule="!has(self.leaderEpoch) || (has(self.beforeOffset) && self.beforeOffset >= 0)",
            message="leaderEpoch requires a beforeOffset of 0 or more",
            field_path=".leaderEpoch",
        ),
    )

    partition: PartitionIndex
    before_offset: Annotated[int | None, Field(ge=-1), KubernetesSchema(format="int64")] = None
    """Delete records below this offset. -1: up to the high watermark."""
    before_time: RecordTime | None = None
    """Delete records before the first one with this timestamp or a later one. A time in the future
    is replaced with the creation time of the object."""

    leader_epoch: Annotated[Int32 | None, Field(ge=0)] = None
    """Leader epoch in which the records below beforeOffset were written. If the last of them has a
    later epoch, the records were replaced and nothing of the partition is deleted."""

    @model_validator(mode="after")
    def _one_point(self) -> Self:
        return _exactly_one(self, self.before_offset, self.before_time)


class AllPartitions(SpecModel):
    """Deletion limit of all partitions."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.beforeOffset) != has(self.beforeTime)",
            message="exactly one of beforeOffset: -1 and beforeTime is required",
        ),
    )

    before_offset: Annotated[
        int | None,
        Field(ge=-1),
        KubernetesSchema(
            Rule(
                rule="self == -1",
                message="beforeOffset for all partitions must be -1. For other "
                "offsets, list the partitions.",
            ),
            format="int64",
        ),
    ] = None
    """Only -1 is allowed: delete up to the high watermark."""
    before_time: RecordTime | None = None
    """As in partitions."""

    @model_validator(mode="after")
    def _one_point(self) -> Self:
        return _exactly_one(self, self.before_offset, self.before_time)


def _exactly_one(model: _Model, offset: object, time: object) -> _Model:
    if (offset is None) == (time is None):
        raise ValueError("exactly one of beforeOffset and beforeTime is required")
    return model


class RecordDeletionSpec(SpecModel):
    """Records to delete. Immutable."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # The frozen offsets belong to this spec, so it never changes.
            rule=IMMUTABLE,
            message="the spec is immutable, because a RecordDeletion runs once. Create "
            "another one.",
        ),
        Rule(
            rule="has(self.all) != has(self.partitions)",
            message="exactly one of all and partitions is required",
        ),
        Rule(
            rule=(
                "!has(self.ttlAfterFinished) || "
                "((!has(self.all) || !has(self.all.beforeOffset)) && (!has(self.partitions) || "
                "self.partitions.all(p, !has(p.beforeOffset) || p.beforeOffset != -1)))"
            ),
            message=(
                "ttlAfterFinished cannot be combined with beforeOffset -1, "
                "because a GitOps tool would create the object again and "
                "delete newer records. Use beforeTime."
            ),
            field_path=".ttlAfterFinished",
        ),
    )

    topic_ref: TopicRef
    topic_id: TopicIdText | None = None
    """Expected status.topicId of the Topic. If the Topic has another id, nothing is deleted."""
    partitions: Annotated[
        tuple[PartitionPoint, ...] | None,
        Field(min_length=1, max_length=1024),
        KubernetesSchema(**keyed_by("partition")),
    ] = None
    all: AllPartitions | None = None
    timeout: Duration | None = None
    """Maximum time to wait for the low watermarks. Default: unlimited, or 5m if the Topic does not
    exist."""
    dry_run: bool | None = None
    """Only resolve offsets and report them. Default: false."""
    ttl_after_finished: Duration | None = None
    """Time after which the finished object is deleted. Default: never."""

    @model_validator(mode="after")
    # pydantic repeats the rule for objects that the API server did not check.
    def _one_scope(self) -> Self:
        if (self.all is None) == (self.partitions is None):
            raise ValueError("exactly one of all and partitions is required")
        return self


class ResolvedPoint(ApiModel):
    """Resolved limit of one partition. Records below offset are deleted."""

    partition: PartitionIndex
    offset: Int64
    leader_epoch: Int32
    """Leader epoch of the last record below the offset."""
    records: Count | None = None
    """Number of offsets between the log start and the offset."""
    bytes: Count | None = None
    """Size in bytes of the segments completely below the offset, in the tier or in the leader's
    log."""


class PartitionProgress(ApiModel):
    """Progress of the deletion in one partition."""

    partition: PartitionIndex
    low_watermark: Int64 | None = None
    """Smallest log start offset of the live replicas."""
    error: Annotated[str | None, Field(max_length=1024)] = None


class RecordDeletionStatus(ApiModel):
    """Resolved offsets and progress of the deletion."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(oldSelf.resolved) || has(self.resolved)",
            message="resolved cannot be removed",
            field_path=".resolved",
        ),
    )

    observed_generation: Generation | None = None
    controller_epoch: ControllerEpoch | None = None
    topic_id: Annotated[
        TopicIdText | None, KubernetesSchema(Rule(rule=IMMUTABLE, message="topicId never changes"))
    ] = None
    """Id of the topic that the offsets were resolved for."""
    resolved: Annotated[
        tuple[ResolvedPoint, ...] | None,
        Field(max_length=PARTITIONS_MAX),
        KubernetesSchema(Rule(rule=IMMUTABLE, message="resolved never changes"), **ATOMIC),
    ] = None
    """Offsets that were resolved before the deletion. They never change."""
    partitions: Annotated[
        tuple[PartitionProgress, ...] | None,
        Field(max_length=PARTITIONS_MAX),
        KubernetesSchema(**ATOMIC),
    ] = None
    records: Count | None = None
    """Number of deleted offsets. In a dry run, the number that would be deleted."""
    bytes: Count | None = None
    """Size in bytes of the deleted segments, counted in one replica."""
    start_time: Time | None = None
    completion_time: Time | None = None
    conditions: Conditions = ()


class RecordDeletion(Resource):
    """Request to delete records of a topic."""

    spec: RecordDeletionSpec
    status: Annotated[RecordDeletionStatus, KubernetesSchema(default=pending(SUCCEEDED))] = Field(
        default_factory=RecordDeletionStatus
    )


RECORD_DELETION = ResourceKind(
    RecordDeletion,
    short_names=("tmrd",),
    columns=(
        PrinterColumn("Topic", "string", ".spec.topicRef.name", "Topic whose records are deleted"),
        condition_column("Succeeded"),
        reason_column("Succeeded"),
        PrinterColumn("Records", "integer", ".status.records", "Number of deleted offsets"),
        PrinterColumn(
            "Finished", "date", ".status.completionTime", "Time since completion", priority=1
        ),
        PAUSED,
        AGE,
    ),
)
