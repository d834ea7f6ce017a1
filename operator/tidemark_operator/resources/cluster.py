"""``Cluster``: what is cluster-wide and dynamic, and who controls it.

The controller epoch is raised by compare-and-set in this status at each take-over (the Lease only
elects); what the operator has accepted as remote storage stands here too, so that a change that
would amount to losing the tier can be seen as one.
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark_operator.resources.accepted import ACCEPTED_MAX, Accepted
from tidemark_operator.resources.broker_pod import APPARMOR, Annotations, BrokerPod, Labels
from tidemark_operator.resources.conditions import READY, Conditions, pending
from tidemark_operator.resources.config_rules import ClusterConfig, GroupConfig
from tidemark_operator.resources.engine import ENGINE_RULES, Engine
from tidemark_operator.resources.export_policy import ExportPolicy
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import CATEGORY, GROUP, PLURALS
from tidemark_operator.resources.quotas import ClusterQuotas
from tidemark_operator.resources.references import SecretRef
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    IMMUTABLE,
    ApiModel,
    Column,
    Count,
    Generation,
    Kube,
    Rack,
    ResourceKind,
    Rule,
    SpecModel,
    TopicIdText,
    condition_column,
)
from tidemark_operator.resources.times import Time
from tidemark_operator.resources.topic import DisablePolicy, TieringState

#: Brokers that one Cluster makes.
POD_BROKERS_MAX = 256
#: Consumer groups with a configuration of their own.
GROUPS_MAX = 128
#: Topics that a Cluster's status lists as left behind.
LEFT_BEHIND_MAX = 1024
STRAY_TOPICS_MAX = 64
#: Amazon S3, "Bucket naming rules".
Bucket = Annotated[
    str,
    Field(min_length=3, max_length=63, pattern="^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"),
    Kube(Rule(rule="!self.contains('..')", message="a bucket's name has no two dots in a row")),
]
Prefix = Annotated[
    str,
    Field(max_length=256, pattern="^([A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*)?$"),
    Kube(
        Rule(
            rule="!self.split('/').exists(part, part == '.' || part == '..')",
            message="a prefix has no folder . or ..",
        )
    ),
]
FolderPath = Annotated[str, Field(min_length=2, max_length=1024, pattern="^/")]
Url = Annotated[
    str,
    Field(
        max_length=1024,
        pattern=r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)"
        r"(:[0-9]{1,5})?/?$",
    ),
]


class S3Storage(SpecModel):
    """Any S3 store."""

    endpoint: Annotated[
        Url | None, Field(description="URL of the service; unset: AWS, by region.")
    ] = None
    region: Annotated[str, Field(min_length=1, max_length=64)]
    buckets: Annotated[
        tuple[Bucket, ...],
        Field(min_length=1, max_length=16, description="Segments are spread over these."),
        Kube(**{"x-kubernetes-list-type": "set"}),
    ]
    prefix: Annotated[
        Prefix | None, Field(description="Key prefix in each bucket, no / at its ends.")
    ] = None
    create_buckets: Annotated[
        bool | None,
        Field(
            description="Make buckets that do not exist; unset: a missing bucket is a problem. The "
            "first bucket of a store in use is never made anew."
        ),
    ] = None
    credentials_secret_ref: Annotated[
        SecretRef,
        Field(description="Secret with the keys accessKeyId and secretAccessKey."),
    ]


class FilesystemStorage(SpecModel):
    """A folder that all brokers share."""

    path: Annotated[FolderPath, Field(description="Absolute path, the same on every broker.")]


class RemoteStorage(SpecModel):
    """Where tiered segments lie: one of s3 and filesystem."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="has(self.s3) != has(self.filesystem)", message="give either s3 or filesystem"),
    )

    s3: S3Storage | None = None
    filesystem: FilesystemStorage | None = None


class AuthorizationType(enum.StrEnum):
    """Who decides what a user may do. simple: the ACLs of the Users, as Kafka's own authorizer."""

    SIMPLE = "simple"


#: Kafka's ``super.users`` without ``User:``.
SuperUser = Annotated[
    str,
    Field(min_length=1, max_length=256),
    Kube(
        Rule(
            rule="!self.startsWith('User:')",
            message="a super user is named as in the User's status.username, without User:",
        )
    ),
]


