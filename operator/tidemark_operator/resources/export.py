"""``Export``: a topic's records in a lakehouse table, as long as the object exists.

The operator runs a Spark job for it: all the time (``continuous``), or on a ``schedule``, like a
CronJob that forbids concurrency. The fields use the terms of ``tidemark spark export``. Fields that
identify the table are immutable. Deletion of the object ends the job and leaves the table.
"""

import enum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tidemark_operator.resources.broker_pod import Labels
from tidemark_operator.resources.conditions import READY, Conditions, pending
from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.export_pod import ExportJob, SecretValue, SecretValues
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.references import SecretKeyRef, SecretRef, TopicRef, UserRef
from tidemark_operator.resources.scalars import Duration, Time
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    IMMUTABLE,
    ApiModel,
    ControllerEpoch,
    Count,
    Generation,
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

#: A CronJob's limit: a Job's name is eleven characters longer, and is a label of its pods.
NAME_MAX = 52
#: Options of the source (docs/reference/spark.md) that the operator does not set itself.
OPTIONS = (
    "kafka.security.protocol",
    "kafka.sasl.mechanism",
    "kafka.sasl.username",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "timestampSkewMs",
    "bytesPerTask",
    "decodeThreads",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
)
_FIXED = (
    *("format", "name", "warehouse", "mode", "partition", "keyBuckets", "properties"),
    *("deadLetters", "partitionBy", "sortBy"),
)
#: Options of the registry (docs/reference/schemas.md) that are neither secret nor files.
REGISTRY_OPTIONS = ("subject", "key-subject", "unknown", "user", "timeout", "patience")
#: Properties of a catalog whose values must not be in a manifest.
_SECRET = "(password|secret|secret-access-key|session-token)$"
_SECRETS = ("token", "credential")

TableName = Annotated[
    str,
    Field(
        min_length=3,
        max_length=255,
        pattern="^([A-Za-z0-9_]|[{]topic[}])+([.]([A-Za-z0-9_]|[{]topic[}])+)+$",
        description="Name of the table with its namespace, such as db.orders. With spec.topics a "
        "template such as db.{topic}, in which other characters of the topic's name than letters "
        "and digits become underscores.",
    ),
]


class TableFormat(enum.StrEnum):
    """Table format."""

    ICEBERG = "iceberg"
    DELTA = "delta"


class ValueFormat(enum.StrEnum):
    """Format of the record values."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class SchemaRegistry(SpecModel):
    """Schema registry with the API of Confluent Schema Registry."""

    url: Annotated[
        str,
        Field(min_length=8, max_length=2048, pattern=r"^https?://[^\s,@]+(,https?://[^\s,@]+)*$"),
    ]
    """URL with path. For several instances of one registry, a comma-separated list."""
    options: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(max_length=8),
        KubernetesSchema(
            Rule(
                rule=f"self.all(k, k in {cel_list(REGISTRY_OPTIONS)})",
                message=f"registry options are {', '.join(REGISTRY_OPTIONS)}. Set "
                "credentials and files in their own fields.",
            )
        ),
    ] = Field(default_factory=dict)
    """Registry options, see docs/reference/schemas.md."""
    secrets: Annotated[
        tuple[SecretValue, ...],
        Field(max_length=2),
        KubernetesSchema(
            Rule(
                rule="self.all(s, s.name in ['password', 'token'])",
                message="secrets of a registry are named password or token",
            ),
            **keyed_by("name"),
        ),
    ] = ()
    """Secret values of the options password and token."""
    trusted_secret_ref: SecretKeyRef | None = None
    """Secret key with the PEM certificates of the CA that signed the registry's certificate."""
    certificate_secret_ref: SecretRef | None = None
    """Secret with tls.crt and tls.key. The job presents this client certificate to the registry."""


