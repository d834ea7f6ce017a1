"""``Export``: a topic's records in a lakehouse table, for as long as the object is there.

The operator runs a Spark job for it: all the time (``continuous``), or at times (``schedule``, as
of a CronJob that forbids concurrency). Fields are the words of ``tidemark spark export``. What
makes the table another one never changes; deleting the object ends the job and leaves the table.
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tidemark_operator.resources.conditions import READY, Conditions, pending
from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.durations import Duration
from tidemark_operator.resources.export_pod import ExportJob, SecretValue, SecretValues
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import CATEGORY, PLURALS
from tidemark_operator.resources.references import SecretKeyRef, SecretRef, TopicRef, UserRef
from tidemark_operator.resources.schema import (
    AGE,
    IMMUTABLE,
    ApiModel,
    Column,
    ControllerEpoch,
    Count,
    Generation,
    Kube,
    ResourceKind,
    Rule,
    SpecModel,
    TopicIdText,
    condition_column,
)
from tidemark_operator.resources.times import Time

#: A CronJob's limit: a Job's name has eleven characters more, and is a label of its pods.
NAME_MAX = 52
#: Of the source's options (docs/reference/spark.md) those that the operator does not set itself.
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
    "deadLetters",
)
#: Of the registry's options (docs/reference/schemas.md) those that are neither secret nor files.
REGISTRY_OPTIONS = ("subject", "key-subject", "unknown", "user", "timeout", "patience")
#: Of a catalog's properties those that are no secret's place in a manifest.
_SECRET = "(password|secret|secret-access-key|session-token)$"
_SECRETS = ("token", "credential")

TableName = Annotated[
    str,
    Field(
        min_length=3,
        max_length=255,
        pattern="^[A-Za-z0-9_]+([.][A-Za-z0-9_]+)+$",
        description="With its namespace, as db.orders.",
    ),
]


class TableFormat(enum.StrEnum):
    """Which lakehouse format the table has."""

    ICEBERG = "iceberg"


class Mode(enum.StrEnum):
    """How rows get in: every record is one, or the last of each key."""

    APPEND = "append"
    UPSERT = "upsert"


class Partition(enum.StrEnum):
    """Partitioning of a new table, by the record's timestamp."""

    NONE = "none"
    HOUR = "hour"
    DAY = "day"


