"""Options of the ``tidemark`` source, parsed once and checked with messages that say what to do.

Where Spark's Kafka source has an option, it has the same name and meaning here. :data:`OPTIONS` is
the whole list; docs/reference/spark.md shows it as a table.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tidemark.export_job import ENGINE, KAFKA
from tidemark.ids import parse_id
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.security_options import SecurityError, parse_access
from tidemark.tier.stores.config import OPTIONS as STORAGE_OPTIONS
from tidemark.tier.stores.config import RemoteStorage, from_options
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.key_ring import KEYS_OPTION as ENCRYPTION_KEYS
from tidemark_pipeline.aiven.layout import AivenLayout, split_prefix
from tidemark_pipeline.aiven.private_keys import PrivateKeys
from tidemark_pipeline.read import columns, positions
from tidemark_pipeline.read.positions import Earliest, Latest, PositionError, Positions

#: Default engine of a topic that a job reads: an option of jobs, which no data source has.
TIDEMARK = "tidemark"
AUTO, ONLY_REMOTE, ONLY_LOCAL = "auto", "remote", "local"
#: Layout of a tier: Tidemark's own, or that of Apache Kafka's plug-in by Aiven.
AIVEN = "aiven"
_KAFKA = "kafka."
_MIB = 1024 * 1024
_THREADS_MAX = 64


@dataclass(frozen=True, slots=True)
class Option:
    """Row of the table of options."""

    name: str
    default: str
    meaning: str


OPTIONS = (
    Option("topic", "", "topic to read; or one of the next three"),
    Option("subscribe", "", "topics, separated by commas"),
    Option("subscribePattern", "", "regular expression that matches whole names of topics"),
    Option("assign", "", 'partitions: `{"t": [0, 1]}`'),
    Option("path", "", "tier in a directory; or `endpoint` or `storage`"),
    Option(
        "storage",
        "`filesystem` with `path`, otherwise `s3`",
        "kind of the tier: `filesystem`, `s3`, `gcs` or `azure`",
    ),
    Option("endpoint", "the cloud's", "address of the store; without it, S3 is AWS"),
    Option("region", "us-east-1", "S3: region of the store"),
    Option("account", "", "Azure: storage account"),
    Option("buckets", "", "S3, GCS: buckets in the Cluster's order, separated by commas"),
    Option("containers", "", "Azure: containers in the Cluster's order, separated by commas"),
    Option("prefix", "", "prefix of the keys"),
    Option(
        "layout",
        TIDEMARK,
        "layout of the tier: `tidemark`, or `aiven` for the tier of "
        "[Apache Kafka's plug-in by Aiven](#the-tier-of-apache-kafka)",
    ),
    Option(
        "aivenKeyLocations",
        "",
        'layout `aiven`: file of each private key of encrypted segments, `{"ID": "FILE"}`',
    ),
    Option("topicId", "", "layout `aiven`: id of the `topic`, if several have its name"),
    Option(
        "accessKeyId",
        "`AWS_ACCESS_KEY_ID`",
        "S3: access key id; without keys, each process uses its own identity on AWS",
    ),
    Option("secretAccessKey", "`AWS_SECRET_ACCESS_KEY`", "S3: secret access key"),
    Option("sessionToken", "`AWS_SESSION_TOKEN`", "S3: token of temporary keys"),
    Option("roleArn", "", "S3: role that is assumed with these credentials"),
    Option("addressing", "", "S3: `path` or `virtualHost`, place of the bucket's name in a URL"),
    Option("caLocation", "the system's", "S3: PEM file with the authority of the store"),
    Option("encryptionKeysLocation", "", "file with the keys that encrypt segments"),
    Option("encryption", "", "S3: `SSE-S3` or `SSE-KMS`, for what is written"),
    Option("kmsKeyId", "", "S3: key of KMS, with `SSE-KMS`"),
    Option("storageClass", "", "S3: storage class of segments that are written"),
    Option(
        "serviceAccountKey",
        "`GOOGLE_SERVICE_ACCOUNT_KEY`, else the identity of the process",
        "GCS: JSON of a service account",
    ),
    Option(
        "credential",
        "`AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_TOKEN`, else the identity of the process",
        "Azure: account key or shared access signature",
    ),
    Option(
        "tier", AUTO, "`auto`: tier and brokers; `remote`: only the tier; `local`: only brokers"
    ),
    Option(
        "bootstrap",
        "",
        "brokers as `host:port`, separated by commas (also `kafka.bootstrap.servers`); without "
        "brokers a read ends at the end of the tier",
    ),
    Option("kafka.security.protocol", "PLAINTEXT", "or `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`"),
    Option("kafka.ssl.ca.location", "the system's", "PEM file with the authority of the brokers"),
    Option("kafka.ssl.certificate.location", "", "PEM file with the client's certificate"),
    Option("kafka.ssl.key.location", "", "PEM file with its key, without a password"),
    Option("kafka.sasl.mechanism", "SCRAM-SHA-512", "or `SCRAM-SHA-256`, `PLAIN`"),
    Option("kafka.sasl.username", "", "user"),
    Option("kafka.sasl.password", "`TIDEMARK_SASL_PASSWORD`", "password"),
    Option(
        "startingOffsets",
        "`earliest`; streaming: `latest`",
        '`earliest`, `latest` or `{"t": {"0": 17, "1": -2}}` (-2 earliest, -1 latest); for one '
        'topic also `{"0": 17}`. Other partitions start at their log start. A streaming query '
        "with a checkpoint continues there",
    ),
    Option("startingTimestamp", "", "milliseconds, for every partition; overrides the others"),
    Option(
        "startingOffsetsByTimestamp",
        "",
        '`{"t": {"0": 1700000000000}}`, milliseconds; overrides `startingOffsets`',
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        "if no record is as late: `error`, or `latest` to start at the end",
    ),
    Option(
        "endingOffsets",
        "latest",
        "first offset that is not read, in the same form. A streaming query stops there; its "
        "`latest` is the end when the query starts",
    ),
    Option("endingTimestamp", "", "milliseconds; if no record is as late, the end"),
    Option("endingOffsetsByTimestamp", "", "the same for each partition"),
    Option(
        "failOnDataLoss",
        "true",
        "`true`: the job fails if requested rows have expired; `false`: it skips them",
    ),
    Option(
        "timestampSkewMs",
        "",
        "promise: no record is older than an earlier one of its partition by more milliseconds. "
        "`timestamp < …` then ends a read as `timestamp >= …` starts it",
    ),
    Option("columns", "all", "columns to produce, separated by commas"),
    Option("bytesPerTask", str(64 * _MIB), "bytes of the tier that one task reads, about"),
    Option(
        "decodeThreads",
        "1",
        "threads of a task that decompress batches; more help a read of fewer tasks than cores",
    ),
    Option("maxOffsetsPerTrigger", "", "streaming: approximate offsets of a micro-batch"),
    Option("maxBytesPerTrigger", "", "streaming: approximate bytes of a micro-batch"),
)
_SYNONYMS = {"kafka.bootstrap.servers": "bootstrap"}
_BROKERS = {"bootstrap", *_SYNONYMS}
_KNOWN = {
    name.lower(): name
    for name in (*(option.name for option in OPTIONS), *STORAGE_OPTIONS, *_SYNONYMS)
}


class OptionError(ValueError):
    """An option is missing, unknown or has a bad value."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Selection of what to read: names, a pattern if it is not empty, or partitions by topic."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def has(self, topic: str) -> bool:
        """Return whether the topic is one of those to read."""
        return bool(re.fullmatch(self.pattern, topic)) if self.pattern else topic in self.names

    def partitions_of(self, topic: str, count: int) -> tuple[int, ...]:
        """Return the partitions to read of a topic with ``count`` partitions.

        Raises :class:`OptionError`.
        """
        assigned = dict(self.assigned).get(topic)
        if assigned is None:
            return tuple(range(count))
        for partition in assigned:
            # Partitions are never removed, so a number beyond the last one is a mistake.
            if partition >= count:
                raise OptionError(f"assign names {topic}-{partition}, {topic} has {count}")
        return assigned


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one micro-batch; None: no limit."""

    offsets: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Parsed options.

    ``storage`` is None if only brokers are read, ``access`` if no brokers are read. ``ending`` is
    None for a stream without an end. ``aiven`` is None for Tidemark's own layout.
    """

    topics: Topics
    storage: RemoteStorage | None
    access: KafkaAccess | None
    tier: str
    starting: Positions
    strict_times: bool
    ending: Positions | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    task_bytes: int
    threads: int
    limits: BatchLimits
    timestamp_skew_ms: int | None = None
    aiven: AivenLayout | None = None


