"""``Cluster``: cluster-wide dynamic configuration, and the present controller.

Each takeover raises the controller epoch in this status by compare-and-set (the Lease only elects).
The accepted remote storage is in the status as well, so that a change which would amount to losing
the tier is recognized.
"""

import enum
from typing import Annotated, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark.reasons import RebuildingReason
from tidemark_operator.resources.broker_pod import APPARMOR, Annotations, BrokerPod, Labels
from tidemark_operator.resources.conditions import (
    READY,
    AcceptedLosses,
    Conditions,
    pending,
)
from tidemark_operator.resources.config_rules import ClusterConfig, GroupConfig
from tidemark_operator.resources.engine import ENGINE_RULES, EngineSpec
from tidemark_operator.resources.export_policy import ExportPolicy
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import GROUP
from tidemark_operator.resources.quotas import ClusterQuotas
from tidemark_operator.resources.references import SecretRef
from tidemark_operator.resources.scalars import Time
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    IMMUTABLE,
    SET,
    ApiModel,
    Count,
    Generation,
    KubernetesSchema,
    PrinterColumn,
    Rack,
    ResourceKind,
    Rule,
    ScaleSubresource,
    SpecModel,
    TopicIdText,
    condition_column,
)
from tidemark_operator.resources.topic import ClientChangesName, DisablePolicyName, TieringStateName

#: Number of brokers that one Cluster creates.
POD_BROKERS_MAX = 256
#: Number of consumer groups with a configuration of their own.
GROUPS_MAX = 128
#: Number of orphaned topics in a Cluster's status.
LEFT_BEHIND_MAX = 1024
STRAY_TOPICS_MAX = 64
#: Amazon S3, "Bucket naming rules".
Bucket = Annotated[
    str,
    Field(min_length=3, max_length=63, pattern="^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"),
    KubernetesSchema(
        Rule(
            # The API server cannot express this in the pattern, because RE2 has no lookahead.
            rule="!self.contains('..')",
            message="a bucket name must not contain two consecutive dots",
        )
    ),
]
#: Cloud Storage, "About Cloud Storage buckets", without the names of domains.
GcsBucket = Annotated[
    str,
    Field(min_length=3, max_length=63, pattern="^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$"),
    KubernetesSchema(
        Rule(
            rule="!self.contains('..')",
            message="a bucket name must not contain two consecutive dots",
        )
    ),
]
#: Azure, "Naming and referencing containers, blobs, and metadata".
Container = Annotated[str, Field(min_length=3, max_length=63, pattern="^[a-z0-9](-?[a-z0-9])+$")]
Prefix = Annotated[
    str,
    Field(max_length=256, pattern="^([A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*)?$"),
    KubernetesSchema(
        Rule(
            rule="!self.split('/').exists(part, part == '.' || part == '..')",
            message="a prefix must not contain a folder named . or ..",
        )
    ),
]
FolderPath = Annotated[str, Field(min_length=2, max_length=1024, pattern="^/")]
Url = Annotated[
    str,
    Field(
        max_length=1024,
        # No path, query or user: credentials belong into the Secret.
        pattern=r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)"
        r"(:[0-9]{1,5})?/?$",
    ),
]


RoleArn = Annotated[
    str, Field(max_length=2048, pattern=r"^arn:[a-z0-9-]+:iam::[^:\s]*:role/\S{1,512}$")
]
StorageClass = Annotated[
    str,
    Field(max_length=64, pattern="^[A-Z][A-Z0-9_]*$"),
    KubernetesSchema(
        Rule(
            rule="!(self in ['GLACIER', 'DEEP_ARCHIVE'])",
            message="objects of this class cannot be read at once. Use GLACIER_IR or another class",
        )
    ),
]


class S3Encryption(enum.StrEnum):
    """Encryption of objects by the service, with keys of S3 or of KMS."""

    SSE_S3 = "SSE-S3"
    SSE_KMS = "SSE-KMS"


class S3Addressing(enum.StrEnum):
    """Place of the bucket's name in a URL."""

    PATH = "path"
    VIRTUAL_HOST = "virtualHost"


