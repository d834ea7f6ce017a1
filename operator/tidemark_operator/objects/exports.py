"""Conversion of Exports to the core's values and to the orders of their jobs.

Pure: pydantic models in, frozen dataclasses out.
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tidemark.export_job import (
    ENGINE,
    KAFKA,
    USERNAME_OPTION,
    HiddenOption,
    MaintenancePlan,
    OptionPlace,
    Order,
)
from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark.schedule import Schedule, ScheduleError
from tidemark.tier.stores.config import (
    KINDS,
    OPTIONAL_CREDENTIALS,
    STORAGE,
    location_of,
    must_be_named,
    settings_of,
)
from tidemark.tier.stores.key_ring import KEYS_NAME, KEYS_OPTION
from tidemark.tier.stores.s3_config import S3Config
from tidemark.wire.control import Endpoint
from tidemark_operator.controller.external_listeners import text_of
from tidemark_operator.controller.state.export_values import (
    DesiredJob,
    ExportInfo,
    ExportOutcome,
    ExportRunRecord,
    Problem,
    SecretFile,
    SecretVariable,
    TableId,
)
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.kube.kinds import Json
from tidemark_operator.resources.cluster import Cluster, RemoteStorage
from tidemark_operator.resources.engine import (
    CA,
    CERTIFICATE,
    KEY,
    PASSWORD,
    USERNAME,
    KafkaEngine,
    KafkaExportSasl,
    KafkaSasl,
)
from tidemark_operator.resources.export import (
    Compaction,
    Export,
    ExportRun,
    ExportSchema,
    ExportSource,
    ExportSpec,
    ExportTable,
    ExportTopics,
    OrphanRemoval,
    ReadTier,
    RunReference,
    SchemaRegistry,
    SnapshotExpiration,
    ValueFormat,
)
from tidemark_operator.resources.export_pod import SecretValue
from tidemark_operator.resources.references import SecretKeyRef
from tidemark_operator.resources.scalars import duration_ms, ms_of_time

INTERVAL_MS = 60_000
#: Defaults of maintenance.
MAINTENANCE_SCHEDULE = "@hourly"
KEEP_MS = 7 * 24 * 3_600_000
ORPHANS_MS = 3 * 24 * 3_600_000
PAUSE_MS = 5 * 60_000
CORES = 2
LISTENER = "PLAINTEXT"
BOOTSTRAP = "bootstrap"
#: Brokers in a job's bootstrap list: one of them is enough to find the others.
BOOTSTRAP_MAX = 8
#: Limit of all names of topics in an order.
NAMES_BYTES_MAX = 65_536
LETTERS_SUFFIX = "_dead_letters"
#: Keys of a User's Secret, by the option of the source that names their file.
_CERTIFICATE = {
    "kafka.ssl.certificate.location": "user.crt",
    "kafka.ssl.key.location": "user.key",
}
_CA = "kafka.ssl.ca.location"
_PASSWORD_OPTION = "kafka.sasl.password"
#: File name of a schema, from which the job derives the schema's format.
_DEFINITIONS = {
    ValueFormat.JSON: "",
    ValueFormat.AVRO: "schema.avsc",
    ValueFormat.PROTOBUF: "schema.proto",
}
#: Fields and options of a source that do not apply to topics of Apache Kafka.
_NOT_WITH_KAFKA = (
    *("tier", "listener", "bootstrap", "userRef", "trustedSecretRef"),
    *("kafka.security.protocol", "kafka.sasl.mechanism", USERNAME_OPTION),
    *("timestampSkewMs", "bytesPerTask", "decodeThreads", "maxBytesPerTrigger"),
)
#: SCRAM mechanisms by KIP-554's numbers.
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def export_info(body: Json) -> tuple[ExportInfo, Problem | None]:
    """Convert an ``Export`` object; also return the problem with its schedule, None without one.

    Raises ``InvalidResource``.
    """
    export = Export.parse(body)
    spec, status, meta = export.spec, export.status, export.metadata
    # An invalid schedule does not invalidate the Export: its present run continues.
    schedule, problem = _schedule(spec)
    interval = spec.continuous.interval if spec.continuous else None
    info = ExportInfo(
        key=meta.key,
        uid=str(meta.uid),
        generation=meta.generation,
        created_ms=_ms(meta.creation_timestamp) or 0,
        topic_key="" if spec.topic_ref is None else f"{meta.namespace}/{spec.topic_ref.name}",
        # Tables of many topics are fenced by their claims alone.
        tables=tables_of(spec.table) if spec.topics is None else frozenset(),
        schedule=schedule,
        interval_ms=duration_ms(interval) if interval else INTERVAL_MS,
        suspended=bool(spec.suspend),
        maintains=spec.maintenance is not None,
        run=_run(status.run),
        failures=status.failures or 0,
        last_failure=status.last_failure or "",
        topic_id=status.topic_id or "",
        last_schedule_ms=_ms(status.last_schedule_time),
        last_success_ms=_ms(status.last_successful_time),
        current_ms=_ms(status.current_time),
        status=body.get("status") or {},
    )
    return info, problem


def _schedule(spec: ExportSpec) -> tuple[Schedule | None, Problem | None]:
    """Return the schedule, None of a continuous Export, and the problem with a schedule."""
    field, found = "spec.schedule", None
    try:
        if spec.schedule is not None:
            found = Schedule.of(spec.schedule, spec.time_zone or "")
        # The job evaluates this one.
        if spec.maintenance is not None:
            field, upkeep = "spec.maintenance.schedule", spec.maintenance
            Schedule.of(upkeep.schedule or MAINTENANCE_SCHEDULE, upkeep.time_zone or "")
    except ScheduleError as error:
        return found, Problem(reason=Reason.SCHEDULE_INVALID, message=f"{error}. Correct {field}")
    return found, None


def _maintenance(export: Export) -> MaintenancePlan | None:
    """Return the maintenance that the job does, None without any."""
    spec, status = export.spec.maintenance, export.status.maintenance
    if spec is None:
        return None
    compaction = spec.compaction or Compaction()
    expire = spec.expire_snapshots or SnapshotExpiration()
    orphans = spec.remove_orphans or OrphanRemoval()
    # A run counts from its start: a job that ended in the middle does not repeat it at once.
    last = _ms(status.start_time) if status is not None else None
    created = _ms(export.metadata.creation_timestamp)
    return MaintenancePlan(
        schedule=spec.schedule or MAINTENANCE_SCHEDULE,
        zone=spec.time_zone or "",
        compact=compaction.enabled is not False,
        keep_ms=_age_ms(expire, KEEP_MS),
        keep_last=expire.keep_last or 1,
        orphans_ms=_age_ms(orphans, ORPHANS_MS),
        pause_ms=duration_ms(spec.max_pause) if spec.max_pause else PAUSE_MS,
        since_ms=last or created or 0,
    )


def _age_ms(spec: SnapshotExpiration | OrphanRemoval, default_ms: int) -> int | None:
    if spec.enabled is False:
        return None
    return duration_ms(spec.older_than) if spec.older_than else default_ms


def tables_of(table: ExportTable) -> frozenset[TableId]:
    """Return all tables that the export writes; a catalog is identified by its address."""
    # Delta and the hadoop catalog have a table in the same folder of a warehouse.
    hadoop = {} if "catalog-impl" in table.catalog else {"type": "hadoop"}
    place = {**hadoop, **table.catalog, "warehouse": (table.warehouse or "").rstrip("/")}
    identifying = ("type", "catalog-impl", "uri", "warehouse")
    catalog = " ".join(str(place.get(name, "")) for name in identifying)
    # Rows that do not fit a schema go to a second table.
    letters = table.dead_letters or table.name + LETTERS_SUFFIX
    names = {table.name, letters} if table.schema_ is not None else {table.name}
    return frozenset((catalog, name) for name in names)


def _run(run: ExportRun | None) -> ExportRunRecord | None:
    if run is None:
        return None
    return ExportRunRecord(
        number=run.number,
        generation=run.generation,
        order=run.order,
        start_ms=ms_of_time(run.start_time),
        end_ms=_ms(run.end_time),
        outcome=None if run.outcome is None else ExportOutcome(run.outcome),
    )


def _ms(time: dt.datetime | None) -> int | None:
    return None if time is None else ms_of_time(time)


# ---------------------------------------------------------------- orders of jobs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Inputs of an order other than the Export.

    ``topic``: None for an Export of many topics. ``brokers``: listeners of the brokers that serve.
    ``user``: returns a User by its key. ``labelled``: returns the names of the topics whose Topics
    have all of some labels.
    """

    topic: TopicInfo | None
    cluster: Cluster
    brokers: tuple[tuple[Endpoint, ...], ...]
    user: Callable[[str], UserInfo | None]
    labelled: Callable[[Mapping[str, str]], list[str]]


