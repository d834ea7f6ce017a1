"""A topic of Apache Kafka as a table, through Spark's own Kafka source, with our options and
columns.

Only that source can read what Kafka has tiered: its brokers fetch it, by whatever plug-in they
have. Options are checked as ours are and then said in Spark's words; what only our source can do is
refused with a sentence. Its jars have to be in the session (``spark.jars``); ``tidemark spark``
fetches them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.kafka_client.access import PLAIN, Access, Login, Tls
from tidemark.tier.config import OPTIONS as STORAGE_OPTIONS
from tidemark_pipeline import columns
from tidemark_pipeline.brokers import Brokers
from tidemark_pipeline.engines import ENGINE
from tidemark_pipeline.options import AUTO, ONLY_LOCAL, OptionError, Options, Topics, parse
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

if TYPE_CHECKING:  # options are checked without Spark
    from pyspark.sql import DataFrame, SparkSession

#: Of ours, those that Kafka's protocol tells.
COLUMNS = tuple(n for n in columns.NAMES if n not in {"tier", "tieredEpoch", "leaderEpoch"})
#: What only our own source can do.
OURS_ALONE = (
    *("tier", *STORAGE_OPTIONS, "bytesPerTask", "decodeThreads", "maxBytesPerTrigger"),
    "timestampSkewMs",
)
_LOGIN_MODULE = "org.apache.kafka.common.security"
#: Of a partition that is not named where times are given: before any record, and after all.
_FIRST_MS, _LAST_MS = 0, 2**62
_Counts = Callable[[Topics], Mapping[str, int]]


def read(session: "SparkSession", raw: Mapping[str, str]) -> "DataFrame":
    """The topics that the options name. Raises :class:`OptionError`, and what a look at brokers
    raises."""
    options = checked(raw)
    frame = session.read.format("kafka").options(**_said(options)).load()
    return frame.select(*_chosen(options))


def stream(session: "SparkSession", raw: Mapping[str, str]) -> "DataFrame":
    """The same as a stream, which goes on until its query is stopped, or to the end that there is
    when it starts (``Trigger.AvailableNow``). Raises the same."""
    options = checked(raw, streaming=True)
    if options.ending is not None:
        raise OptionError(
            "a stream of a topic of Apache Kafka goes to the end that the topic has when it "
            "starts, or has none: leave the ending option out"
        )
    frame = session.readStream.format("kafka").options(**_said(options)).load()
    return frame.select(*_chosen(options))


def _said(options: Options) -> dict[str, str]:
    assert options.access is not None
    with Brokers(options.access) as brokers:
        return kafka_options(options, lambda topics: _counts(brokers, topics))


def checked(raw: Mapping[str, str], *, streaming: bool = False) -> Options:
    """As our source checks them; all that there is is the brokers', wherever they have it. Raises
    :class:`OptionError`."""
    given = {name: value for name, value in raw.items() if name.lower() != ENGINE}
    ours = {name.lower(): name for name in OURS_ALONE}
    for name in given:
        if name.lower() in ours:
            raise OptionError(
                f"{ours[name.lower()]} is no option of a topic of Apache Kafka, which its brokers "
                "read for us wherever it lies: leave it out"
            )
    options = replace(parse({**given, "tier": ONLY_LOCAL}, streaming=streaming), tier=AUTO)
    strange = [name for name in options.columns if name not in COLUMNS]
    if strange and options.columns != columns.NAMES:
        raise OptionError(
            f"columns has {', '.join(strange)}, which Kafka's protocol does not tell; choose of "
            f"{', '.join(COLUMNS)}"
        )
    return options


def kafka_options(options: Options, counts: _Counts) -> dict[str, str]:
    """In the words of Spark's source. ``counts``: of partitions, by topic; asked where single
    partitions are named, as Spark wants all of them."""
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
            name, value = _position(side, positions, options.topics, counts)
            said[name] = value
    return said


def _chosen(options: Options) -> tuple[str, ...]:
    return tuple(name for name in options.columns if name in COLUMNS)


def _counts(brokers: Brokers, topics: Topics) -> dict[str, int]:
    found = brokers.topics(topics.names or None)
    return {name: each.partitions for name, each in found.items() if topics.has(name)}


def _subscription(topics: Topics) -> dict[str, str]:
    if topics.assigned:
        return {"assign": json.dumps({name: list(parts) for name, parts in topics.assigned})}
    if topics.pattern:
        return {"subscribePattern": topics.pattern}
    return {"subscribe": ",".join(topics.names)}


# ---------------------------------------------------------------- from where to where


def _position(side: str, positions: Positions, topics: Topics, counts: _Counts) -> tuple[str, str]:
    """The option and its value."""
    if not positions.each:
        match positions.otherwise:
            case Since(timestamp_ms):
                return f"{side}Timestamp", str(timestamp_ms)
            case Latest():
                return f"{side}Offsets", "latest"
            case _:
                return f"{side}Offsets", "earliest"
    each = {
        name: {str(n): positions.of(name, n) for n in topics.partitions_of(name, count)}
        for name, count in counts(topics).items()
    }
    timed = any(isinstance(p, Since) for parts in each.values() for p in parts.values())
    number = _time if timed else _offset
    numbers = {name: {n: number(p) for n, p in parts.items()} for name, parts in each.items()}
    return f"{side}Offsets{'ByTimestamp' if timed else ''}", json.dumps(numbers)


def _offset(position: Position) -> int:
    match position:
        case At(offset):
            return offset
        case Latest():
            return LATEST
        case _:
            return EARLIEST


def _time(position: Position) -> int:
    match position:
        case Since(timestamp_ms):
            return timestamp_ms
        case Earliest():
            return _FIRST_MS
        case _:
            return _LAST_MS


# ---------------------------------------------------------------- who we are to brokers


def _security(access: Access) -> dict[str, str]:
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
