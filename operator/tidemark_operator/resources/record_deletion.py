"""``RecordDeletion``: delete the records below an offset or a time, once, like a Job (KIP-107).

The spec never changes. What it means is resolved once and frozen in ``status.resolved`` before
anything is deleted, so that a re-apply, a restart or a topic made again never deletes more.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from tidemark_operator.resources.conditions import SUCCEEDED, Conditions, pending
from tidemark_operator.resources.durations import Duration
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import CATEGORY, PARTITIONS_MAX, PLURALS
from tidemark_operator.resources.references import TopicRef
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    IMMUTABLE,
    PAUSED,
    ApiModel,
    Column,
    ControllerEpoch,
    Count,
    Generation,
    Int32,
    Int64,
    Kube,
    ResourceKind,
    Rule,
    SpecModel,
    TopicIdText,
    condition_column,
)
from tidemark_operator.resources.times import RecordTime, Time

_Model = TypeVar("_Model")
PartitionIndex = Annotated[int, Field(ge=0, le=PARTITIONS_MAX - 1), Kube(format="int32")]


class PartitionPoint(SpecModel):
    """Up to where the records of one partition are deleted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.beforeOffset) != has(self.beforeTime)",
            message="give either beforeOffset or beforeTime",
        ),
        Rule(
            rule="!has(self.leaderEpoch) || (has(self.beforeOffset) && self.beforeOffset >= 0)",
            message="leaderEpoch needs a beforeOffset of 0 or more",
            field_path=".leaderEpoch",
        ),
    )

    partition: PartitionIndex
    before_offset: Annotated[
        int | None,
        Field(
            ge=-1,
            description="Records below this offset go; -1: up to the high watermark.",
        ),
        Kube(format="int64"),
    ] = None
    before_time: Annotated[
        RecordTime | None,
        Field(
            description=(
                "Records before the first one that has this timestamp or a later go; a time in the "
                "future counts as that at which the object was made."
            )
        ),
    ] = None

    leader_epoch: Annotated[
        Int32 | None,
        Field(
            ge=0,
            description=(
                "A leader epoch in which the log had the records below beforeOffset. If the last "
                "of them has a later epoch now, the topic was restored from its tier or a leader "
                "was elected uncleanly. These are other records, and none of the partition is "
                "deleted."
            ),
        ),
    ] = None

    @model_validator(mode="after")
    def _one_point(self) -> Self:
        return _exactly_one(self, self.before_offset, self.before_time)


class AllPartitions(SpecModel):
    """Up to where the records of every partition are deleted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.beforeOffset) != has(self.beforeTime)",
            message="give either beforeOffset: -1 or beforeTime",
        ),
    )

    before_offset: Annotated[
        int | None,
        Field(ge=-1, description="Only -1: everything up to the high watermark."),
        Kube(
            Rule(
                rule="self == -1",
                message="only -1 means something for all partitions: name the partitions instead",
            ),
            format="int64",
        ),
    ] = None
    before_time: Annotated[RecordTime | None, Field(description="As for a single partition.")] = (
        None
    )

    @model_validator(mode="after")
    def _one_point(self) -> Self:
        return _exactly_one(self, self.before_offset, self.before_time)


def _exactly_one(model: _Model, offset: object, time: object) -> _Model:
    if (offset is None) == (time is None):
        raise ValueError("give either beforeOffset or beforeTime")
    return model


class RecordDeletionSpec(SpecModel):
    """What to delete. Immutable."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=IMMUTABLE,
            message="a RecordDeletion runs once and never changes: make another one",
        ),
        Rule(
            rule="has(self.all) != has(self.partitions)",
            message="give either all or partitions",
        ),
        Rule(
            rule=(
                "!has(self.ttlAfterFinished) || "
                "((!has(self.all) || !has(self.all.beforeOffset)) && (!has(self.partitions) || "
                "self.partitions.all(p, !has(p.beforeOffset) || p.beforeOffset != -1)))"
            ),
            message=(
                "ttlAfterFinished cannot be combined with beforeOffset -1: a GitOps tool would "
                "make the object again and delete whatever came since; use beforeTime"
            ),
            field_path=".ttlAfterFinished",
        ),
    )

    topic_ref: TopicRef
    topic_id: Annotated[
        TopicIdText | None,
        Field(
            description=(
                "The topic that is meant, as its status.topicId says: if another one is there "
                "under its name, nothing is deleted."
            )
        ),
    ] = None
    partitions: Annotated[
        tuple[PartitionPoint, ...] | None,
        Field(min_length=1, max_length=1024),
        Kube(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["partition"]}),
    ] = None
    all: AllPartitions | None = None
    timeout: Annotated[
        Duration | None,
        Field(
            description=(
                "When to give up waiting for the low watermarks. For a Topic that is not there, "
                "5 minutes where nothing is given."
            )
        ),
    ] = None
    dry_run: Annotated[
        bool | None, Field(description="Resolve and report only; nothing is deleted.")
    ] = None
    ttl_after_finished: Annotated[
        Duration | None, Field(description="When the finished object is removed.")
    ] = None

    @model_validator(mode="after")
    def _one_scope(self) -> Self:
        if (self.all is None) == (self.partitions is None):
            raise ValueError("give either all or partitions")
        return self