class ValueFormat(enum.StrEnum):
    """What the records' values are."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Evolution(enum.StrEnum):
    """What is done where the schema has more than the table."""

    REFUSE = "refuse"
    GROW = "grow"
    IGNORE = "ignore"


class SchemaRegistry(SpecModel):
    """A registry that answers as Confluent's does."""

    url: Annotated[
        str,
        Field(
            min_length=8,
            max_length=2048,
            pattern=r"^https?://[^\s,@]+(,https?://[^\s,@]+)*$",
            description="With its path; several of one registry with commas.",
        ),
    ]
    options: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(max_length=8, description="As docs/reference/schemas.md has them."),
        Kube(
            Rule(
                rule=f"self.all(k, k in {cel_list(REGISTRY_OPTIONS)})",
                message=f"options are {', '.join(REGISTRY_OPTIONS)}; what is secret, and files, "
                "have fields of their own",
            )
        ),
    ] = Field(default_factory=dict)
    secrets: Annotated[
        tuple[SecretValue, ...],
        Field(max_length=2, description="The options password and token."),
        Kube(
            Rule(
                rule="self.all(s, s.name in ['password', 'token'])",
                message="the secrets of a registry are password and token",
            ),
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    trusted_secret_ref: Annotated[
        SecretKeyRef | None, Field(description="PEM of who signs the registry's certificate.")
    ] = None
    certificate_secret_ref: Annotated[
        SecretRef | None, Field(description="Secret with tls.crt and tls.key, shown to it.")
    ] = None


class ExportSchema(SpecModel):
    """How values become columns. Where it is unset, rows are records as they are."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.format == 'json' ? has(self.fields) && !has(self.definition) && "
            "!has(self.file) && !has(self.registry) : !has(self.fields) && "
            "[has(self.definition), has(self.file), has(self.registry)].exists_one(one, one)",
            message="json has fields; avro and protobuf have one of definition, file and registry",
        ),
        Rule(
            rule="!has(self.message) || self.format == 'protobuf'",
            message="only Protobuf has a message",
            field_path=".message",
        ),
    )

    format: ValueFormat
    fields: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=32768,
            description="Of JSON: Spark's DDL, as in id BIGINT, name STRING; or infer.",
        ),
    ] = None
    definition: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=65536,
            description="The schema itself, as it would stand in a file .avsc or .proto.",
        ),
    ] = None
    file: Annotated[
        str | None,
        Field(
            min_length=2,
            max_length=1024,
            pattern=r"^/\S+$",
            description="A path in the image, or in one of job.volumes: .avsc, .proto, or a set of "
            "descriptors.",
        ),
    ] = None
    registry: SchemaRegistry | None = None
    message: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=255,
            pattern="^[A-Za-z_][A-Za-z0-9_.]*$",
            description="Of Protobuf: the full name, where there are several.",
        ),
    ] = None
    evolution: Annotated[
        Evolution | None,
        Field(
            description="Where the schema has more than the table: refuse it (also when unset), "
            "let the table grow, or ignore what it has no column for."
        ),
    ] = None


def _never(field: str) -> Rule:
    return Rule(
        rule=f"has(self.{field}) == has(oldSelf.{field}) && "
        f"(!has(self.{field}) || self.{field} == oldSelf.{field})",
        message=f"table.{field} is immutable: make another Export",
        field_path=f".{field}",
    )


class ExportTable(SpecModel):
    """The table, and that of records that do not parse."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *map(_never, _FIXED),
        Rule(
            rule="has(self.schema) == has(oldSelf.schema) && "
            "(!has(self.schema) || self.schema.format == oldSelf.schema.format)",
            message="a table of records stays one, and so does one of fields: make another Export",
            field_path=".schema",
        ),
        Rule(
            rule="!has(self.deadLetters) || has(self.schema)",
            message="without a schema every record is a row: there are no dead letters",
            field_path=".deadLetters",
        ),
        Rule(
            rule="!has(self.deadLetters) || self.deadLetters != self.name",
            message="dead letters have a table of their own",
            field_path=".deadLetters",
        ),
        Rule(
            rule="has(self.warehouse) || (has(self.catalog) && ('catalog-impl' in self.catalog || "
            "('type' in self.catalog && self.catalog['type'] != 'hadoop')))",
            message="say where tables are kept: warehouse, or a catalog of another type",
            field_path=".warehouse",
        ),
    )

    format: Annotated[TableFormat | None, Field(description="iceberg, also when unset.")] = None
    name: TableName
    warehouse: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=1024,
            pattern=r"^\S+$",
            description="Where the catalog keeps tables: a path, or a URI that it knows.",
        ),
    ] = None
    catalog: Annotated[
        dict[str, Annotated[str, Field(max_length=2048)]],
        Field(
            max_length=32,
            description="Properties of the format's catalog (type, uri, io-impl …); the type is "
            "hadoop where none is given.",
        ),
        Kube(
            Rule(
                rule="!('warehouse' in self)",
                message="the warehouse has a field of its own: table.warehouse",
            ),
            Rule(
                rule=f"!self.exists(k, k in {cel_list(_SECRETS)} || k.matches('{_SECRET}'))",
                message="a secret stands in a Secret: table.catalogSecrets",
            ),
        ),
    ] = Field(default_factory=dict)
    catalog_secrets: Annotated[
        SecretValues, Field(description="Properties of the catalog whose values are in Secrets.")
    ] = ()
    schema_: Annotated[ExportSchema | None, Field(alias="schema")] = None
    dead_letters: Annotated[
        TableName | None,
        Field(
            description="With a schema, the table of records that do not parse; unset: the "
            "table's name with _dead_letters."
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        Field(
            description="append, also when unset: every record is a row. upsert: of each key the "
            "last one, and none where that has no value."
        ),
    ] = None
    partition: Annotated[Partition | None, Field(description="none when unset.")] = None
    key_buckets: Annotated[
        int | None,
        Field(ge=1, le=10_000, description="Of a new table: so many buckets of the record's key."),
        Kube(format="int32"),
    ] = None
    properties: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(max_length=32, description="Of a new table, in its format's words."),
        Kube(
            Rule(
                rule="self.all(k, k.matches('^[A-Za-z][A-Za-z0-9._-]{0,127}$')) && "
                'self.all(k, !self[k].contains("\'"))',
                message="a property has a name of letters, digits, dots and dashes, and no quote "
                "in its value",
            )
        ),
    ] = Field(default_factory=dict)