class ClusterAuthorization(SpecModel):
    """That ACLs decide what users may do."""

    type: AuthorizationType
    super_users: Annotated[
        tuple[SuperUser, ...] | None,
        Field(max_length=64, description="They may do everything, whatever ACLs say."),
        Kube(**{"x-kubernetes-list-type": "set"}),
    ] = None


class ClusterBrokers(SpecModel):
    """Brokers in pods that the operator makes and removes by their number."""

    replicas: Annotated[
        int,
        Field(
            ge=1,
            le=POD_BROKERS_MAX,
            description="How many. Fewer than before: those with the highest ids are drained, and "
            "then removed.",
        ),
        Kube(format="int32"),
    ]
    racks: Annotated[
        tuple[Rack, ...] | None,
        Field(
            max_length=16,
            description="A new broker is given the one with the fewest; it keeps it.",
        ),
        Kube(**{"x-kubernetes-list-type": "set"}),
    ] = None
    template: Annotated[BrokerPod, Field(description="The pod of each of them.")]


_OURS = f"!self.exists(k, k.startsWith('{GROUP}/'))"
_OURS_MESSAGE = f"keys that begin with {GROUP}/ are reserved for the operator"


class ObjectMetadata(SpecModel):
    """Labels and annotations of the operator's objects; those that it sets itself win."""

    labels: Annotated[Labels, Kube(Rule(rule=_OURS, message=_OURS_MESSAGE))] = Field(
        default_factory=dict
    )
    annotations: Annotated[
        Annotations,
        Kube(
            Rule(rule=_OURS, message=_OURS_MESSAGE),
            Rule(
                rule=f"!self.exists(k, k.startsWith('{APPARMOR}'))",
                message="the security of a pod is the operator's to set: no AppArmor profile",
            ),
        ),
    ] = Field(default_factory=dict)


class ClusterSpec(SpecModel):
    """The cluster as it is wanted."""

    rules: ClassVar[tuple[Rule, ...]] = ENGINE_RULES

    engine: Annotated[
        Engine | None, Field(description="What keeps the topics; unset: Tidemark's own brokers.")
    ] = None
    config: Annotated[
        ClusterConfig | None,
        Field(description="Cluster-wide configuration and defaults for topics, by Kafka's keys."),
    ] = None
    groups: Annotated[
        dict[str, GroupConfig] | None,
        Field(
            max_length=GROUPS_MAX,
            description="Configuration of consumer groups, by their names, by Kafka's keys.",
        ),
    ] = None
    remote_storage: RemoteStorage | None = None
    authorization: Annotated[
        ClusterAuthorization | None,
        Field(
            description="Unset: whoever a listener lets in may do everything. Set: only what the "
            "ACLs of its User allow."
        ),
    ] = None
    quotas: ClusterQuotas | None = None
    exports: Annotated[
        ExportPolicy | None,
        Field(description="What Exports may name beyond the safe defaults."),
    ] = None
    brokers: Annotated[
        ClusterBrokers | None,
        Field(
            description="Brokers that the operator makes. Unset: it makes none, and removes none; "
            "those that it has made stay."
        ),
    ] = None
    object_metadata: Annotated[
        ObjectMetadata | None,
        Field(
            description="Labels and annotations, as admission policies require them, of every "
            "object that the operator creates from now on, topics of Kafka clients included."
        ),
    ] = None