class ResolvedPoint(ApiModel):
    """The frozen meaning of the spec for one partition: offsets below ``offset`` go."""

    partition: PartitionIndex
    offset: Int64
    leader_epoch: Annotated[
        Int32, Field(description="In which the last record below the offset was written.")
    ]
    records: Annotated[
        Count | None, Field(description="Offsets from the log start up to the offset.")
    ] = None
    bytes: Annotated[
        Count | None,
        Field(
            description=(
                "Of the segments that lie wholly below, in the tier or else in the leader's log."
            )
        ),
    ] = None


class PartitionProgress(ApiModel):
    """How far the deletion is in one partition."""

    partition: PartitionIndex
    low_watermark: Annotated[
        Int64 | None, Field(description="Smallest log start offset of the live replicas.")
    ] = None
    error: Annotated[str | None, Field(max_length=1024)] = None


class RecordDeletionStatus(ApiModel):
    """What was resolved and how far it is."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(oldSelf.resolved) || has(self.resolved)",
            message="resolved offsets are kept",
            field_path=".resolved",
        ),
    )

    observed_generation: Generation | None = None
    controller_epoch: ControllerEpoch | None = None
    topic_id: Annotated[
        TopicIdText | None,
        Field(description="The topic that the offsets were resolved for."),
        Kube(Rule(rule=IMMUTABLE, message="topicId never changes")),
    ] = None
    resolved: Annotated[
        tuple[ResolvedPoint, ...] | None,
        Field(max_length=PARTITIONS_MAX, description="Offsets as frozen before deleting."),
        Kube(Rule(rule=IMMUTABLE, message="resolved offsets are frozen"), **ATOMIC),
    ] = None
    partitions: Annotated[
        tuple[PartitionProgress, ...] | None, Field(max_length=PARTITIONS_MAX), Kube(**ATOMIC)
    ] = None
    records: Annotated[
        Count | None, Field(description="Offsets that went (in a dry run: would go).")
    ] = None
    bytes: Annotated[
        Count | None,
        Field(description="Bytes of segments that went, counted in one replica."),
    ] = None
    start_time: Time | None = None
    completion_time: Time | None = None
    conditions: Conditions = ()


class RecordDeletion(Resource):
    """A request to delete records of a topic."""

    spec: RecordDeletionSpec
    status: Annotated[RecordDeletionStatus, Kube(default=pending(SUCCEEDED))] = Field(
        default_factory=RecordDeletionStatus
    )


def parse_record_deletion(obj: Mapping[str, Any]) -> RecordDeletion:
    """Read a RecordDeletion; raises InvalidResource."""
    return RecordDeletion.parse(obj)


RECORD_DELETION = ResourceKind(
    kind="RecordDeletion",
    plural=PLURALS["RecordDeletion"],
    singular="recorddeletion",
    short_names=("tmrd",),
    category=CATEGORY,
    model=RecordDeletion,
    columns=(
        Column(
            name="Topic",
            type="string",
            json_path=".spec.topicRef.name",
            description="The Topic whose records go",
        ),
        condition_column("Succeeded"),
        Column(
            name="Reason",
            type="string",
            json_path='.status.conditions[?(@.type=="Succeeded")].reason',
            description="Reason of the condition Succeeded",
        ),
        Column(
            name="Records",
            type="integer",
            json_path=".status.records",
            description="Offsets that went",
        ),
        Column(
            name="Finished",
            type="date",
            json_path=".status.completionTime",
            description="Time since it finished",
            priority=1,
        ),
        PAUSED,
        AGE,
    ),
)