class ExportSchema(SpecModel):
    """Mapping of record values to columns. Unset: each row contains the raw record."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # Exactly one source of the schema, which depends on the format.
            rule="self.format == 'json' ? has(self.fields) && !has(self.definition) && "
            "!has(self.file) && !has(self.registry) : !has(self.fields) && "
            "[has(self.definition), has(self.file), has(self.registry)].exists_one(one, one)",
            message="format json requires fields. Formats avro and protobuf require "
            "exactly one of definition, file and registry.",
        ),
        Rule(
            rule="!has(self.message) || self.format == 'protobuf'",
            message="message is supported only with format protobuf",
            field_path=".message",
        ),
    )

    format: ValueFormat
    fields: Annotated[str | None, Field(min_length=1, max_length=32768)] = None
    """Columns of JSON values as Spark DDL, such as "id BIGINT, name STRING", or infer."""
    definition: Annotated[str | None, Field(min_length=1, max_length=65536)] = None
    """Text of the schema, as in an .avsc or .proto file."""
    file: Annotated[str | None, Field(min_length=2, max_length=1024, pattern=r"^/\S+$")] = None
    """Path of an .avsc file, a .proto file or a descriptor set, in the image or in one of
    job.volumes."""
    registry: SchemaRegistry | None = None
    message: Annotated[
        str | None, Field(min_length=1, max_length=255, pattern="^[A-Za-z_][A-Za-z0-9_.]*$")
    ] = None
    """Full name of the Protobuf message. Required if the schema defines several."""
    evolution: Literal["refuse", "grow", "ignore"] | None = None
    """Handling of schema fields without a column: refuse fails the job, grow adds columns, ignore
    drops the fields. Default: refuse."""


def _never(field: str) -> Rule:
    return Rule(
        rule=f"has(self.{field}) == has(oldSelf.{field}) && "
        f"(!has(self.{field}) || self.{field} == oldSelf.{field})",
        message=f"table.{field} is immutable. Create another Export.",
        field_path=f".{field}",
    )


def _at_least(duration: str, name: str) -> KubernetesSchema:
    return KubernetesSchema(
        Rule(
            # The pattern first: duration() fails on an invalid text, and would hide its own
            # message.
            rule="!self.matches('^([0-9]+(h|m|s|ms))+$') || "
            f"duration(self) >= duration('{duration}')",
            message=f"{name} must be at least {duration}",
        )
    )


ColumnPath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=255,
        pattern=r"^[^\s`'\"]+$",
        description="Column of the table, a nested one as kafka.timestamp.",
    ),
]
_NUMBER = r"\[[1-9][0-9]{0,8}\]"


class PartitionColumn(SpecModel):
    """Partition field of an Iceberg table."""

    column: ColumnPath
    transform: Annotated[
        str | None,
        Field(
            max_length=32,
            pattern=rf"^(identity|year|month|day|hour|void|(bucket|truncate){_NUMBER})$",
        ),
    ] = None
    """Transform of Iceberg's specification: identity, year, month, day, hour, bucket[N],
    truncate[W] or void. Default: identity."""


class SortColumn(SpecModel):
    """Field of the sort order of an Iceberg table."""

    column: ColumnPath
    transform: Annotated[
        str | None,
        Field(
            max_length=32,
            pattern=rf"^(identity|year|month|day|hour|(bucket|truncate){_NUMBER})$",
        ),
    ] = None
    """Transform of Iceberg's specification. Default: identity."""
    direction: Literal["asc", "desc"] | None = None
    """asc has nulls first, desc has nulls last. Default: asc."""


class RunReference(SpecModel):
    """Tag or branch of an Iceberg table for each run of a scheduled Export."""

    prefix: Annotated[
        str, Field(min_length=1, max_length=64, pattern="^[A-Za-z0-9][A-Za-z0-9_-]*$")
    ]
    """Prefix of the name. The time of the run's end follows, as in nightly-20261129T030000Z."""
    kind: Literal["tag", "branch"] | None = None
    """Default: tag."""
    max_age: Annotated[Duration | None, _at_least("1m", "maxAge")] = None
    """Age after which an expiration of snapshots removes it. Default: 168h."""


_IS_ICEBERG = "!has(self.format) || self.format == 'iceberg'"