def parse(
    raw: Mapping[str, str], *, streaming: bool = False, names: tuple[str, ...] = columns.NAMES
) -> Options:
    """Parse and check the options of the data source, with names in any case.

    ``streaming``: defaults and checks of a stream instead of a batch. ``names``: the columns of the
    source. Raises OptionError.
    """
    # An unknown option is refused: a misspelt one would be ignored otherwise.
    given = _known(raw)
    tier = given.get("tier", AUTO).lower()
    if tier not in {AUTO, ONLY_REMOTE, ONLY_LOCAL}:
        raise OptionError(f"tier is {tier!r}; write auto, remote or local")
    # Brokers are optional, except for a read of their records alone.
    access = _access(given)
    if tier == ONLY_LOCAL and access is None:
        raise OptionError("tier is local, which needs 'bootstrap': name the brokers")
    # Without ``tier=local`` the options must also name the object store.
    topics = _topics(given)
    aiven, given = _layout(given, topics)
    options = Options(
        topics=topics,
        storage=None if tier == ONLY_LOCAL else _storage(given),
        access=access,
        tier=tier,
        # As in Spark's Kafka source, a batch starts at the earliest offset and a stream at the
        # latest.
        starting=_positions(given, "starting", "latest" if streaming else "earliest", Earliest()),
        strict_times=_word(given, "startingOffsetsByTimestampStrategy", "error", "latest"),
        ending=_positions(given, "ending", "latest", Latest()),
        fail_on_data_loss=_word(given, "failOnDataLoss", "true", "false"),
        columns=_columns(given, names),
        task_bytes=_number(given, "bytesPerTask", 64 * _MIB) or 1,
        threads=min(_number(given, "decodeThreads", 1) or 1, _THREADS_MAX),
        limits=BatchLimits(
            _number(given, "maxOffsetsPerTrigger"), _number(given, "maxBytesPerTrigger")
        ),
        timestamp_skew_ms=_number(given, "timestampSkewMs"),
        aiven=aiven,
    )
    # A batch always ends. A stream ends only if an ending option is given.
    _check_topics(options)
    if not streaming:
        return options
    endless = not any(name.lower().startswith("ending") for name in given)
    return replace(options, ending=None) if endless else options