class ReadTier(enum.StrEnum):
    """What is read: the tier and what brokers alone have, or one of them."""

    AUTO = "auto"
    REMOTE = "remote"
    LOCAL = "local"


class ExportSource(SpecModel):
    """How the topic is read."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.listener) || !has(self.bootstrap)",
            message="give either listener or bootstrap",
        ),
        Rule(
            rule="!has(self.userRef) || (has(self.options) && "
            "'kafka.security.protocol' in self.options && "
            "self.options['kafka.security.protocol'] != 'PLAINTEXT')",
            message="a user proves itself where options has kafka.security.protocol: SSL, "
            "SASL_PLAINTEXT or SASL_SSL",
            field_path=".userRef",
        ),
    )

    tier: Annotated[
        ReadTier | None,
        Field(
            description="auto, also when unset; remote: no broker is asked, and the export ends "
            "where the tier does."
        ),
    ] = None
    listener: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=64,
            pattern="^[A-Za-z][A-Za-z0-9_-]*$",
            description="Of brokers; PLAINTEXT when unset.",
        ),
    ] = None
    bootstrap: Annotated[
        str | None,
        Field(
            min_length=3,
            max_length=2048,
            pattern=r"^[^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*$",
            description="host:port of brokers, comma-separated, instead of a listener's.",
        ),
    ] = None
    user_ref: Annotated[
        UserRef | None,
        Field(description="A User of the Cluster, by whose Secret the job proves who it is."),
    ] = None
    trusted_secret_ref: Annotated[
        SecretKeyRef | None,
        Field(description="PEM of who signs the brokers' certificates."),
    ] = None
    options: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]],
        Field(max_length=32, description="Options of the source (docs/reference/spark.md)."),
        Kube(
            Rule(
                rule=f"self.all(k, k in {cel_list(OPTIONS)})",
                message="an option is not known, or is the operator's to set",
                message_expression=(
                    f"self.filter(k, !(k in {cel_list(OPTIONS)}))[0] + ' is no option that can be "
                    f"set here: {', '.join(OPTIONS)}'"
                ),
            )
        ),
    ] = Field(default_factory=dict)


class Continuous(SpecModel):
    """The job stays."""

    interval: Annotated[
        Duration | None,
        Field(description="A commit every so often, where there is something; 60s."),
        Kube(
            Rule(
                rule="!self.matches('^([0-9]+(h|m|s|ms))+$') || duration(self) >= duration('1s')",
                message="interval is at least 1s",
            )
        ),
    ] = None


class ExportSpec(SpecModel):
    """From which topic to which table, and when."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.schedule) != has(self.continuous)",
            message="give either schedule or continuous",
        ),
        Rule(
            rule="!has(self.timeZone) || has(self.schedule)",
            message="a time zone is that of a schedule",
            field_path=".timeZone",
        ),
        Rule(
            rule="!has(self.deleteAfterCommit) || !self.deleteAfterCommit || !has(self.source) || "
            "!has(self.source.tier) || self.source.tier != 'remote'",
            message="brokers delete records: deleteAfterCommit needs them, and source.tier is "
            "remote",
            field_path=".deleteAfterCommit",
        ),
    )

    topic_ref: Annotated[
        TopicRef,
        Kube(
            Rule(rule=IMMUTABLE, message="topicRef is immutable: make an Export of the other topic")
        ),
    ]
    table: ExportTable
    source: ExportSource | None = None
    schedule: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            pattern=r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)"
            r"|[^\s@=]+( +[^\s@=]+){4})$",
            description="Cron's five fields, or @hourly and the like: all that there is then. A "
            "run that is not over at the next time is not joined by another.",
        ),
    ] = None
    time_zone: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=64,
            pattern="^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$",
            description="Of the schedule, as Europe/Berlin; unset: UTC.",
        ),
    ] = None
    continuous: Continuous | None = None
    delete_after_commit: Annotated[
        bool | None,
        Field(
            description="true: what stands in a commit of the table is deleted from the topic, by "
            "its brokers."
        ),
    ] = None
    suspend: Annotated[
        bool | None, Field(description="true: a job that runs is ended, and none is begun.")
    ] = None
    job: ExportJob | None = None


