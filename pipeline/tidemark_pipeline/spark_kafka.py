"""A topic of Apache Kafka as a table, through Spark's own Kafka source, with our options and
columns.

Only that source can read what Kafka has tiered: its brokers fetch it, by whatever plug-in they
have. Options are checked as ours are and then said in Spark's words; what only our source can do is
refused with a sentence. Its jars have to be in the session (``spark.jars``); ``tidemark spark``
fetches them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidemark.kafka_client.access import PLAIN, KafkaAccess, Login, Tls
from tidemark.tier.config import OPTIONS as STORAGE_OPTIONS
from tidemark_pipeline import columns
from tidemark_pipeline.engines import without_engine
from tidemark_pipeline.options import (
    AUTO,
    ONLY_LOCAL,
    OptionError,
    Options,
    Topics,
    names_brokers,
    parse,
)
from tidemark_pipeline.positions import (
    EARLIEST,
    LATEST,
    At,
    Earliest,
    Latest,
    Position,
    Positions,
    Since,
)
from tidemark_pipeline.topic_survey import Part, Survey

if TYPE_CHECKING:  # options are checked without Spark
    from pyspark.sql import DataFrame, SparkSession

#: Of ours, those that Kafka's protocol tells.
COLUMNS = tuple(n for n in columns.NAMES if n not in {"tier", "tieredEpoch", "leaderEpoch"})
#: What only our own source can do.
OURS_ALONE = (
    *("tier", *STORAGE_OPTIONS, "bytesPerTask", "decodeThreads", "maxBytesPerTrigger"),
    "timestampSkewMs",
)
_BY_SPARK = "Spark's own source reads it: leave it out"
_INSTEAD = {
    "maxBytesPerTrigger": "say maxOffsetsPerTrigger",
    **dict.fromkeys(("bytesPerTask", "decodeThreads", "timestampSkewMs"), _BY_SPARK),
}
_LOGIN_MODULE = "org.apache.kafka.common.security"


def read(session: "SparkSession", raw: Mapping[str, str]) -> "DataFrame":
    """The topics that the options name. Raises :class:`OptionError`, and what a look at brokers
    raises."""
    options = checked(raw)
    frame = session.read.format("kafka").options(**_said(options)).load()
    return frame.select(*options.columns)


def stream(session: "SparkSession", raw: Mapping[str, str]) -> "DataFrame":
    """The same as a stream, which goes on until its query is stopped, or to the end that there is
    when it starts (``Trigger.AvailableNow``). Raises the same."""
    options = checked(raw, streaming=True)
    frame = session.readStream.format("kafka").options(**_said(options)).load()
    return frame.select(*options.columns)


def _said(options: Options) -> dict[str, str]:
    with Survey(options) as survey:
        return kafka_options(options, survey)


def checked(raw: Mapping[str, str], *, streaming: bool = False) -> Options:
    """As our source checks them; all that there is is the brokers', wherever they have it. Raises
    :class:`OptionError`."""
    given = without_engine(raw)
    ours = {name.lower(): name for name in OURS_ALONE}
    for name in given:
        if name.lower() in ours:
            own = ours[name.lower()]
            instead = _INSTEAD.get(own, "its brokers read it for us wherever it lies: leave it out")
            raise OptionError(f"{own} is no option of a topic of Apache Kafka: {instead}")
    if not names_brokers(given):
        raise OptionError("engine is kafka, which needs 'bootstrap': name its brokers")
    all_there_is = {**given, "tier": ONLY_LOCAL}
    options = replace(parse(all_there_is, streaming=streaming, names=COLUMNS), tier=AUTO)
    if streaming and options.ending is not None:
        raise OptionError(
            "a stream of a topic of Apache Kafka goes to the end that the topic has when it "
            "starts, or has none: leave the ending option out"
        )
    return options


class Look(Protocol):
    """What is asked of brokers where single partitions are named: see
    :class:`~tidemark_pipeline.topic_survey.Survey`."""

    def parts(self) -> Sequence[Part]:
        """All of them, as Spark wants each to be named."""

    def find(self, part: Part, timestamp_ms: int) -> int | None:
        """The first offset of a time or later."""


def kafka_options(options: Options, look: Look) -> dict[str, str]:
    """In the words of Spark's source. Raises OptionError."""
    assert options.access is not None
    said = {
        "includeHeaders": "true",
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
        "startingOffsetsByTimestampStrategy": "error" if options.strict_times else "latest",
        # As our source reads, and a consumer of what was committed.
        "kafka.isolation.level": "read_committed",
        **_subscription(options.topics),
        **_security(options.access),
    }
    if options.limits.offsets is not None:
        said["maxOffsetsPerTrigger"] = str(options.limits.offsets)
    for side, positions in (("starting", options.starting), ("ending", options.ending)):
        if positions is not None:
            name, value = _position(side, positions, look, strict=options.strict_times)
            said[name] = value
    return said