class ExportTable(SpecModel):
    """Target table, and the table for records that cannot be parsed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *map(_never, _FIXED),
        Rule(
            # Rows of the raw record and parsed columns cannot be in one table.
            rule="has(self.schema) == has(oldSelf.schema) && "
            "(!has(self.schema) || self.schema.format == oldSelf.schema.format)",
            message="table.schema cannot be added or removed, and its format is "
            "immutable. Create another Export.",
            field_path=".schema",
        ),
        Rule(
            rule="!has(self.deadLetters) || has(self.schema)",
            message="deadLetters requires a schema. Without one, every record is a row.",
            field_path=".deadLetters",
        ),
        Rule(
            rule="!has(self.deadLetters) || self.deadLetters != self.name",
            message="deadLetters must not be the target table",
            field_path=".deadLetters",
        ),
        Rule(
            # Delta's tables are addressed by path, and it has no partition transforms.
            rule=f"{_IS_ICEBERG} || "
            "!(has(self.catalog) || has(self.catalogSecrets) || has(self.keyBuckets) || "
            "has(self.partitionBy) || has(self.sortBy) || has(self.runRef))",
            message="format delta does not support catalog, catalogSecrets, keyBuckets, "
            "partitionBy, sortBy and runRef. Remove them.",
            field_path=".format",
        ),
        Rule(
            rule="!has(self.partitionBy) || !(has(self.partition) || has(self.keyBuckets))",
            message="partitionBy cannot be combined with partition and keyBuckets. Use the "
            "transforms day, hour and bucket[N].",
            field_path=".partitionBy",
        ),
        Rule(
            # Only the hadoop catalog is a folder of its own; other catalogs know their location.
            rule="has(self.warehouse) || (has(self.catalog) && ('catalog-impl' in self.catalog || "
            "('type' in self.catalog && self.catalog['type'] != 'hadoop')))",
            message="the location of the tables is missing. Set warehouse, or set "
            "catalog to a type other than hadoop.",
            field_path=".warehouse",
        ),
    )

    format: TableFormat | None = None
    """Table format. Default: iceberg."""
    name: TableName
    warehouse: Annotated[str | None, Field(min_length=1, max_length=1024, pattern=r"^\S+$")] = None
    """Location of the tables, as a path or a URI that the catalog supports."""
    catalog: Annotated[
        dict[str, Annotated[str, Field(max_length=2048)]],
        Field(max_length=32),
        KubernetesSchema(
            Rule(
                rule="!('warehouse' in self)",
                message="warehouse cannot be a catalog property. Set table.warehouse instead.",
            ),
            Rule(
                # Manifests are in Git and readable by more accounts than Secrets.
                rule=f"!self.exists(k, k in {cel_list(_SECRETS)} || k.matches('{_SECRET}'))",
                message="a credential must not be in the manifest. Put it into a "
                "Secret and use table.catalogSecrets.",
            ),
        ),
    ] = Field(default_factory=dict)
    """Catalog properties such as type, uri and io-impl. Default type: hadoop."""
    catalog_secrets: SecretValues = ()
    """Catalog properties whose values are in Secrets."""
    schema_: Annotated[ExportSchema | None, Field(alias="schema")] = None
    dead_letters: TableName | None = None
    """Table for records that cannot be parsed. Used only with a schema. Default: the table name
    with the suffix _dead_letters."""
    mode: Literal["append", "upsert"] | None = None
    """append: each record is a row. upsert: the last record of each key is a row, and a tombstone
    deletes the row. Default: append."""
    partition: Literal["none", "hour", "day"] | None = None
    """Partitioning of a new table. Default: none."""
    key_buckets: Annotated[int | None, Field(ge=1, le=10_000), KubernetesSchema(format="int32")] = (
        None
    )
    """Number of buckets by record key, for a new table of format iceberg."""
    partition_by: Annotated[
        tuple[PartitionColumn, ...], Field(max_length=16), KubernetesSchema(**ATOMIC)
    ] = ()
    """Partition fields of a new table of format iceberg. Dead letters have none."""
    sort_by: Annotated[
        tuple[SortColumn, ...], Field(max_length=16), KubernetesSchema(**ATOMIC)
    ] = ()
    """Order of the rows in each file of a new table of format iceberg."""
    run_ref: RunReference | None = None
    properties: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(max_length=32),
        KubernetesSchema(
            Rule(
                rule="self.all(k, k.matches('^[A-Za-z][A-Za-z0-9._-]{0,127}$')) && "
                'self.all(k, !self[k].contains("\'"))',
                message="a property name has only letters, digits, dots, underscores "
                "and dashes, and its value has no single quote",
            )
        ),
    ] = Field(default_factory=dict)
    """Table properties for a new table, by the names of the table format."""


class ReadTier(enum.StrEnum):
    """Source of the records: remote is the tier, local is the brokers, auto is both."""

    AUTO = "auto"
    REMOTE = "remote"
    LOCAL = "local"


class ExportSource(SpecModel):
    """Access of the job to the topic. With engine kafka only options can be set."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.listener) || !has(self.bootstrap)",
            message="listener and bootstrap cannot be combined. Set one of them.",
        ),
        Rule(
            # PLAINTEXT has no authentication, so the credentials would have no effect.
            rule="!has(self.userRef) || (has(self.options) && "
            "'kafka.security.protocol' in self.options && "
            "self.options['kafka.security.protocol'] != 'PLAINTEXT')",
            message="userRef requires kafka.security.protocol SSL, SASL_PLAINTEXT or "
            "SASL_SSL in options",
            field_path=".userRef",
        ),
    )

    tier: ReadTier | None = None
    """remote reads only the tier, does not connect to brokers and stops at the end of the tier.
    Default: auto."""
    listener: Annotated[
        str | None, Field(min_length=1, max_length=64, pattern="^[A-Za-z][A-Za-z0-9_-]*$")
    ] = None
    """Broker listener that the job connects to. Default: PLAINTEXT."""
    bootstrap: Annotated[
        str | None,
        Field(
            min_length=3, max_length=2048, pattern=r"^[^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*$"
        ),
    ] = None
    """Broker addresses as a comma-separated list of host:port. Replaces listener."""
    user_ref: UserRef | None = None
    """User of the Cluster. The job authenticates with the credentials in its Secret."""
    trusted_secret_ref: SecretKeyRef | None = None
    """Secret key with the PEM certificates of the CA that signed the brokers' certificates."""
    options: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]],
        Field(max_length=32),
        KubernetesSchema(
            Rule(
                rule=f"self.all(k, k in {cel_list(OPTIONS)})",
                message="an option is unknown or set by the operator. Remove it.",
                message_expression=(
                    f"self.filter(k, !(k in {cel_list(OPTIONS)}))[0] + ' cannot "
                    f"be set here. Supported options: {', '.join(OPTIONS)}.'"
                ),
            )
        ),
    ] = Field(default_factory=dict)
    """Options of the Spark source, see docs/reference/spark.md."""