class EncryptableStorageSpec(SpecModel):
    """Fields that every kind of storage has."""

    encryption_keys_secret_ref: SecretRef | None = None
    """Secret whose key encryptionKeys has the keys that encrypt segments before they are stored. A
    line is an id, a colon, and 32 bytes in base64, or the ARN of a key of AWS KMS and those bytes
    as it has encrypted them. The first line encrypts new segments, all lines decrypt. After a first
    line none, new segments are not encrypted. Default: segments are not encrypted by brokers."""


class S3Storage(EncryptableStorageSpec):
    """Storage on an S3-compatible service."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.kmsKeyId) || (has(self.encryption) && self.encryption == 'SSE-KMS')",
            message="kmsKeyId needs encryption SSE-KMS",
            field_path=".kmsKeyId",
        ),
    )

    endpoint: Url | None = None
    """URL of the S3 service. Default: AWS in the given region."""
    region: Annotated[str, Field(min_length=1, max_length=64, pattern="^[A-Za-z0-9-]+$")]
    buckets: Annotated[
        tuple[Bucket, ...], Field(min_length=1, max_length=16), KubernetesSchema(**SET)
    ]
    """Names of the buckets. Segments are distributed over all of them."""
    prefix: Prefix | None = None
    """Key prefix in each bucket, without a leading or trailing slash. Default: none."""
    create_buckets: bool | None = None
    """Create missing buckets. The first bucket of a store in use is never created again. Default:
    false, so a missing bucket is an error."""
    credentials_secret_ref: SecretRef | None = None
    """Secret with the keys accessKeyId and secretAccessKey, and sessionToken for temporary ones.
    Unset: operator, brokers and Exports use the identity of their own pods on AWS."""
    ca_secret_ref: SecretRef | None = None
    """Secret whose key ca.crt has the CA certificates of the service. Default: the system's
    certificate authorities only."""
    role_arn: RoleArn | None = None
    """Role that is assumed with these credentials."""
    encryption: S3Encryption | None = None
    """Encryption of new objects by the service: SSE-S3, or SSE-KMS with a key of KMS. Default: that
    of the bucket."""
    kms_key_id: Annotated[str, Field(min_length=1, max_length=2048, pattern=r"^\S+$")] | None = None
    """Key of KMS, by id or ARN. Default: the key that AWS manages for S3."""
    storage_class: StorageClass | None = None
    """Storage class of new segments, such as STANDARD_IA. Metadata stays in the bucket's own.
    Default: that of the bucket."""
    addressing: S3Addressing | None = None
    """Place of the bucket's name in a URL: path, or virtualHost. Default: path with an endpoint,
    virtualHost at AWS."""


class GcsStorage(EncryptableStorageSpec):
    """Storage in Google Cloud Storage. Its buckets must exist."""

    endpoint: Url | None = None
    """URL of another server, such as an emulator. It needs credentialsSecretRef, unless it is a
    host of googleapis.com. Default: Google's own."""
    buckets: Annotated[
        tuple[GcsBucket, ...], Field(min_length=1, max_length=16), KubernetesSchema(**SET)
    ]
    """Names of the buckets. Segments are distributed over all of them."""
    prefix: Prefix | None = None
    """Key prefix in each bucket, without a leading or trailing slash. Default: none."""
    credentials_secret_ref: SecretRef | None = None
    """Secret with the key serviceAccountKey, the JSON of a service account. Default: application
    default credentials of the operator and of each broker, such as Workload Identity."""


class AzureStorage(EncryptableStorageSpec):
    """Storage in Azure Blob Storage. Its containers must exist."""

    account: Annotated[str, Field(min_length=3, max_length=24, pattern="^[a-z0-9]+$")]
    """Name of the storage account."""
    endpoint: Url | None = None
    """URL of the blob service, for other clouds and emulators. A host that does not begin with the
    account's name gets the account in the path. Default: the account in Azure's public cloud."""
    containers: Annotated[
        tuple[Container, ...], Field(min_length=1, max_length=16), KubernetesSchema(**SET)
    ]
    """Names of the containers. Segments are distributed over all of them."""
    prefix: Prefix | None = None
    """Key prefix in each container, without a leading or trailing slash. Default: none."""
    credentials_secret_ref: SecretRef | None = None
    """Secret with the key credential: the key of the account, or a shared access signature.
    Default: workload identity or managed identity of the operator and of each broker."""