class ControllerStatus(ApiModel):
    """Who controls the cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=(
                "self.epoch > oldSelf.epoch || "
                "(self.epoch == oldSelf.epoch && self.identity == oldSelf.identity)"
            ),
            message=(
                "STALE_CONTROLLER_EPOCH: a controller takes over with a higher epoch than any "
                "before"
            ),
            reason="FieldValueForbidden",
        ),
    )

    identity: Annotated[str, Field(min_length=1, max_length=253)]
    epoch: Annotated[int, Field(ge=1, le=INT32_MAX), Kube(format="int32")]


class AcceptedS3(ApiModel):
    """S3 storage as the operator accepted it."""

    endpoint: Annotated[str, Field(max_length=1024)] | None = None
    region: Annotated[str, Field(max_length=64)]
    buckets: Annotated[tuple[Bucket, ...], Field(max_length=16), Kube(**ATOMIC)]
    prefix: Annotated[str, Field(max_length=256)] | None = None


class AcceptedFilesystem(ApiModel):
    """A folder as the operator accepted it."""

    path: Annotated[str, Field(max_length=1024)]


class AcceptedStorage(ApiModel):
    """The storage configuration in use; credentials are never part of it."""

    s3: AcceptedS3 | None = None
    filesystem: AcceptedFilesystem | None = None


class BrokerCounts(ApiModel):
    """Brokers of the cluster."""

    registered: Count
    fenced: Count


class ExternalBootstrapServers(ApiModel):
    """Where clients from outside begin."""

    name: Annotated[str, Field(max_length=64, description="Of the listener.")]
    bootstrap_servers: Annotated[
        str, Field(max_length=2048, description="Kafka's bootstrap.servers.")
    ]


class LeftBehindTiering(ApiModel):
    """The tiering with which a topic was left behind, and is adopted."""

    state: TieringState
    epoch: Annotated[int, Field(ge=0, le=INT32_MAX), Kube(format="int32")]
    policy: DisablePolicy | None = None


class LeftBehind(ApiModel):
    """A topic whose object was deleted with deletionPolicy Orphan: its data is still there."""

    topic_name: Annotated[str, Field(max_length=249)]
    topic_id: TopicIdText
    since: Time
    tiering: LeftBehindTiering | None = None


class RebuildingReason(enum.StrEnum):
    """Which PartitionSlices partitions are rebuilt without."""

    SLICES_MISSING = "SlicesMissing"
    SLICES_BEHIND = "SlicesBehind"


class Rebuilding(ApiModel):
    """Partitions are rebuilt from what brokers report: slices were lost, or are older than that."""

    since: Time
    reason: RebuildingReason


class StrayTopic(ApiModel):
    """A topic that brokers have, and that no Topic and no PartitionSlice knows: it is kept."""

    topic_name: Annotated[str, Field(max_length=249)]
    topic_id: TopicIdText


class ClusterStatus(ApiModel):
    """The cluster as it is."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=(
                "(!has(oldSelf.controller) || has(self.controller)) && "
                "(!has(oldSelf.slices) || has(self.slices)) && "
                "(!has(oldSelf.clusterId) || has(self.clusterId)) && "
                "(!has(oldSelf.nextProducerId) || has(self.nextProducerId))"
            ),
            message="controller, slices, clusterId and nextProducerId are kept once they are set",
        ),
    )

    observed_generation: Generation | None = None
    controller: ControllerStatus | None = None
    cluster_id: Annotated[
        str | None,
        Field(min_length=1, max_length=64, description="Kafka's cluster id; never changes."),
        Kube(Rule(rule=IMMUTABLE, message="clusterId never changes")),
    ] = None
    slices: Annotated[
        int | None,
        Field(ge=1, le=1024, description="Number of PartitionSlices; never changes."),
        Kube(
            Rule(rule=IMMUTABLE, message="the number of slices is fixed when the Cluster is made"),
            format="int32",
        ),
    ] = None
    store_id: Annotated[
        str | None, Field(max_length=64, description="Identity of the remote store in use.")
    ] = None
    accepted_storage: AcceptedStorage | None = None
    tiered_topics: Annotated[
        Count | None, Field(description="Topics that have data in the tier or may get some.")
    ] = None
    brokers: BrokerCounts | None = None
    external_listeners: Annotated[
        tuple[ExternalBootstrapServers, ...] | None,
        Field(max_length=16, description="Listeners that lead outside."),
        Kube(**ATOMIC),
    ] = None
    remote_bytes: Count | None = None
    next_producer_id: Annotated[
        int | None,
        Field(ge=0, description="First producer id that was not handed out yet."),
        Kube(
            Rule(rule="self >= oldSelf", message="nextProducerId never goes back"), format="int64"
        ),
    ] = None
    left_behind: Annotated[
        tuple[LeftBehind, ...] | None, Field(max_length=LEFT_BEHIND_MAX), Kube(**ATOMIC)
    ] = None
    rebuilding: Rebuilding | None = None
    stray_topics: Annotated[
        tuple[StrayTopic, ...] | None, Field(max_length=STRAY_TOPICS_MAX), Kube(**ATOMIC)
    ] = None
    accepted: Annotated[
        tuple[Accepted, ...] | None,
        Field(max_length=ACCEPTED_MAX, description="What was accepted by annotation, the latest."),
        Kube(**ATOMIC),
    ] = None
    throttled_brokers: Annotated[
        tuple[int, ...] | None,
        Field(
            max_length=1024,
            description="On Apache Kafka: brokers whose replication is throttled while replicas "
            "are moved.",
        ),
        Kube(**ATOMIC),
    ] = None
    conditions: Conditions = ()