class Continuous(SpecModel):
    """Export that runs all the time."""

    interval: Annotated[Duration | None, _at_least("1s", "interval")] = None
    """Time between commits while there are new records. At least 1s. Default: 60s."""


class TopicSelector(SpecModel):
    """Selection of Topics by their labels, like a selector of Kubernetes."""

    match_labels: Annotated[Labels, Field(min_length=1, max_length=16)]
    """Labels that a Topic must have, with these values."""


class ExportTopics(SpecModel):
    """Topics of an Export of many topics, with one table for each."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="[has(self.names), has(self.pattern), has(self.selector)].exists_one(one, one)",
            message="topics needs exactly one of names, pattern and selector",
        ),
    )

    names: Annotated[
        tuple[
            Annotated[str, Field(min_length=1, max_length=249, pattern="^[A-Za-z0-9._-]+$")], ...
        ],
        Field(max_length=500),
        KubernetesSchema(**{"x-kubernetes-list-type": "set"}),
    ] = ()
    """Names of topics."""
    pattern: Annotated[str | None, Field(min_length=1, max_length=1024)] = None
    """Regular expression that matches the whole name of a topic. Internal topics never match. A
    topic that is created later is exported, too."""
    selector: TopicSelector | None = None
    """Topics of the namespace by their labels. A topic that is selected later is exported, too."""


#: Five fields or a macro.
CRON = (
    r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)"
    r"|[^\s@=]+( +[^\s@=]+){4})$"
)
TimeZone = Annotated[
    str,
    Field(min_length=1, max_length=64, pattern="^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"),
]


class Compaction(SpecModel):
    """Rewriting of small files, and of files with many deleted rows, into large ones."""

    enabled: bool | None = None
    """Default: true."""


class SnapshotExpiration(SpecModel):
    """Deletion of old versions of the tables, and of files that only they need."""

    enabled: bool | None = None
    """Default: true."""
    older_than: Duration | None = None
    """Age up to which versions are kept. Delta Lake refuses less than the table's
    delta.deletedFileRetentionDuration, by default 168h. Default: 168h."""
    keep_last: Annotated[
        int | None, Field(ge=1, le=1_000_000), KubernetesSchema(format="int32")
    ] = None
    """Number of versions that are kept at any age. Used only with format iceberg. Default: 1."""


class OrphanRemoval(SpecModel):
    """Deletion of files in a table's folder that no version of the table names."""

    enabled: bool | None = None
    """Default: true."""
    older_than: Annotated[Duration | None, _at_least("24h", "olderThan")] = None
    """Age of the files. With format delta, the longer one of this and expireSnapshots.olderThan
    applies. At least 24h. Default: 72h."""