class RunOutcome(enum.StrEnum):
    """How a run of the job ended."""

    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"
    REFUSED = "Refused"
    SUPERSEDED = "Superseded"


class ExportRun(ApiModel):
    """The run of the job that is under way, or was the last one."""

    number: Annotated[Count, Field(description="From 1.")]
    generation: Annotated[Count, Field(description="Of the spec that it was begun with.")]
    order: Annotated[
        str, Field(max_length=64, description="Changes with what the job is to do.")
    ] = ""
    start_time: Time
    end_time: Annotated[Time | None, Field(description="Unset: it is under way.")] = None
    outcome: RunOutcome | None = None


class ExportStatus(ApiModel):
    """How far the table is."""

    observed_generation: Generation | None = None
    controller_epoch: ControllerEpoch | None = None
    topic_id: Annotated[
        TopicIdText | None,
        Field(description="The topic that was exported first; another one of its name is not."),
        Kube(Rule(rule=IMMUTABLE, message="topicId never changes")),
    ] = None
    run: ExportRun | None = None
    failures: Annotated[
        Count | None, Field(description="Runs in a row that failed without a commit.")
    ] = None
    last_failure: Annotated[
        str | None, Field(max_length=1024, description="What the last failed run said.")
    ] = None
    last_schedule_time: Annotated[
        Time | None, Field(description="The last time of the schedule for which a run was begun.")
    ] = None
    last_successful_time: Annotated[
        Time | None, Field(description="When a scheduled run last ended well.")
    ] = None
    lag: Annotated[
        Count | None, Field(description="Offsets of the topic that the table has not.")
    ] = None
    rows: Annotated[Count | None, Field(description="That the table has.")] = None
    dead_letters: Annotated[
        Count | None, Field(description="Rows of the table of records that do not parse.")
    ] = None
    last_commit_time: Time | None = None
    current_time: Annotated[
        Time | None, Field(description="All that the topic had then is in the table.")
    ] = None
    conditions: Conditions = ()


class Export(Resource):
    """A topic's records in a table of Apache Iceberg."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"self.metadata.name.size() <= {NAME_MAX}",
            message=f"an Export has a name of at most {NAME_MAX} characters: its Jobs are called "
            "after it",
        ),
    )

    spec: ExportSpec
    status: Annotated[ExportStatus, Kube(default=pending(READY))] = Field(
        default_factory=ExportStatus
    )


def parse_export(obj: Mapping[str, Any]) -> Export:
    """Read an Export; raises InvalidResource."""
    return Export.parse(obj)


EXPORT = ResourceKind(
    kind="Export",
    plural=PLURALS["Export"],
    singular="export",
    short_names=("tmx",),
    category=CATEGORY,
    model=Export,
    columns=(
        Column(
            name="Topic",
            type="string",
            json_path=".spec.topicRef.name",
            description="The Topic that is exported",
        ),
        Column(
            name="Table",
            type="string",
            json_path=".spec.table.name",
            description="The table that it is exported to",
        ),
        condition_column("Ready"),
        Column(
            name="Reason",
            type="string",
            json_path='.status.conditions[?(@.type=="Ready")].reason',
            description="Reason of the condition Ready",
        ),
        Column(
            name="Lag",
            type="integer",
            json_path=".status.lag",
            description="Offsets of the topic that the table has not",
        ),
        Column(
            name="Committed",
            type="date",
            json_path=".status.lastCommitTime",
            description="Time since the last commit",
        ),
        Column(
            name="Rows",
            type="integer",
            json_path=".status.rows",
            description="Rows that the table has",
            priority=1,
        ),
        Column(
            name="Schedule",
            type="string",
            json_path=".spec.schedule",
            description="When it runs, where it does not run all the time",
            priority=1,
        ),
        AGE,
    ),
)