class FilesystemStorage(EncryptableStorageSpec):
    """Storage in a directory that all brokers mount."""

    path: FolderPath
    """Absolute path of the directory, identical on every broker."""


class RemoteStorage(SpecModel):
    """Location of tiered segments. Set one of s3, gcs, azure and filesystem."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="[has(self.s3), has(self.gcs), has(self.azure), has(self.filesystem)]"
            ".filter(given, given).size() == 1",
            message="remoteStorage needs exactly one of s3, gcs, azure and filesystem",
        ),
    )

    s3: S3Storage | None = None
    gcs: GcsStorage | None = None
    azure: AzureStorage | None = None
    filesystem: FilesystemStorage | None = None


class AuthorizationType(enum.StrEnum):
    """Source of authorization.

    simple: the ACLs of the Users, as with Kafka's standard authorizer.
    """

    SIMPLE = "simple"


#: An entry of Kafka's ``super.users`` without ``User:``.
SuperUser = Annotated[
    str,
    Field(min_length=1, max_length=256),
    KubernetesSchema(
        Rule(
            rule="!self.startsWith('User:')",
            message="a super user is the User's status.username, without the prefix User:",
        )
    ),
]


class ClusterAuthorization(SpecModel):
    """Authorization of users by ACLs."""

    type: AuthorizationType
    super_users: Annotated[
        tuple[SuperUser, ...] | None, Field(max_length=64), KubernetesSchema(**SET)
    ] = None
    """Principals with full access, regardless of ACLs, as in status.username of the User."""


class ClusterBrokers(SpecModel):
    """Pool of broker pods that the operator scales."""

    replicas: Annotated[int, Field(ge=1, le=POD_BROKERS_MAX), KubernetesSchema(format="int32")]
    """Number of brokers. When it is lowered, the operator drains the brokers with the highest ids
    and then removes them."""
    racks: Annotated[tuple[Rack, ...] | None, Field(max_length=16), KubernetesSchema(**SET)] = None
    """Failure zones. A new broker is assigned to the zone with the fewest brokers and stays in it.
    """
    template: BrokerPod
    """Pod template of the brokers."""


class ClusterReaders(SpecModel):
    """Pool of Reader pods, brokers without replicas that serve to consumers what only the tier has.

    They have the pod template of the brokers, with an emptyDir of the size in storage as volume.
    """

    replicas: Annotated[int, Field(ge=0, le=POD_BROKERS_MAX), KubernetesSchema(format="int32")]
    """Number of Readers, which the scale subresource sets. When it is lowered, the operator removes
    those with the highest ids."""
    racks: Annotated[tuple[Rack, ...] | None, Field(max_length=16), KubernetesSchema(**SET)] = None
    """Failure zones. A new Reader is assigned to the zone with the fewest Readers."""


_OURS = f"!self.exists(k, k.startsWith('{GROUP}/'))"
_OURS_MESSAGE = (
    f"labels and annotations that start with {GROUP}/ are reserved for the operator. Remove them."
)


class ObjectMetadata(SpecModel):
    """Labels and annotations for objects that the operator creates.

    The operator's own values take precedence.
    """

    labels: Annotated[Labels, KubernetesSchema(Rule(rule=_OURS, message=_OURS_MESSAGE))] = Field(
        default_factory=dict
    )
    annotations: Annotated[
        Annotations,
        KubernetesSchema(
            Rule(rule=_OURS, message=_OURS_MESSAGE),
            Rule(
                rule=f"!self.exists(k, k.startsWith('{APPARMOR}'))",
                message="the operator sets the security context of pods. Remove the "
                "AppArmor annotation.",
            ),
        ),
    ] = Field(default_factory=dict)


class ClusterSpec(SpecModel):
    """Desired state of the cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *ENGINE_RULES,
        Rule(
            rule="!has(self.readers) || has(self.brokers)",
            message="readers require brokers, because they have the pod template of the brokers. "
            "Set spec.brokers, or create Broker objects with role Reader.",
        ),
    )

    engine: EngineSpec | None = None
    """Engine that stores the topics. Default: Tidemark's own brokers. Immutable."""
    config: ClusterConfig | None = None
    """Cluster-wide configuration and topic defaults, by Kafka's keys."""
    groups: Annotated[dict[str, GroupConfig] | None, Field(max_length=GROUPS_MAX)] = None
    """Configuration of consumer groups, by group name and then by Kafka's keys."""
    remote_storage: RemoteStorage | None = None
    authorization: ClusterAuthorization | None = None
    """Authorization of users. Unset: every connected client has full access. Set: a client may do
    only what the ACLs of its User allow."""
    quotas: ClusterQuotas | None = None
    exports: ExportPolicy | None = None
    """Additional images, settings, addresses and volumes that Exports may use. Unset: only the safe
    defaults."""
    brokers: ClusterBrokers | None = None
    """Broker pods that the operator creates. Unset: the operator creates and removes none, and
    existing ones stay."""
    readers: ClusterReaders | None = None
    """Reader pods that the operator creates. Unset: the operator creates and removes none, and
    existing ones stay."""
    client_changes: ClientChangesName | None = None
    """Refuse: Kafka clients cannot create topics, nor change what a Topic or the Cluster declares.
    Requests fail with POLICY_VIOLATION. Records, moves of replicas and elections are not affected.
    Default: Allow."""
    object_metadata: ObjectMetadata | None = None
    """Labels and annotations for every object that the operator creates from now on, including
    Topics of Kafka clients. Use them to satisfy admission policies."""