_NO_TIERED_TOPICS = (
    "!has(oldSelf.spec.remoteStorage) || oldSelf.?status.tieredTopics.orValue(0) == 0"
)
_NEW_S3 = "self.spec.remoteStorage.s3"
_OLD_S3 = "oldSelf.spec.remoteStorage.s3"


def _same(field: str) -> str:
    """CEL: an optional field of s3 is as it was. (Comparing optionals exceeds the cost budget.)"""
    new, old = f"{_NEW_S3}.{field}", f"{_OLD_S3}.{field}"
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


_KEEPS_S3 = (
    f"(!has({_OLD_S3}) || (has({_NEW_S3}) && {_same('endpoint')} && {_same('prefix')} && "
    f"{_OLD_S3}.buckets.all(b, b in {_NEW_S3}.buckets)))"
)
_KEEPS_FILESYSTEM = (
    "(!has(oldSelf.spec.remoteStorage.filesystem) || (has(self.spec.remoteStorage.filesystem) && "
    "self.spec.remoteStorage.filesystem.path == oldSelf.spec.remoteStorage.filesystem.path))"
)


class Cluster(Resource):
    """A Tidemark cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.metadata.name.size() <= 48",
            message="the name of a Cluster has at most 48 characters",
        ),
        Rule(
            rule=(
                "!has(self.spec.brokers) || self.spec.brokers.template.listeners.all(l, "
                "!has(l.external) || self.metadata.name.size() + l.name.size() <= 52)"
            ),
            message=(
                "a Service is named by the Cluster and its external listener: both names have at "
                "most 52 characters together"
            ),
        ),
        Rule(
            rule=f"has(self.spec.remoteStorage) || {_NO_TIERED_TOPICS}",
            message=(
                "remoteStorage cannot be removed while topics have data in it: disable tiering of "
                "those topics first (status.tieredTopics counts them)"
            ),
            field_path=".spec.remoteStorage",
            reason="FieldValueForbidden",
        ),
        Rule(
            rule=(
                f"!has(self.spec.remoteStorage) || {_NO_TIERED_TOPICS} || "
                f"({_KEEPS_S3} && {_KEEPS_FILESYSTEM})"
            ),
            message=(
                "endpoint, prefix and path cannot change and no bucket can be dropped while topics "
                "have data there: disable tiering of those topics first"
            ),
            field_path=".spec.remoteStorage",
            reason="FieldValueForbidden",
        ),
    )

    spec: ClusterSpec
    status: Annotated[ClusterStatus, Kube(default=pending(READY))] = Field(
        default_factory=ClusterStatus
    )


def parse_cluster(obj: Mapping[str, Any]) -> Cluster:
    """Read a Cluster; raises InvalidResource."""
    return Cluster.parse(obj)


CLUSTER = ResourceKind(
    kind="Cluster",
    plural=PLURALS["Cluster"],
    singular="cluster",
    short_names=("tmc",),
    category=CATEGORY,
    model=Cluster,
    columns=(
        Column(
            name="Brokers",
            type="integer",
            json_path=".status.brokers.registered",
            description="Brokers that are registered",
        ),
        Column(
            name="Fenced",
            type="integer",
            json_path=".status.brokers.fenced",
            description="Registered brokers that are fenced",
        ),
        Column(
            name="Tiered topics",
            type="integer",
            json_path=".status.tieredTopics",
            description="Topics with data in the tier",
        ),
        condition_column("Ready"),
        Column(
            name="External",
            type="string",
            json_path=".status.externalListeners[0].bootstrapServers",
            description="Where clients outside begin",
        ),
        Column(
            name="Controller",
            type="string",
            json_path=".status.controller.identity",
            description="The operator that leads",
            priority=1,
        ),
        Column(
            name="Epoch",
            type="integer",
            json_path=".status.controller.epoch",
            description="Controller epoch",
            priority=1,
        ),
        AGE,
    ),
)