class _Unusable(Exception):
    """The order cannot be created.

    ``waits``: it may become possible without a change of the Export.
    """

    def __init__(self, message: str, *, waits: bool) -> None:
        super().__init__(message)
        self.waits = waits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobDefaults:
    """Settings of jobs whose Export sets none. An empty one is not set here either."""

    image: str = ""
    service_account: str = ""


def desired_job(body: Json, around: Surroundings, defaults: JobDefaults) -> DesiredJob | Problem:
    """Return the job that an Export describes at present, or the problem that prevents it.

    ``around``: the Topic, brokers and Users that it refers to.
    """
    export = Export.parse(body)
    job = export.spec.job
    try:
        parts = _JobParts(export, around)
        parts.read_topics()
        parts.read_source()
        parts.read_table()
        parts.check_executors()
    # The Export's conditions show the problem.
    except _Unusable as error:
        return Problem(reason=Reason.SOURCE_UNUSABLE, message=str(error), waits=error.waits)
    preset = {"image": defaults.image, "serviceAccountName": defaults.service_account}
    pod = {
        **{name: text for name, text in preset.items() if text},
        **(job.dump() if job is not None else {}),
    }
    return DesiredJob(
        order=Order(
            source=parts.source,
            table=parts.table,
            hidden=tuple(parts.hidden),
            conf=parts.conf,
            jars=job.jars if job else (),
            every_s=None if export.spec.schedule else _interval_s(export.spec),
            cores=(job and job.cores) or CORES,
            definition=parts.definition[0],
            definition_name=parts.definition[1],
            maintenance=_maintenance(export),
        ),
        variables=tuple(parts.variables),
        files=tuple(parts.files),
        job=pod,
        source=export.spec.source.dump() if export.spec.source else {},
        # A change of the bootstrap servers does not restart a running job.
        changing=frozenset({BOOTSTRAP, *(("subscribe",) if parts.followed else ())}),
        topics=parts.followed,
    )