class ControllerStatus(ApiModel):
    """Operator process that controls the cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # Fences at the API server: of two controllers with one epoch, only one identity can
            # write.
            rule=(
                "self.epoch > oldSelf.epoch || "
                "(self.epoch == oldSelf.epoch && self.identity == oldSelf.identity)"
            ),
            message=(
                "STALE_CONTROLLER_EPOCH: another controller has taken over "
                "with this epoch or a higher one"
            ),
            reason="FieldValueForbidden",
        ),
    )

    identity: Annotated[str, Field(min_length=1, max_length=253)]
    epoch: Annotated[int, Field(ge=1, le=INT32_MAX), KubernetesSchema(format="int32")]


class AcceptedS3(ApiModel):
    """Accepted S3 storage."""

    endpoint: Annotated[str, Field(max_length=1024)] | None = None
    region: Annotated[str, Field(max_length=64)]
    buckets: Annotated[tuple[Bucket, ...], Field(max_length=16), KubernetesSchema(**ATOMIC)]
    prefix: Annotated[str, Field(max_length=256)] | None = None


#: Name of a bucket or container, which was checked before.
PlaceName = Annotated[str, Field(max_length=63)]


class AcceptedGcs(ApiModel):
    """Accepted storage in Google Cloud Storage."""

    endpoint: Annotated[str, Field(max_length=1024)] | None = None
    buckets: Annotated[tuple[PlaceName, ...], Field(max_length=16), KubernetesSchema(**ATOMIC)]
    prefix: Annotated[str, Field(max_length=256)] | None = None


class AcceptedAzure(ApiModel):
    """Accepted storage in Azure Blob Storage."""

    account: Annotated[str, Field(max_length=24)]
    endpoint: Annotated[str, Field(max_length=1024)] | None = None
    containers: Annotated[tuple[PlaceName, ...], Field(max_length=16), KubernetesSchema(**ATOMIC)]
    prefix: Annotated[str, Field(max_length=256)] | None = None


class AcceptedFilesystem(ApiModel):
    """Accepted filesystem storage."""

    path: Annotated[str, Field(max_length=1024)]


class AcceptedStorage(ApiModel):
    """Storage configuration in use, without credentials."""

    s3: AcceptedS3 | None = None
    gcs: AcceptedGcs | None = None
    azure: AcceptedAzure | None = None
    filesystem: AcceptedFilesystem | None = None


class BrokerCounts(ApiModel):
    """Number of brokers of the cluster."""

    registered: Count
    fenced: Count


class ReaderCounts(ApiModel):
    """Readers of the cluster, for the scale subresource."""

    replicas: Count
    """Number of Broker objects with role Reader."""
    ready: Count
    """Number of Readers that are registered and not fenced."""
    selector: Annotated[str, Field(max_length=512)]
    """Labels of the pods of Readers."""


class ExternalBootstrapServers(ApiModel):
    """Bootstrap servers of an external listener."""

    name: Annotated[str, Field(max_length=64)]
    """Name of the listener."""
    bootstrap_servers: Annotated[str, Field(max_length=2048)]
    """Kafka's bootstrap.servers."""


