"""The configuration keys of Kafka 4.3 that a Topic or a Cluster may set, and their values.

This table is the one source of the admission rules (CEL, in the CRDs) and of ``config_problems``
in Python. A key has a *shape*: what its text must look like, so that keys of one shape share one
rule. Values are texts, as in Kafka; bounds are Kafka's own.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from tidemark_operator.resources.names import INT32_MAX, INT64_MAX

_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A whole number from ``minimum`` to ``maximum``, both allowed."""

    minimum: int
    maximum: int

    @property
    def wanted(self) -> str:
        """What the value must be, as a message says it."""
        if self.maximum >= INT64_MAX:
            return f"must be a whole number, at least {self.minimum}"
        return f"must be a whole number from {self.minimum} to {self.maximum}"

    def accepts(self, text: str) -> bool:
        """Whether the text is a value of this shape."""
        return bool(_NUMBER.fullmatch(text)) and self.minimum <= int(text) <= self.maximum


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """A text that matches a regular expression (the common subset of RE2 and Python's)."""

    regex: str
    wanted: str

    def accepts(self, text: str) -> bool:
        """Whether the text is a value of this shape."""
        return re.fullmatch(self.regex, text, re.ASCII) is not None


Shape = Number | Pattern


def _one_of(*choices: str) -> Pattern:
    return Pattern(f"({'|'.join(choices)})", f"must be one of {', '.join(choices)}")


def _long(minimum: int) -> Number:
    return Number(minimum, INT64_MAX)


def _int(minimum: int, maximum: int = INT32_MAX) -> Number:
    return Number(minimum, maximum)


BOOLEAN = Pattern("(true|false)", "must be 'true' or 'false', in quotes")
RATIO = Pattern(r"(0|1|0?[.][0-9]{1,17}|1[.]0{1,17})", "must be a number from 0 to 1, in quotes")
CLEANUP_POLICY = Pattern(
    "(delete|compact)( *, *(delete|compact))?", "must be delete, compact, or both with a comma"
)
COMPRESSION = _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
THROTTLED = Pattern(
    "([*]|[0-9]{1,9}:[0-9]{1,9}(,[0-9]{1,9}:[0-9]{1,9})*)?",
    "must be *, or a list of partition:broker with commas",
)

#: Topic key -> (shape, the broker key that is its default for all topics).
_TOPIC: Mapping[str, tuple[Shape, str | None]] = {
    "cleanup.policy": (CLEANUP_POLICY, "log.cleanup.policy"),
    "compression.gzip.level": (Pattern("(-1|[1-9])", "must be -1, or 1 to 9"), None),
    "compression.lz4.level": (_int(1, 17), None),
    "compression.type": (COMPRESSION, "compression.type"),
    "compression.zstd.level": (_int(-131072, 22), None),
    "delete.retention.ms": (_long(0), "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": (_long(0), "log.segment.delete.delay.ms"),
    "flush.messages": (_long(1), "log.flush.interval.messages"),
    "flush.ms": (_long(0), "log.flush.interval.ms"),
    "follower.replication.throttled.replicas": (THROTTLED, None),
    "index.interval.bytes": (_int(0), "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": (THROTTLED, None),
    "max.compaction.lag.ms": (_long(1), "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": (_int(0), "message.max.bytes"),
    "message.timestamp.after.max.ms": (_long(0), "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": (_long(0), "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": (
        _one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
    ),
    "min.cleanable.dirty.ratio": (RATIO, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": (_long(0), "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": (_int(1), "min.insync.replicas"),
    "preallocate": (BOOLEAN, "log.preallocate"),
    "retention.bytes": (_long(-1), "log.retention.bytes"),
    "retention.ms": (_long(-1), "log.retention.ms"),
    "segment.bytes": (_int(1024 * 1024), "log.segment.bytes"),
    "segment.index.bytes": (_int(4), "log.index.size.max.bytes"),
    "segment.jitter.ms": (_long(0), "log.roll.jitter.ms"),
    "segment.ms": (_long(1), "log.roll.ms"),
    "unclean.leader.election.enable": (BOOLEAN, "unclean.leader.election.enable"),
}

#: Broker keys that are defaults of topic keys which have typed fields in a Topic.
_LOCAL_DEFAULTS = {
    "log.local.retention.ms": "local.retention.ms",
    "log.local.retention.bytes": "local.retention.bytes",
}

TOPIC_KEYS: Mapping[str, Shape] = {name: shape for name, (shape, _) in _TOPIC.items()}

UNDER_REPLICATED_CREATION = "enable.under.replicated.topic.creation"
TIERING_SYSTEM = "remote.log.storage.system.enable"
DISABLE_POLICY = "remote.log.disable.policy"
CUSTOM_METADATA_MAX_BYTES = "remote.log.metadata.custom.metadata.max.bytes"
REMOTE_DELETE_DELAY_MS = "remote.delete.delay.ms"

#: Cluster key -> the topic key whose default it is.
TOPIC_KEY_OF_DEFAULT: Mapping[str, str] = {
    **{default: name for name, (_, default) in _TOPIC.items() if default is not None},
    **_LOCAL_DEFAULTS,
}

CLUSTER_KEYS: Mapping[str, Shape] = {
    UNDER_REPLICATED_CREATION: BOOLEAN,
    TIERING_SYSTEM: BOOLEAN,
    DISABLE_POLICY: _one_of("retain", "delete"),
    CUSTOM_METADATA_MAX_BYTES: _int(0),
    REMOTE_DELETE_DELAY_MS: _long(0),
    **{default: shape for shape, default in _TOPIC.values() if default is not None},
    **dict.fromkeys(_LOCAL_DEFAULTS, _long(-2)),
}

#: Topic keys that have a typed field in the manifest -> what to write instead.
TYPED_KEYS: Mapping[str, str] = {
    "remote.storage.enable": "spec.tiering.enabled",
    "remote.log.disable.policy": "spec.tiering.disablePolicy",
    "local.retention.ms": "spec.tiering.localRetention.time",
    "local.retention.bytes": "spec.tiering.localRetention.size",
    "remote.log.copy.disable": "spec.tiering.enabled: false with disablePolicy: Retain",
    "remote.log.delete.on.disable": "spec.tiering.enabled: false with disablePolicy: Delete",
}


def config_problems(
    config: Mapping[str, str], keys: Mapping[str, Shape], typed: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """What is wrong with a configuration, one sentence per key, in the words of the CRD's rules."""
    return tuple(_problems(config, keys, typed or {}))


def _problems(
    config: Mapping[str, str], keys: Mapping[str, Shape], typed: Mapping[str, str]
) -> Iterable[str]:
    for key, value in config.items():
        if key in typed:
            yield f"{key} is not set in spec.config: use {typed[key]}"
        elif key not in keys:
            yield f"{key} is not a known configuration key"
        elif not keys[key].accepts(value):
            yield f"{key} {keys[key].wanted}"