def _subscription(topics: Topics) -> dict[str, str]:
    if topics.assigned:
        return {"assign": json.dumps({name: list(parts) for name, parts in topics.assigned})}
    if topics.pattern:
        return {"subscribePattern": topics.pattern}
    return {"subscribe": ",".join(topics.names)}


# ---------------------------------------------------------------- from where to where


def _position(side: str, positions: Positions, look: Look, *, strict: bool) -> tuple[str, str]:
    """The option and its value."""
    if not positions.each:
        match positions.otherwise:
            case Since(timestamp_ms):
                return f"{side}Timestamp", str(timestamp_ms)
            case Latest():
                return f"{side}Offsets", "latest"
            case _:
                return f"{side}Offsets", "earliest"
    numbers: dict[str, dict[int, int]] = {}
    for part in look.parts():
        number = _number(side, positions.of(part.topic, part.partition), part, look, strict=strict)
        numbers.setdefault(part.topic, {})[part.partition] = number
    return f"{side}Offsets", json.dumps(numbers)


def _number(side: str, position: Position, part: Part, look: Look, *, strict: bool) -> int:
    """As Spark's JSON of offsets has it. Times are looked up here: Spark wants one of each
    partition then, and no time is the log start, for records need not have any."""
    match position:
        case At(offset):
            return offset
        case Latest():
            return LATEST
        case Earliest():
            return EARLIEST
        case Since(timestamp_ms):
            found = look.find(part, timestamp_ms)
            if found is None and strict and side == "starting":
                raise OptionError(
                    f"{part.topic}-{part.partition} has no record of {timestamp_ms} ms or later: "
                    "begin earlier, or say startingOffsetsByTimestampStrategy=latest"
                )
            return LATEST if found is None else found


# ---------------------------------------------------------------- who we are to brokers


def _security(access: KafkaAccess) -> dict[str, str]:
    said = {"kafka.bootstrap.servers": ",".join(access.bootstrap)}
    protocol = ("SASL_" if access.login else "") + ("SSL" if access.tls else "PLAINTEXT")
    said["kafka.security.protocol"] = protocol
    if access.tls is not None:
        said |= _tls(access.tls)
    if access.login is not None:
        said["kafka.sasl.mechanism"] = access.login.mechanism
        said["kafka.sasl.jaas.config"] = _jaas(access.login)
    return said


def _tls(tls: Tls) -> dict[str, str]:
    """PEM in the options themselves: Kafka's client wants a certificate and its key in one file,
    and ours has them in two."""
    said = {}
    if tls.ca:
        said["kafka.ssl.truststore.type"] = "PEM"
        said["kafka.ssl.truststore.certificates"] = _text(tls.ca)
    if tls.certificate:
        said["kafka.ssl.keystore.type"] = "PEM"
        said["kafka.ssl.keystore.certificate.chain"] = _text(tls.certificate)
        said["kafka.ssl.keystore.key"] = _text(tls.key or tls.certificate)
    return said


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
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