class LeftBehindTiering(ApiModel):
    """Tiering state of the orphaned topic, which an adoption continues."""

    state: TieringStateName
    epoch: Annotated[int, Field(ge=0, le=INT32_MAX), KubernetesSchema(format="int32")]
    policy: DisablePolicyName | None = None


class LeftBehind(ApiModel):
    """Orphaned topic.

    Its object was deleted with deletionPolicy Orphan and its data still exists.
    """

    topic_name: Annotated[str, Field(max_length=249)]
    topic_id: TopicIdText
    since: Time
    tiering: LeftBehindTiering | None = None


class Rebuilding(ApiModel):
    """Rebuild of partitions from broker reports after PartitionSlices were lost or outdated."""

    since: Time
    reason: RebuildingReason


class StrayTopic(ApiModel):
    """Topic that exists on brokers without a Topic object or a PartitionSlice. Brokers keep it."""

    topic_name: Annotated[str, Field(max_length=249)]
    topic_id: TopicIdText


class ClusterStatus(ApiModel):
    """Observed state of the cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # A removed field could be set again to another value, and would fence nothing.
            rule=(
                "(!has(oldSelf.controller) || has(self.controller)) && "
                "(!has(oldSelf.slices) || has(self.slices)) && "
                "(!has(oldSelf.clusterId) || has(self.clusterId)) && "
                "(!has(oldSelf.nextProducerId) || has(self.nextProducerId))"
            ),
            message="controller, slices, clusterId and nextProducerId cannot be removed",
        ),
    )

    observed_generation: Generation | None = None
    controller: ControllerStatus | None = None
    cluster_id: Annotated[
        str | None,
        Field(min_length=1, max_length=64),
        KubernetesSchema(Rule(rule=IMMUTABLE, message="clusterId never changes")),
    ] = None
    """Kafka cluster id. It never changes."""
    slices: Annotated[
        int | None,
        Field(ge=1, le=1024),
        KubernetesSchema(
            Rule(
                rule=IMMUTABLE, message="the number of slices is fixed when the Cluster is created"
            ),
            format="int32",
        ),
    ] = None
    """Number of PartitionSlices. It never changes."""
    store_id: Annotated[str | None, Field(max_length=64)] = None
    """Id of the remote store in use."""
    accepted_storage: AcceptedStorage | None = None
    tiered_topics: Count | None = None
    """Number of topics that have data in the tier or may upload data."""
    brokers: BrokerCounts | None = None
    readers: ReaderCounts | None = None
    external_listeners: Annotated[
        tuple[ExternalBootstrapServers, ...] | None,
        Field(max_length=16),
        KubernetesSchema(**ATOMIC),
    ] = None
    """Listeners for clients outside the Kubernetes cluster."""
    remote_bytes: Count | None = None
    next_producer_id: Annotated[
        int | None,
        Field(ge=0),
        KubernetesSchema(
            Rule(rule="self >= oldSelf", message="nextProducerId never goes back"), format="int64"
        ),
    ] = None
    """First producer id that is not allocated yet."""
    left_behind: Annotated[
        tuple[LeftBehind, ...] | None, Field(max_length=LEFT_BEHIND_MAX), KubernetesSchema(**ATOMIC)
    ] = None
    rebuilding: Rebuilding | None = None
    stray_topics: Annotated[
        tuple[StrayTopic, ...] | None,
        Field(max_length=STRAY_TOPICS_MAX),
        KubernetesSchema(**ATOMIC),
    ] = None
    accepted: AcceptedLosses | None = None
    throttled_brokers: Annotated[
        tuple[int, ...] | None, Field(max_length=1024), KubernetesSchema(**ATOMIC)
    ] = None
    """Brokers of Apache Kafka whose replication is throttled during a reassignment."""
    conditions: Conditions = ()


_NO_TIERED_TOPICS = (
    "!has(oldSelf.spec.remoteStorage) || oldSelf.?status.tieredTopics.orValue(0) == 0"
)


def _keeps(kind: str, places: str, same: tuple[str, ...], *, required: str = "") -> str:
    """Return CEL: a kind of storage is unchanged, or has more buckets.

    ``places``: field with its buckets. ``same``: optional fields that must not change, compared one
    by one because comparing optionals exceeds the cost budget. ``required``: such a field that is
    always there.
    """
    new, old = f"self.spec.remoteStorage.{kind}", f"oldSelf.spec.remoteStorage.{kind}"
    unchanged = [
        f"has({new}.{name}) == has({old}.{name}) && "
        f"(!has({new}.{name}) || {new}.{name} == {old}.{name})"
        for name in same
    ]
    if required:
        unchanged.append(f"{new}.{required} == {old}.{required}")
    kept = f"{old}.{places}.all(b, b in {new}.{places})"
    return f"(!has({old}) || (has({new}) && {' && '.join([*unchanged, kept])}))"


_KEEPS_S3 = _keeps("s3", "buckets", ("endpoint", "prefix"))
_KEEPS_GCS = _keeps("gcs", "buckets", ("endpoint", "prefix"))
_KEEPS_AZURE = _keeps("azure", "containers", ("endpoint", "prefix"), required="account")
_KEEPS_FILESYSTEM = (
    "(!has(oldSelf.spec.remoteStorage.filesystem) || (has(self.spec.remoteStorage.filesystem) && "
    "self.spec.remoteStorage.filesystem.path == oldSelf.spec.remoteStorage.filesystem.path))"
)


class Cluster(Resource):
    """A Tidemark cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # The name is the prefix of Services, Secrets and PartitionSlices, with limits of 63
        # characters.
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
                "the names of the Cluster and of an external listener have at "
                "most 52 characters together, because they form the name of a "
                "Service. Shorten one of them."
            ),
        ),
        Rule(
            # Data in the tier would become unreadable.
            rule=f"has(self.spec.remoteStorage) || {_NO_TIERED_TOPICS}",
            message=(
                "remoteStorage cannot be removed while topics have data in it. "
                "Disable tiering of those topics first (status.tieredTopics "
                "counts them)."
            ),
            field_path=".spec.remoteStorage",
            reason="FieldValueForbidden",
        ),
        Rule(
            rule=(
                f"!has(self.spec.remoteStorage) || {_NO_TIERED_TOPICS} || "
                f"({_KEEPS_S3} && {_KEEPS_GCS} && {_KEEPS_AZURE} && {_KEEPS_FILESYSTEM})"
            ),
            message=(
                "account, endpoint, prefix and path cannot change and no bucket or container "
                "can be dropped while topics have data there. Disable tiering of "
                "those topics first."
            ),
            field_path=".spec.remoteStorage",
            reason="FieldValueForbidden",
        ),
    )

    spec: ClusterSpec
    status: Annotated[ClusterStatus, KubernetesSchema(default=pending(READY))] = Field(
        default_factory=ClusterStatus
    )