def _interval_s(spec: ExportSpec) -> float:
    given = spec.continuous.interval if spec.continuous else None
    return (duration_ms(given) if given else INTERVAL_MS) / 1000


def _run_ref(ref: RunReference | None) -> dict[str, object] | None:
    """Return the fields of a run's tag or branch, without those that are not set."""
    if ref is None:
        return None
    age_ms = duration_ms(ref.max_age) if ref.max_age else None
    fields = {"prefix": ref.prefix, "kind": ref.kind, "max_age_ms": age_ms}
    return {name: value for name, value in fields.items() if value is not None}


class _JobParts:
    """Parts of a job while they are collected: its order, and what it reads from Secrets."""

    def __init__(self, export: Export, around: Surroundings) -> None:
        """Start an order with the options that the Export's source sets itself."""
        self._export, self._around = export, around
        self._spec = export.spec
        given = self._spec.source or ExportSource()
        self._given = given
        #: Options of the source, of the table, and Spark's configuration.
        self.source: dict[str, str] = dict(given.options)
        self.table: dict[str, object] = {}
        self.conf: dict[str, str] = {}
        #: Options whose values come from Secrets, as variables or as files.
        self.hidden: list[HiddenOption] = []
        self.variables: list[SecretVariable] = []
        self.files: list[SecretFile] = []
        #: Names of a selector's topics, which a continuous job reads again while it runs.
        self.followed: tuple[str, ...] = ()
        #: Text of a schema, and the name of its file.
        self.definition = "", ""

    def read_topics(self) -> None:
        """Set the topic, or the options that select many. Raises ``_Unusable``."""
        topics = self._spec.topics
        if topics is None:
            assert self._around.topic is not None
            self.source["topic"] = self._around.topic.name
        # Names are resolved here, a pattern by the job.
        elif topics.pattern is None:
            names = self._selected(topics)
            self.source["subscribe"] = ",".join(names)
            # A scheduled run has the selection of its start.
            if topics.selector is not None and self._spec.schedule is None:
                self.followed = tuple(names)
        else:
            try:
                re.compile(topics.pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise _Unusable(
                    f"spec.topics.pattern is no regular expression: {error}. Correct it",
                    waits=False,
                ) from error
            self.source["subscribePattern"] = topics.pattern

    def _selected(self, topics: ExportTopics) -> Sequence[str]:
        """Return the names of topics. Raises ``_Unusable`` for none, and for too many."""
        names: Sequence[str] = topics.names
        if topics.selector is not None:
            names = sorted(self._around.labelled(topics.selector.match_labels))
        if not names:
            raise _Unusable(
                "no Topic has the labels in spec.topics.selector. Add them to Topics", waits=True
            )
        # The order is one variable of the environment, whose size Linux limits to 128 KiB.
        size = sum(len(name) + 1 for name in names)
        if size > NAMES_BYTES_MAX:
            raise _Unusable(
                f"the names of {count(len(names), 'topic')} have {size} bytes, "
                f"{NAMES_BYTES_MAX} are allowed. Use spec.topics.pattern, or several Exports",
                waits=False,
            )
        return names

    def read_source(self) -> None:
        """Set where the records are. Raises ``_Unusable``."""
        engine = self._around.cluster.spec.engine
        if engine is not None and engine.kafka is not None:
            self._read_kafka(engine.kafka)
        else:
            self._read_tier()
            self._read_brokers()

    def _read_kafka(self, kafka: KafkaEngine) -> None:
        """Set the address of Apache Kafka, and how the Cluster authenticates to it.

        Its brokers also serve what they have tiered. The address is the Cluster's alone, because
        the job sends the Cluster's password to it. Raises ``_Unusable``.
        """
        refused = [
            f"{prefix}{name}"
            for prefix, given in (
                ("spec.source.", self._given.dump()),
                ("spec.source.options.", self._given.options),
            )
            for name, value in given.items()
            if name in _NOT_WITH_KAFKA and value != ReadTier.AUTO
        ]
        if refused:
            raise _Unusable(
                f"{', '.join(refused)} cannot be set for a topic of Apache Kafka. The job reads "
                "from its brokers, with the address and the credentials in the Cluster's "
                f"spec.engine.kafka. Remove {'it' if len(refused) == 1 else 'them'}",
                waits=False,
            )
        self.source |= {ENGINE: KAFKA, BOOTSTRAP: kafka.bootstrap_servers}
        # Jobs have the operator's identity, unless the Cluster has one for them.
        own = kafka.export_credentials
        sasl = kafka.sasl if own is None else own.sasl
        certificate = kafka.tls.certificate_secret_ref if kafka.tls is not None else None
        if own is not None:
            certificate = own.certificate_secret_ref
        protocol = ("SASL_" if sasl else "") + ("SSL" if kafka.tls else "PLAINTEXT")
        self.source["kafka.security.protocol"] = protocol
        if kafka.tls is not None and kafka.tls.ca_secret_ref is not None:
            ref = SecretKeyRef(name=kafka.tls.ca_secret_ref.name, key=CA)
            self._add_secret_file(OptionPlace.SOURCE, _CA, ref)
        if certificate is not None:
            for option, key in zip(_CERTIFICATE, (CERTIFICATE, KEY), strict=True):
                ref = SecretKeyRef(name=certificate.name, key=key)
                self._add_secret_file(OptionPlace.SOURCE, option, ref)
        if sasl is not None:
            self._add_sasl(sasl)

    def _add_sasl(self, sasl: KafkaSasl | KafkaExportSasl) -> None:
        """Add the user of the connection to Kafka. Raises ``_Unusable``."""
        if sasl.mechanism == "OAUTHBEARER":
            raise _Unusable(
                "a job cannot authenticate with OAUTHBEARER, which the Cluster's "
                "spec.engine.kafka.sasl sets, because its token would expire while the job runs. "
                "Set another user or a certificate in spec.engine.kafka.exportCredentials",
                waits=False,
            )
        self.source["kafka.sasl.mechanism"] = sasl.mechanism
        secret = sasl.credentials_secret_ref.name
        for option, key in ((USERNAME_OPTION, USERNAME), (_PASSWORD_OPTION, PASSWORD)):
            self._add_secret_variable(OptionPlace.SOURCE, option, secret, key)

    def _read_tier(self) -> None:
        """Set the place of the segments. Raises ``_Unusable``."""
        tier = self._given.tier or ReadTier.AUTO
        self.source["tier"] = str(tier)
        storage = self._around.cluster.spec.remote_storage
        if storage is not None:
            self._read_storage(storage)
        elif tier is ReadTier.REMOTE:
            raise _Unusable(
                "spec.source.tier is remote, but the Cluster has no spec.remoteStorage", waits=False
            )

    def _read_storage(self, storage: RemoteStorage) -> None:
        """Add the options with which the job reads the remote storage.

        Credentials stay in their Secret.
        """
        spec = storage.dump()
        ((kind, fields),) = (location_of(spec) or {}).items()
        for name, value in {**fields, **settings_of(spec)}.items():
            self.source[name] = ",".join(value) if isinstance(value, list) else str(value)
        if must_be_named(kind):
            self.source[STORAGE] = kind
        if storage.s3 is not None and storage.s3.ca_secret_ref is not None:
            ref = SecretKeyRef(name=storage.s3.ca_secret_ref.name, key=S3Config.ca_secret_key)
            self._add_secret_file(OptionPlace.SOURCE, S3Config.ca_option, ref)
        keys = (spec[kind].get("encryptionKeysSecretRef") or {}).get("name", "")
        if keys:
            self._add_secret_file(
                OptionPlace.SOURCE, KEYS_OPTION, SecretKeyRef(name=keys, key=KEYS_NAME)
            )
        # Credentials never go into the order itself, only their variables. Without a Secret, the
        # job uses the identity of its own pod.
        secret = (spec[kind].get("credentialsSecretRef") or {}).get("name", "")
        for name in KINDS[kind].credential_names if secret else ():
            optional = name in OPTIONAL_CREDENTIALS
            self._add_secret_variable(OptionPlace.SOURCE, name, secret, name, optional=optional)

    def _read_brokers(self) -> None:
        """Set the brokers' addresses and the job's authentication, if the job reads from brokers.

        Raises ``_Unusable`` if no broker has the listener.
        """
        given = self._given
        if given.tier is ReadTier.REMOTE:
            return
        listener = given.listener or LISTENER
        # Without an explicit address, the job uses the addresses that the brokers advertise.
        self.source[BOOTSTRAP] = given.bootstrap or bootstrap(self._around.brokers, listener)
        if not self.source[BOOTSTRAP]:
            raise _Unusable(
                f"no serving broker has the listener {listener}. Start brokers, "
                "set spec.source.listener to another listener, or set "
                "spec.source.tier to remote",
                waits=True,
            )
        if given.trusted_secret_ref is not None:
            self._add_secret_file(OptionPlace.SOURCE, _CA, given.trusted_secret_ref)
        if given.user_ref is not None:
            self._authenticate_as(given.user_ref.name)

    def _authenticate_as(self, name: str) -> None:
        """Add the options with which the job authenticates as a User. Raises ``_Unusable``."""
        user = self._around.user(f"{self._export.metadata.namespace}/{name}")
        if user is None:
            raise _Unusable(f"User {name} does not exist. Create it", waits=True)
        if user.certificate:
            for option, key in _CERTIFICATE.items():
                self._add_secret_file(OptionPlace.SOURCE, option, SecretKeyRef(name=name, key=key))
            return
        if not user.mechanism:
            raise _Unusable(
                f"User {name} has credentials of another issuer. Use a User "
                "with a password, or one of type tls",
                waits=False,
            )
        self.source[USERNAME_OPTION] = user.username
        self.source.setdefault("kafka.sasl.mechanism", _MECHANISMS[user.mechanism])
        # From the operator's Secret of the User. The Secret that a User names as its source is not
        # offered to Exports.
        self._add_secret_variable(OptionPlace.SOURCE, _PASSWORD_OPTION, name, PASSWORD)

    def read_table(self) -> None:
        """Set the table to write, and Spark's configuration."""
        table, job = self._spec.table, self._spec.job
        options = {
            "table": table.name,
            "format": table.format and str(table.format),
            "warehouse": table.warehouse,
            "catalog": dict(table.catalog),
            "dead_letters": table.dead_letters,
            "mode": table.mode and str(table.mode),
            "partition": table.partition and str(table.partition),
            "key_buckets": table.key_buckets,
            "partition_by": [field.dump() for field in table.partition_by],
            "sort_by": [field.dump() for field in table.sort_by],
            "properties": dict(table.properties),
            "run_ref": _run_ref(table.run_ref),
            "deletes": self._spec.delete_after_commit,
        }
        # Options that are not set are left out: the job has defaults.
        self.table = {name: value for name, value in options.items() if value}
        if table.schema_ is not None:
            self._read_schema(table.schema_)
        self._add_secret_variables(OptionPlace.CATALOG, table.catalog_secrets)
        if job is not None:
            self.conf |= job.conf
            self._add_secret_variables(OptionPlace.CONF, job.conf_secrets)

    def check_executors(self) -> None:
        """Raise ``_Unusable`` if executors would need a file, which they cannot mount."""
        job = self._spec.job
        # The driver reads certificates for Spark's Kafka source, and sends their text to executors.
        is_kafka = ENGINE in self.source
        needed = [f for f in self.files if not is_kafka or f.place is not OptionPlace.SOURCE]
        if job is not None and job.executors is not None and needed:
            names = ", ".join(sorted({file.option for file in needed}))
            raise _Unusable(
                f"spec.job.executors cannot read files of Secrets ({names}). Remove "
                "spec.job.executors, or the certificates",
                waits=False,
            )

    def _read_schema(self, schema: ExportSchema) -> None:
        options = {
            "schema": schema.fields,
            "schema_file": schema.file,
            "message": schema.message,
            "evolution": schema.evolution and str(schema.evolution),
        }
        self.table |= {name: value for name, value in options.items() if value}
        if schema.definition is not None:
            self.definition = schema.definition, _DEFINITIONS[schema.format]
        if schema.registry is not None:
            self._read_registry(schema.registry)

    def _read_registry(self, registry: SchemaRegistry) -> None:
        self.table["registry"] = registry.url
        if registry.options:
            self.table["registry_options"] = dict(registry.options)
        self._add_secret_variables(OptionPlace.REGISTRY, registry.secrets)
        if registry.trusted_secret_ref is not None:
            self._add_secret_file(OptionPlace.REGISTRY, "ca", registry.trusted_secret_ref)
        if registry.certificate_secret_ref is not None:
            for option, key in (("certificate", "tls.crt"), ("key", "tls.key")):
                ref = SecretKeyRef(name=registry.certificate_secret_ref.name, key=key)
                self._add_secret_file(OptionPlace.REGISTRY, option, ref)

    def _add_secret_variables(self, place: OptionPlace, values: Iterable[SecretValue]) -> None:
        for value in values:
            self._add_secret_variable(
                place, value.name, value.secret_key_ref.name, value.secret_key_ref.key
            )

    def _add_secret_variable(
        self, place: OptionPlace, name: str, secret: str, key: str, *, optional: bool = False
    ) -> None:
        variable = f"TIDEMARK_SECRET_{len(self.variables)}"
        self.hidden.append(
            HiddenOption(place=place, name=name, variable=variable, optional=optional)
        )
        self.variables.append(
            SecretVariable(variable=variable, secret=secret, key=key, optional=optional)
        )

    def _add_secret_file(self, place: OptionPlace, option: str, ref: SecretKeyRef) -> None:
        self.files.append(SecretFile(place=place, option=option, secret=ref.name, key=ref.key))


def bootstrap(brokers: Iterable[tuple[Endpoint, ...]], listener: str) -> str:
    """Return ``host:port`` of that listener of some brokers, comma-separated."""
    found = sorted(
        text_of(endpoint)
        for listeners in brokers
        for endpoint in listeners
        if endpoint.name == listener
    )
    return ",".join(found[:BOOTSTRAP_MAX])