class Maintenance(SpecModel):
    """Maintenance of the tables by the job, between two of its commits."""

    schedule: Annotated[str | None, Field(min_length=1, max_length=256, pattern=CRON)] = None
    """Cron schedule with five fields, or a macro. A scheduled Export does its maintenance at the
    end of the next run. Default: @hourly."""
    time_zone: TimeZone | None = None
    """IANA time zone of the schedule. Default: UTC."""
    compaction: Compaction | None = None
    expire_snapshots: SnapshotExpiration | None = None
    remove_orphans: OrphanRemoval | None = None
    max_pause: Annotated[Duration | None, _at_least("1s", "maxPause")] = None
    """Time for which a compaction or expiration may keep the job from committing. It is stopped
    after that. Default: 5m."""


class ExportSpec(SpecModel):
    """Source topic, target table and schedule."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.topicRef) != has(self.topics)",
            message="an Export needs exactly one of topicRef and topics",
        ),
        Rule(
            rule="has(self.topicRef) == has(oldSelf.topicRef)",
            message="topicRef and topics cannot replace each other. Create another Export.",
        ),
        Rule(
            # Without the placeholder all topics would have the same table.
            rule="has(self.topics) == self.table.name.contains('{topic}') && "
            "(!has(self.table.deadLetters) || "
            "has(self.topics) == self.table.deadLetters.contains('{topic}'))",
            message="with topics, table.name and table.deadLetters must contain {topic}. With "
            "topicRef they must not.",
            field_path=".table",
        ),
        Rule(
            rule="has(self.schedule) != has(self.continuous)",
            message="an Export needs exactly one of schedule and continuous",
        ),
        Rule(
            rule="!has(self.timeZone) || has(self.schedule)",
            message="timeZone requires schedule",
            field_path=".timeZone",
        ),
        Rule(
            rule="!has(self.table.runRef) || has(self.schedule)",
            message="table.runRef requires schedule, because a continuous run has no end",
            field_path=".table.runRef",
        ),
        Rule(
            # Deletion goes through the brokers.
            rule="!has(self.deleteAfterCommit) || !self.deleteAfterCommit || !has(self.source) || "
            "!has(self.source.tier) || self.source.tier != 'remote'",
            message="deleteAfterCommit requires brokers and cannot be combined with "
            "source.tier remote",
            field_path=".deleteAfterCommit",
        ),
    )

    topic_ref: Annotated[
        TopicRef | None,
        KubernetesSchema(
            Rule(
                rule=IMMUTABLE,
                message="topicRef is immutable. Create an Export for the other topic.",
            )
        ),
    ] = None
    topics: ExportTopics | None = None
    table: ExportTable
    source: ExportSource | None = None
    schedule: Annotated[str | None, Field(min_length=1, max_length=256, pattern=CRON)] = None
    """Cron schedule with five fields, or a macro such as @hourly. Each run exports all records up
    to its start. Runs do not overlap."""
    time_zone: TimeZone | None = None
    """IANA time zone of the schedule, such as Europe/Berlin. Default: UTC."""
    continuous: Continuous | None = None
    delete_after_commit: bool | None = None
    """Delete records from the topic after they are committed to the table. Default: false."""
    maintenance: Maintenance | None = None
    """Maintenance of the tables. Unset: the job does none."""
    suspend: bool | None = None
    """Stop the current job and start no further ones. Default: false."""
    job: ExportJob | None = None


class ExportRun(ApiModel):
    """Current or latest run of the job."""

    number: Count
    """From 1."""
    generation: Count
    """Generation of the spec that the run uses."""
    order: Annotated[str, Field(max_length=64)] = ""
    """Hash of the job configuration."""
    start_time: Time
    end_time: Time | None = None
    """Unset while the run is in progress."""
    outcome: Literal["Succeeded", "Stopped", "Failed", "Refused", "Superseded"] | None = None
    """Result of the run. Unset while it is in progress."""


class ExportedTopic(ApiModel):
    """State of one topic of many."""

    topic: Annotated[str, Field(max_length=255)]
    table: Annotated[str, Field(max_length=255)]
    lag: Count | None = None
    """Number of offsets of the topic that are not in the table yet."""
    failure: Annotated[str | None, Field(max_length=256)] = None
    """Why the topic is not exported."""


class ExportedTopics(ApiModel):
    """State of the topics of an Export of many topics."""

    total: Count
    failing: Count = 0
    """Number of topics that are not exported."""
    behind: Count = 0
    """Number of topics with records that are not in their table yet."""
    worst: Annotated[
        tuple[ExportedTopic, ...], Field(max_length=20), KubernetesSchema(**ATOMIC)
    ] = ()
    """Failing topics, then those with the largest lag. At most 20."""


class ExportCost(ApiModel):
    """Cost of the current or last run."""

    cpu_seconds: Count
    """CPU time of all processes of the job, from the start of Spark on. Unset with executors."""
    written_bytes: Count
    """Bytes of the data files in the run's commits."""
    cpu_seconds_per_gigabyte: Count | None = None
    """CPU time for each 10^9 written bytes. Unset before the first commit."""


