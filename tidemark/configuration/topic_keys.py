"""Topic keys of Kafka 4.3 (``LogConfig``), with the broker keys that are their defaults for all
topics (``ServerTopicConfigSynonyms``).

Types, bounds and defaults are Kafka's own; ``tests/conformance/test_configuration_keys.py``
compares them with Kafka's classes.
"""

from tidemark.configuration.key import ConfigKey, KeySynonym, Scope
from tidemark.configuration.values import (
    BOOLEAN,
    CLEANUP_POLICY,
    INT64_MAX,
    RATIO,
    Pattern,
    ValueType,
    integer,
    long,
    one_of,
)
from tidemark.records.batch import TimestampType

#: Keys of Tidemark alone, with fields of their own.
MAX_LAG_MS = "tidemark.remote.copy.max.lag.ms"
MAX_LAG_BYTES = "tidemark.remote.copy.max.lag.bytes"
COPY_PAUSED = "tidemark.remote.copy.paused"
REMOTE_COMPRESSION = "tidemark.remote.compression"
#: Keys of Kafka 4.4 (KIP-1241).
COPY_LAG_MS = "remote.copy.lag.ms"
COPY_LAG_BYTES = "remote.copy.lag.bytes"

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_DAY_MS = 24 * _HOUR_MS
#: The largest ``long``: no limit.
_NEVER = str(INT64_MAX)

_THROTTLED = Pattern(
    "list",
    "([*]|[0-9]{1,9}:[0-9]{1,9}(,[0-9]{1,9}:[0-9]{1,9})*)?",
    "must be * or a comma-separated list of partition:broker",
)
_GZIP_LEVEL = Pattern("int", "(-1|[1-9])", "must be -1, or 1 to 9", int)
_CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


_Synonym = KeySynonym | str


def _key(name: str, type_: ValueType, default: str, *synonyms: _Synonym, **more: str) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=type_,
        default=default,
        scopes=frozenset({Scope.TOPIC}),
        synonyms=tuple(KeySynonym(name) if isinstance(name, str) else name for name in synonyms),
        **more,
    )


def _served(
    name: str, type_: ValueType, default: str, meaning: str, *synonyms: _Synonym
) -> ConfigKey:
    return _key(name, type_, default, *synonyms, meaning=meaning)


def _field(
    name: str, type_: ValueType, default: str, meaning: str, field: str, *synonyms: _Synonym
) -> ConfigKey:
    return _key(name, type_, default, *synonyms, meaning=meaning, field=field)


def _not_served(
    name: str, type_: ValueType, default: str, why: str, *synonyms: _Synonym, only: str = ""
) -> ConfigKey:
    return _key(name, type_, default, *synonyms, not_served=why, only=only)


_NO_RECOMPRESSION = "brokers store batches with the compression of the producer"
_NO_THROTTLE = "replication quotas are not supported"