def names_brokers(raw: Mapping[str, str]) -> bool:
    """Return whether the options name brokers."""
    return any(raw[name] for name in raw if name.lower() in _BROKERS)


def table() -> str:
    """Return the options as a Markdown table."""
    rows = (f"| `{option.name}` | {option.default} | {option.meaning} |" for option in OPTIONS)
    return "\n".join(("| option | default | meaning |", "|---|---|---|", *rows))


def _known(raw: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in raw.items():
        # Spark's options are case-insensitive, and it may pass them in lower case.
        name = _KNOWN.get(key.lower())
        if name is None:
            names = ", ".join(sorted(_KNOWN.values()))
            raise OptionError(f"unknown option {key!r}; known: {names}")
        given[_SYNONYMS.get(name, name)] = value
    return given


def _topics(given: Mapping[str, str]) -> Topics:
    """Return which topics and partitions to read, from the one option that selects them.

    Raises OptionError.
    """
    # Two selections would contradict each other, so exactly one is required.
    named = [n for n in ("topic", "subscribe", "subscribePattern", "assign") if given.get(n)]
    if len(named) != 1:
        problem = (
            "the option 'topic' is missing" if not named else f"{' and '.join(named)} are given"
        )
        raise OptionError(
            f"{problem}: name what to read by one of topic, subscribe, subscribePattern, assign"
        )
    value = given[named[0]]
    match named[0]:
        case "topic":
            return Topics((value,))
        case "subscribe":
            return Topics(tuple(dict.fromkeys(n.strip() for n in value.split(",") if n.strip())))
        case "subscribePattern":
            try:
                # Compiled now, so that a bad pattern fails before any request.
                re.compile(value)
            except re.error as error:
                raise OptionError(f"subscribePattern is {value!r}: {error}") from error
            return Topics(pattern=value)
        case _:
            return _assigned(value)


def _assigned(value: str) -> Topics:
    try:
        assigned = tuple(
            # Duplicates are removed: each offset is read by exactly one task.
            (str(topic), tuple(sorted({int(number) for number in numbers})))
            for topic, numbers in json.loads(value).items()
        )
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise OptionError(f'assign is {value!r}; write {{"t": [0, 1]}}') from error
    if not assigned or not all(numbers and numbers[0] >= 0 for _, numbers in assigned):
        raise OptionError(f"assign is {value!r}; name partitions of each topic")
    return Topics(tuple(topic for topic, _ in assigned), assigned=assigned)


def _check_topics(options: Options) -> None:
    """Check that positions only name topics that are read."""
    named = options.starting.topics | (options.ending.topics if options.ending else frozenset())
    strangers = sorted(named - set(options.topics.names))
    if options.topics.names and strangers:
        raise OptionError(f"offsets name {', '.join(strangers)}, which is not read")


def _layout(given: dict[str, str], topics: Topics) -> tuple[AivenLayout | None, dict[str, str]]:
    """Return the layout, None for Tidemark's own, and the options of the store with it.

    Raises OptionError.
    """
    name = given.get("layout", TIDEMARK).lower()
    if name not in {TIDEMARK, AIVEN}:
        raise OptionError(f"layout is {name!r}; write {TIDEMARK} or {AIVEN}")
    if name == TIDEMARK:
        for option in ("aivenKeyLocations", "topicId"):
            if given.get(option):
                raise OptionError(
                    f"{option} is an option of layout={AIVEN}: add that, or leave it out"
                )
        return None, given
    # The plug-in writes to one bucket, and decrypts with its own keys.
    if given.get(ENCRYPTION_KEYS):
        raise OptionError(
            f"{ENCRYPTION_KEYS} is for Tidemark's tier; write aivenKeyLocations with layout={AIVEN}"
        )
    for option in ("buckets", "containers"):
        if "," in given.get(option, ""):
            raise OptionError(
                f"{option} is {given[option]!r}; name the one that the plug-in writes to"
            )
    folder, name_prefix = split_prefix(given.get("prefix", ""))
    topic_id = given.get("topicId", "")
    # An export reads its batches by ``assign``.
    if topic_id and not given.get("topic") and len(topics.assigned) != 1:
        raise OptionError(
            "topicId needs the option 'topic', or 'assign' with one topic: it is the id of one"
        )
    try:
        layout = AivenLayout(
            name_prefix=name_prefix,
            topic_id=parse_id(topic_id) if topic_id else None,
            keys=PrivateKeys.parse(given.get("aivenKeyLocations") or "{}"),
        )
    except InvalidConfig as error:
        raise OptionError(str(error)) from error
    except ValueError as error:
        raise OptionError(f"topicId: {error}") from error
    # The store is opened in the folder of the prefix.
    places = {"prefix": folder}
    if given.get("path") and folder:
        places["path"] = f"{given['path']}/{folder}"
    return layout, {**given, **places}


def _storage(given: Mapping[str, str]) -> RemoteStorage:
    try:
        return from_options(given, os.environ)
    except InvalidConfig as error:
        raise OptionError(str(error)) from error


def _access(given: Mapping[str, str]) -> KafkaAccess | None:
    kafka = {n.removeprefix(_KAFKA): value for n, value in given.items() if n.startswith(_KAFKA)}
    kafka["bootstrap.servers"] = given.get("bootstrap", "")
    try:
        return parse_access(kafka, os.environ)
    except SecurityError as error:
        raise OptionError(str(error)) from error


def _positions(
    given: Mapping[str, str], side: str, word: str, otherwise: positions.Position
) -> Positions:
    """Return the start or the end of the read; the most specific option takes precedence.

    ``side``: "starting" or "ending", the prefix of the options' names. ``word``: value if no option
    is given, such as ``latest``. ``otherwise``: position of partitions that the option does not
    name. Raises OptionError.
    """
    readers: dict[str, Callable[[str], Positions]] = {
        f"{side}Timestamp": positions.parse_timestamp,
        f"{side}OffsetsByTimestamp": lambda text: positions.parse_timestamps(text, otherwise),
        f"{side}Offsets": lambda text: positions.parse_offsets(text, otherwise),
    }
    # In this order: one timestamp, timestamps by partition, offsets.
    name = next((name for name in readers if given.get(name)), f"{side}Offsets")
    value = given.get(name) or word
    try:
        parsed = readers[name](value)
    except PositionError as error:
        hint = f"write {word} or offsets: " if name.endswith("Offsets") else ""
        raise OptionError(f"{name} is {value!r}; {hint}{error}") from error
    # The short form cannot name a topic, so it needs a read of exactly one.
    if parsed.is_short and not given.get("topic"):
        raise OptionError(f"{name} names partitions without a topic, which only 'topic' allows")
    return parsed


def _columns(given: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, ...]:
    value = given.get("columns", "all")
    if value.strip().lower() in {"all", "*"}:
        return names
    by_lower = {name.lower(): name for name in names}
    chosen = [by_lower.get(name.strip().lower()) for name in value.split(",") if name.strip()]
    # In the order of the source, whatever the order in the option.
    known = tuple(name for name in names if name in chosen)
    if not chosen or None in chosen:
        raise OptionError(f"columns is {value!r}; choose of {', '.join(names)}")
    return known


def _word(given: Mapping[str, str], name: str, yes: str, no: str) -> bool:
    """Return whether the value is the first of two words, which is the default."""
    value = given.get(name, yes).lower()
    if value not in {yes, no}:
        raise OptionError(f"{name} is {value!r}; write {yes} or {no}")
    return value == yes


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    value = given.get(name)
    if value is None:
        return default
    if not value.isdecimal() or int(value) < 1:
        what = "bytes " if "bytes" in name.lower() else ""
        raise OptionError(f"{name} is {value!r}; write a whole number of {what}above zero")
    return int(value)


def is_kafka_topic(raw: Mapping[str, str]) -> bool:
    """Return whether the options name a topic of Apache Kafka. Raises :class:`OptionError`."""
    # Spark's options are case-insensitive.
    named = next((value for name, value in raw.items() if name.lower() == ENGINE), TIDEMARK)
    if named.lower() not in {TIDEMARK, KAFKA}:
        raise OptionError(f"engine is {named!r}; write {TIDEMARK} or {KAFKA}")
    return named.lower() == KAFKA


def without_engine(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the engine."""
    return {name: value for name, value in raw.items() if name.lower() != ENGINE}