class MaintenanceStatus(ApiModel):
    """Maintenance of the tables. Figures are of the last run."""

    step: Annotated[str | None, Field(max_length=256)] = None
    """Step in progress."""
    start_time: Time | None = None
    """Start of the current or last run."""
    end_time: Time | None = None
    """End of the last run."""
    next_time: Time | None = None
    """Start of the next run."""
    failed_tables: Count | None = None
    """Number of tables whose maintenance failed."""
    last_failure: Annotated[str | None, Field(max_length=256)] = None
    """Table and error of the first failure."""
    compacted_files: Count | None = None
    """Number of files that were rewritten."""
    written_files: Count | None = None
    """Number of files that replace them."""
    expired_versions: Count | None = None
    removed_files: Count | None = None
    """Number of files that were deleted with old versions."""
    removed_orphans: Count | None = None


class ExportStatus(ApiModel):
    """Progress of the table."""

    observed_generation: Generation | None = None
    controller_epoch: ControllerEpoch | None = None
    topic_id: Annotated[
        TopicIdText | None, KubernetesSchema(Rule(rule=IMMUTABLE, message="topicId never changes"))
    ] = None
    """Id of the exported topic. A topic that is created again under the same name is not exported.
    """
    run: ExportRun | None = None
    failures: Count | None = None
    """Number of consecutive runs that failed without a commit."""
    last_failure: Annotated[str | None, Field(max_length=1024)] = None
    """Error of the latest failed run."""
    last_schedule_time: Time | None = None
    """Latest scheduled time for which a run was started."""
    last_successful_time: Time | None = None
    """When the latest scheduled run succeeded."""
    lag: Count | None = None
    """Number of offsets of the topic that were not in the table yet at observedTime."""
    lag_seconds: Count | None = None
    """Seconds from currentTime to observedTime. 0 if the table had all records, also of an idle
    topic. Unset until the table has reached the end that the topic had when the first job started.
    """
    exported_offsets: Count | None = None
    """Number of offsets from the topic's log start, when the job started, to the table's position.
    With lag it is the progress of the table."""
    observed_time: Time | None = None
    """When the job last queried the topic's end. With spec.topics it is the least recent query."""
    cost: ExportCost | None = None
    rows: Count | None = None
    """Number of rows in the table."""
    dead_letters: Count | None = None
    """Number of rows in the table for records that cannot be parsed."""
    topics: ExportedTopics | None = None
    """Only with spec.topics. The other figures are sums over all topics."""
    last_commit_time: Time | None = None
    current_time: Time | None = None
    """The table contains all records that the topic had at this time."""
    maintenance: MaintenanceStatus | None = None
    conditions: Conditions = ()


class Export(Resource):
    """Continuous or scheduled export of a topic to a table of Apache Iceberg or Delta Lake."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"self.metadata.name.size() <= {NAME_MAX}",
            message=f"the name of an Export has at most {NAME_MAX} characters, because "
            "it is a prefix of the names of its Jobs",
        ),
    )

    spec: ExportSpec
    status: Annotated[ExportStatus, KubernetesSchema(default=pending(READY))] = Field(
        default_factory=ExportStatus
    )


EXPORT = ResourceKind(
    Export,
    short_names=("tmx",),
    columns=(
        PrinterColumn("Topic", "string", ".spec.topicRef.name", "Topic that is exported"),
        PrinterColumn("Table", "string", ".spec.table.name", "Target table"),
        condition_column("Ready"),
        reason_column("Ready"),
        PrinterColumn(
            "Lag", "integer", ".status.lag", "Number of offsets that are not in the table yet"
        ),
        PrinterColumn("Committed", "date", ".status.lastCommitTime", "Time since the last commit"),
        PrinterColumn("Rows", "integer", ".status.rows", "Number of rows in the table", priority=1),
        PrinterColumn(
            "Schedule", "string", ".spec.schedule", "Schedule of a scheduled Export", priority=1
        ),
        PrinterColumn("Topics", "integer", ".status.topics.total", "Number of topics", priority=1),
        AGE,
    ),
)
