"""A topic of Apache Kafka as a table, through Spark's own Kafka source, with the same options and
columns as the ``tidemark`` source.

Only that source can read what Kafka has tiered, as brokers fetch it with their own plug-in. Options
are checked like those of the ``tidemark`` source and then translated to Spark's names. Options
without an equivalent are refused. The source's jars must be in the session (``spark.jars``);
``tidemark spark`` fetches them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidemark.kafka_client.access import PLAIN, KafkaAccess, Login, Tls
from tidemark.kafka_client.values import EARLIEST, LATEST
from tidemark.tier.stores.config import OPTIONS as STORAGE_OPTIONS
from tidemark_pipeline.errors import ExportError
from tidemark_pipeline.read import columns
from tidemark_pipeline.read.options import (
    AUTO,
    ONLY_LOCAL,
    OptionError,
    Options,
    Topics,
    names_brokers,
    parse,
    without_engine,
)
from tidemark_pipeline.read.positions import (
    Earliest,
    FixedOffset,
    Latest,
    Position,
    Positions,
    Since,
)
from tidemark_pipeline.read.topic_survey import Part, Survey

if TYPE_CHECKING:  # options are checked without Spark
    from pyspark.sql import DataFrame, SparkSession

#: Those columns that Kafka's protocol provides.
COLUMNS = tuple(n for n in columns.NAMES if n not in {"tier", "tieredEpoch", "leaderEpoch"})
#: Options that only the ``tidemark`` source has.
TIDEMARK_ONLY = (
    *("tier", *STORAGE_OPTIONS, "bytesPerTask", "decodeThreads", "maxBytesPerTrigger"),
    *("timestampSkewMs", "layout", "aivenKeyLocations", "topicId"),
)
_BY_SPARK = "Spark's own source reads it: leave it out"
_ALTERNATIVES = {
    "maxBytesPerTrigger": "say maxOffsetsPerTrigger",
    **dict.fromkeys(("bytesPerTask", "decodeThreads", "timestampSkewMs"), _BY_SPARK),
}
_LOGIN_MODULE = "org.apache.kafka.common.security"


def read(session: "SparkSession", raw: Mapping[str, str]) -> "DataFrame":
    """Return the topics that the options name.

    Raises :class:`OptionError`, and the errors of
    :class:`~tidemark_pipeline.read.topic_survey.Survey`.
    """
    options = checked(raw)
    frame = session.read.format("kafka").options(**_spark_options(options)).load()
    return frame.select(*options.columns)


def check_session(session: "SparkSession") -> None:
    """Raise :class:`ExportError` if the session lacks Spark's Kafka source.

    Spark itself would name the missing source only when the table is claimed already.
    """
    import pyspark
    from pyspark.errors import AnalysisException

    # Spark connects to no broker before rows are read.
    reader = session.read.format("kafka").option("subscribe", "-")
    try:
        reader.option("kafka.bootstrap.servers", "127.0.0.1:1").load()
    except AnalysisException as error:
        raise ExportError(
            "this Spark has no source for Apache Kafka. Add the jars of org.apache.spark:"
            f"spark-sql-kafka-0-10_2.13:{pyspark.__version__} and of its dependencies to the image "
            "or to job.jars. On a local cluster, run tidemark down and tidemark up"
        ) from error


def _spark_options(options: Options) -> dict[str, str]:
    with Survey(options) as survey:
        return kafka_options(options, survey)


def checked(raw: Mapping[str, str], *, streaming: bool = False) -> Options:
    """Check the options for a topic of Apache Kafka, as the ``tidemark`` source does.

    Brokers serve all records, tiered or not, so options of the object store are refused. Raises
    :class:`OptionError`.
    """
    given = without_engine(raw)
    # Options that only the tidemark source has are refused, as Spark would ignore them.
    tidemark_only = {name.lower(): name for name in TIDEMARK_ONLY}
    for name in given:
        if name.lower() in tidemark_only:
            option = tidemark_only[name.lower()]
            alternative = _ALTERNATIVES.get(
                option, "its brokers read it for us wherever it lies: leave it out"
            )
            raise OptionError(f"{option} is no option of a topic of Apache Kafka: {alternative}")
    # Every read needs brokers, also one of tiered records alone.
    if not names_brokers(given):
        raise OptionError("engine is kafka, which needs 'bootstrap': name its brokers")
    # Parsed as a read of brokers alone, so that no storage is required.
    local_only = {**given, "tier": ONLY_LOCAL}
    options = replace(parse(local_only, streaming=streaming, names=COLUMNS), tier=AUTO)
    # Spark's source has ending offsets for batches only.
    if streaming and options.ending is not None:
        raise OptionError(
            "a stream of a topic of Apache Kafka goes to the end that the topic has when it "
            "starts, or has none: leave the ending option out"
        )
    return options


class OffsetLookup(Protocol):
    """Requests to brokers for single partitions.

    :class:`~tidemark_pipeline.read.topic_survey.Survey` implements it.
    """

    def parts(self) -> Sequence[Part]:
        """Return all partitions, as Spark requires a position for each of them."""

    def find(self, part: Part, timestamp_ms: int) -> int | None:
        """Return the first offset of this time or later, None if there is none."""


def kafka_options(options: Options, lookup: OffsetLookup) -> dict[str, str]:
    """Translate the options to those of Spark's Kafka source.

    ``lookup``: resolves times of single partitions to offsets. Raises OptionError.
    """
    assert options.access is not None
    spark_options = {
        "includeHeaders": "true",
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
        "startingOffsetsByTimestampStrategy": "error" if options.strict_times else "latest",
        # The tidemark source reads committed records only, so both give the same rows.
        "kafka.isolation.level": "read_committed",
        **_subscription(options.topics),
        **_security(options.access),
    }
    if options.limits.offsets is not None:
        spark_options["maxOffsetsPerTrigger"] = str(options.limits.offsets)
    # Spark looks up a time for all partitions itself; single positions are resolved here.
    for side, positions in (("starting", options.starting), ("ending", options.ending)):
        if positions is not None:
            name, value = _position(side, positions, lookup, strict=options.strict_times)
            spark_options[name] = value
    return spark_options


def _subscription(topics: Topics) -> dict[str, str]:
    if topics.assigned:
        return {"assign": json.dumps({name: list(parts) for name, parts in topics.assigned})}
    if topics.pattern:
        return {"subscribePattern": topics.pattern}
    return {"subscribe": ",".join(topics.names)}


# ---------------------------------------------------------------- from where to where


def _position(
    side: str, positions: Positions, lookup: OffsetLookup, *, strict: bool
) -> tuple[str, str]:
    """Return name and value of Spark's option for the start or the end of the read.

    ``side``: "starting" or "ending". Raises OptionError if no record is as late as a starting time
    and ``strict`` is set.
    """
    # One position for all partitions has a short form that needs no request.
    if not positions.each:
        match positions.otherwise:
            case Since(timestamp_ms):
                return f"{side}Timestamp", str(timestamp_ms)
            case Latest():
                return f"{side}Offsets", "latest"
            case _:
                return f"{side}Offsets", "earliest"
    numbers: dict[str, dict[int, int]] = {}
    # Spark requires an offset for every partition, also for those that are not named.
    for part in lookup.parts():
        number = _number(
            side, positions.of(part.topic, part.partition), part, lookup, strict=strict
        )
        numbers.setdefault(part.topic, {})[part.partition] = number
    return f"{side}Offsets", json.dumps(numbers)


def _number(
    side: str, position: Position, part: Part, lookup: OffsetLookup, *, strict: bool
) -> int:
    """Return the position of one partition as a number in Spark's JSON: an offset, -1 or -2.

    Times are looked up here. Spark's own option would need a time for each partition and has none
    for the log start, since records need not have timestamps.
    """
    match position:
        case FixedOffset(offset):
            return offset
        case Latest():
            return LATEST
        case Earliest():
            return EARLIEST
        case Since(timestamp_ms):
            offset_at_time = lookup.find(part, timestamp_ms)
            # As with the tidemark source, a missing time is an error unless the strategy is
            # `latest`.
            if offset_at_time is None and strict and side == "starting":
                raise OptionError(
                    f"{part.topic}-{part.partition} has no record of {timestamp_ms} ms or later: "
                    "begin earlier, or say startingOffsetsByTimestampStrategy=latest"
                )
            return LATEST if offset_at_time is None else offset_at_time


# ---------------------------------------------------------------- who we are to brokers


def _security(access: KafkaAccess) -> dict[str, str]:
    security = {"kafka.bootstrap.servers": ",".join(access.bootstrap)}
    protocol = ("SASL_" if access.login else "") + ("SSL" if access.tls else "PLAINTEXT")
    security["kafka.security.protocol"] = protocol
    if access.tls is not None:
        security |= _tls(access.tls)
    if access.login is not None:
        security["kafka.sasl.mechanism"] = access.login.mechanism
        security["kafka.sasl.jaas.config"] = _jaas(access.login)
    return security


def _tls(tls: Tls) -> dict[str, str]:
    """Return the TLS options of Kafka's Java client, with PEM text instead of files.

    Kafka's client requires a certificate and its key in one file, but the options name two files.
    """
    pem_options = {}
    if tls.ca:
        pem_options["kafka.ssl.truststore.type"] = "PEM"
        pem_options["kafka.ssl.truststore.certificates"] = _text(tls.ca)
    if tls.certificate:
        pem_options["kafka.ssl.keystore.type"] = "PEM"
        # Without a file for the key, the certificate's PEM file contains both.
        pem_options["kafka.ssl.keystore.certificate.chain"] = _text(tls.certificate)
        pem_options["kafka.ssl.keystore.key"] = _text(tls.key or tls.certificate)
    return pem_options


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from error


def _jaas(login: Login) -> str:
    module = "plain.PlainLoginModule" if login.mechanism == PLAIN else "scram.ScramLoginModule"
    fields = f"username={_quoted(login.name)} password={_quoted(login.password)}"
    return f"{_LOGIN_MODULE}.{module} required {fields};"


def _quoted(text: str) -> str:
    # JAAS has its own quoting; an unescaped quote could add a field to the login.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