CLUSTER = ResourceKind(
    Cluster,
    short_names=("tmc",),
    scale=ScaleSubresource(
        spec_path=".spec.readers.replicas",
        status_path=".status.readers.replicas",
        selector_path=".status.readers.selector",
    ),
    columns=(
        PrinterColumn(
            "Brokers", "integer", ".status.brokers.registered", "Number of registered brokers"
        ),
        PrinterColumn(
            "Fenced",
            "integer",
            ".status.brokers.fenced",
            "Number of registered brokers that are fenced",
        ),
        PrinterColumn(
            "Readers",
            "integer",
            ".status.readers.ready",
            "Number of live Readers. Empty without Readers",
            priority=1,
        ),
        PrinterColumn(
            "Tiered topics",
            "integer",
            ".status.tieredTopics",
            "Number of topics with data in the tier",
        ),
        PrinterColumn(
            "Tier",
            "string",
            '.status.conditions[?(@.type=="RemoteStorageReady")].reason',
            "State of the remote storage. Empty without remote storage",
        ),
        condition_column("Ready"),
        PrinterColumn(
            "External",
            "string",
            ".status.externalListeners[0].bootstrapServers",
            "Bootstrap servers for external clients",
        ),
        PrinterColumn(
            "Controller",
            "string",
            ".status.controller.identity",
            "Operator process that controls the cluster",
            priority=1,
        ),
        PrinterColumn(
            "Epoch", "integer", ".status.controller.epoch", "Controller epoch", priority=1
        ),
        AGE,
    ),
)