# fmt: off
TOPIC_KEYS = (
    _served("cleanup.policy", CLEANUP_POLICY, "delete",
        "delete: retention deletes old segments. compact: the last record of each key is kept. "
        "Without delete, no record expires by age. A compacted topic cannot be tiered.",
        "log.cleanup.policy"),
    _served("delete.retention.ms", long(0), str(_DAY_MS),
        "Retention of tombstones in a compacted topic, counted from the first compaction that "
        "processes them.", "log.cleaner.delete.retention.ms"),
    _served("flush.messages", long(1), _NEVER,
        "Maximum number of unflushed records. It is checked every "
        "log.flush.scheduler.interval.ms.", "log.flush.interval.messages"),
    _served("flush.ms", long(0), _NEVER,
        "Maximum time that records stay unflushed. It is checked every "
        "log.flush.scheduler.interval.ms.", "log.flush.interval.ms"),
    _served("index.interval.bytes", integer(0), "4096",
        "Bytes of the log between two entries of its offset index.", "log.index.interval.bytes"),
    _served("max.compaction.lag.ms", long(1), _NEVER,
        "Maximum age at which a record of a compacted topic is compacted, regardless of the "
        "dirty ratio. Segments are closed at that age, too.",
        "log.cleaner.max.compaction.lag.ms"),
    _served("max.message.bytes", integer(0), "1048588",
        "Maximum size in bytes of a record batch.", "message.max.bytes"),
    _served("message.timestamp.after.max.ms", long(0), str(_HOUR_MS),
        "Maximum time that a record's timestamp may be ahead of the broker's clock.",
        "log.message.timestamp.after.max.ms"),
    _served("message.timestamp.before.max.ms", long(0), _NEVER,
        "Maximum time that a record's timestamp may be behind the broker's clock.",
        "log.message.timestamp.before.max.ms"),
    _served("message.timestamp.type", one_of(_TIMESTAMP_TYPES), "CreateTime",
        "Source of record timestamps: the producer (CreateTime) or the append (LogAppendTime).",
        "log.message.timestamp.type"),
    _served("min.cleanable.dirty.ratio", RATIO, "0.5",
        "Ratio of uncompacted bytes to all bytes of a compacted log at which it is compacted.",
        "log.cleaner.min.cleanable.ratio"),
    _served("min.compaction.lag.ms", long(0), "0",
        "Minimum time before a record is compacted.",
        "log.cleaner.min.compaction.lag.ms"),
    _served("min.insync.replicas", integer(1), "1",
        "Minimum ISR size for a produce with acks=all. The operator also uses it and does not "
        "read brokers' files, so set it on the Cluster.",
        "min.insync.replicas"),
    _served(COPY_LAG_BYTES, long(-1), "-1",
        "Bytes of newer records in a tiered partition that permit the copy of a closed segment "
        "(KIP-1241). 0: at once. -1: the local retention in bytes, never without one. A segment is "
        "copied when this or remote.copy.lag.ms permits it.", "log.remote.copy.lag.bytes"),
    _served(COPY_LAG_MS, long(-1), "0",
        "Age of the newest record in a closed segment of a tiered topic that permits its copy "
        "(KIP-1241). 0: at once. -1: the local retention time, never without one. A segment is "
        "copied when this or remote.copy.lag.bytes permits it.", "log.remote.copy.lag.ms"),
    _served("retention.bytes", long(-1), "-1",
        "Maximum size in bytes of a partition, in the tier and locally together. -1: no limit.",
        "log.retention.bytes"),
    _served("retention.ms", long(-1), str(7 * _DAY_MS),
        "Retention time of records, in the tier and locally together. -1: unlimited.",
        "log.retention.ms", KeySynonym("log.retention.minutes", _MINUTE_MS),
        KeySynonym("log.retention.hours", _HOUR_MS)),
    _served("segment.bytes", integer(1024 * 1024), str(1024**3),
        "Size at which a segment is closed. Only closed segments are copied to the tier.",
        "log.segment.bytes"),
    _served("segment.index.bytes", integer(4), str(10 * 1024**2),
        "Size of an index at which its segment is closed.", "log.index.size.max.bytes"),
    _served("segment.ms", long(1), str(7 * _DAY_MS), "Age at which a segment is closed.",
        "log.roll.ms", KeySynonym("log.roll.hours", _HOUR_MS)),
    _served("unclean.leader.election.enable", BOOLEAN, "false",
        "Allow a replica that may lack committed records to lead if no other can. The operator "
        "decides, so a value in a broker's file has no effect.",
        "unclean.leader.election.enable"),
    _field("local.retention.bytes", long(-2), "-2",
        "Bytes of a tiered partition that stay on the brokers' disks. -2: the value of "
        "retention.bytes.",
        "spec.tiering.localRetention.size", "log.local.retention.bytes"),
    _field("local.retention.ms", long(-2), "-2",
        "Retention time of a tiered topic's records on the brokers' disks. It counts from the "
        "record timestamp or from the last append to the segment, whichever is earlier. -2: the "
        "value of retention.ms.",
        "spec.tiering.localRetention.time", "log.local.retention.ms"),
    _field("remote.storage.enable", BOOLEAN, "false",
        "Copy closed segments to the remote tier.", "spec.tiering.enabled"),
    _field(MAX_LAG_MS, long(1000), _NEVER,
        "Time within which a committed record of a tiered topic is in the tier. The active segment "
        "is closed at half of it.", "spec.tiering.maxLag.time", MAX_LAG_MS),
    _field(MAX_LAG_BYTES, long(2 * 1024**2), _NEVER,
        "Bytes of a tiered partition that may wait for the tier. The active segment is closed at "
        "half of them.", "spec.tiering.maxLag.size", MAX_LAG_BYTES),
    _field(COPY_PAUSED, BOOLEAN, "false",
        "Copy nothing to the tier for now. Reads and expiration continue.",
        "spec.tiering.paused"),
    _field("remote.log.disable.policy", one_of({"retain": "retain", "delete": "delete"}),
        "retain", "Handling of tiered data when tiering is disabled (KIP-950).",
        "spec.tiering.disablePolicy"),
    _field("remote.log.copy.disable", BOOLEAN, "false",
        "Stops copying and keeps the data in the tier, in Kafka.",
        "spec.tiering.enabled: false with disablePolicy: Retain"),
    _field("remote.log.delete.on.disable", BOOLEAN, "false",
        "Deletes the data in the tier, in Kafka.",
        "spec.tiering.enabled: false with disablePolicy: Delete"),
    _served(REMOTE_COMPRESSION, one_of({"none": "none", "zstd": "zstd"}), "none",
        "Compression of new segments in the tier. zstd: a segment is compressed if that makes its "
        "first 256 KiB smaller by an eighth or more, so batches that producers have compressed "
        "are stored as they are.",
        REMOTE_COMPRESSION),
    _not_served("compression.gzip.level", _GZIP_LEVEL, "-1", _NO_RECOMPRESSION),
    _not_served("compression.lz4.level", integer(1, 17), "9", _NO_RECOMPRESSION),
    _not_served("compression.type", one_of(dict.fromkeys(_CODECS)), "producer", _NO_RECOMPRESSION,
        "compression.type", only="producer"),
    _not_served("compression.zstd.level", integer(-131072, 22), "3", _NO_RECOMPRESSION),
    _not_served("file.delete.delay.ms", long(0), "60000",
        "a file is deleted when its last reader closes it", "log.segment.delete.delay.ms"),
    _not_served("follower.replication.throttled.replicas", _THROTTLED, "", _NO_THROTTLE),
    _not_served("leader.replication.throttled.replicas", _THROTTLED, "", _NO_THROTTLE),
    _not_served("preallocate", BOOLEAN, "false", "files are not preallocated",
        "log.preallocate", only="false"),
    _not_served("segment.jitter.ms", long(0), "0", "segments are closed at exactly segment.ms",
        "log.roll.jitter.ms", only="0"),
)
# fmt: on
