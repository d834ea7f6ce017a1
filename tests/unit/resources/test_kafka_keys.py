"""The table of configuration keys, and what Python makes of it."""

import re

import pytest

from tidemark_operator.resources.kafka_keys import (
    CLUSTER_KEYS,
    TOPIC_KEY_OF_DEFAULT,
    TOPIC_KEYS,
    TYPED_KEYS,
    Number,
    Pattern,
    config_problems,
)

GOOD = [
    ("retention.ms", "-1"),
    ("retention.ms", "9223372036854775807"),
    ("retention.bytes", "1000000000000000000"),
    ("segment.bytes", "1048576"),
    ("cleanup.policy", "delete"),
    ("cleanup.policy", "compact, delete"),
    ("compression.type", "zstd"),
    ("compression.gzip.level", "-1"),
    ("compression.zstd.level", "-131072"),
    ("min.insync.replicas", "2"),
    ("min.cleanable.dirty.ratio", "0.5"),
    ("min.cleanable.dirty.ratio", ".25"),
    ("unclean.leader.election.enable", "false"),
    ("message.timestamp.type", "LogAppendTime"),
    ("leader.replication.throttled.replicas", "0:1,1:2"),
    ("follower.replication.throttled.replicas", "*"),
]
BAD = [
    ("retention.ms", "-2", "retention.ms must be a whole number, at least -1"),
    ("retention.ms", "7d", "retention.ms must be a whole number, at least -1"),
    ("retention.ms", "9223372036854775808", "retention.ms must be a whole number, at least -1"),
    ("retention.ms", "", "retention.ms must be a whole number, at least -1"),
    ("segment.ms", "0", "segment.ms must be a whole number, at least 1"),
    ("segment.bytes", "1024", "segment.bytes must be a whole number from 1048576 to 2147483647"),
    ("max.message.bytes", "2147483648", "max.message.bytes must be a whole number from 0 to"),
    ("compression.lz4.level", "18", "compression.lz4.level must be a whole number from 1 to 17"),
    ("compression.gzip.level", "0", "compression.gzip.level must be -1, or 1 to 9"),
    ("compression.type", "brotli", "compression.type must be one of producer,"),
    ("cleanup.policy", "compacted", "cleanup.policy must be delete, compact, or both"),
    ("preallocate", "yes", "preallocate must be 'true' or 'false', in quotes"),
    ("min.cleanable.dirty.ratio", "1.5", "min.cleanable.dirty.ratio must be a number from 0 to 1"),
    ("message.timestamp.type", "Never", "message.timestamp.type must be one of CreateTime"),
    ("leader.replication.throttled.replicas", "1", "must be *, or a list of partition:broker"),
    ("retension.ms", "1", "retension.ms is not a known configuration key"),
    ("remote.storage.enable", "true", "use spec.tiering.enabled"),
    ("local.retention.ms", "1", "use spec.tiering.localRetention.time"),
    ("remote.log.copy.disable", "true", "disablePolicy: Retain"),
]


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_good_value(key: str, value: str) -> None:
    assert config_problems({key: value}, TOPIC_KEYS, TYPED_KEYS) == ()


@pytest.mark.parametrize(("key", "value", "message"), BAD)
def test_bad_value(key: str, value: str, message: str) -> None:
    (problem,) = config_problems({key: value}, TOPIC_KEYS, TYPED_KEYS)
    assert message in problem


def test_every_problem_is_told() -> None:
    assert len(config_problems({"a": "1", "flush.ms": "-1"}, TOPIC_KEYS, TYPED_KEYS)) == 2


def test_tables_agree_with_each_other() -> None:
    assert not TYPED_KEYS.keys() & TOPIC_KEYS.keys()
    assert TOPIC_KEY_OF_DEFAULT.keys() <= CLUSTER_KEYS.keys()
    assert set(TOPIC_KEY_OF_DEFAULT.values()) <= TOPIC_KEYS.keys() | TYPED_KEYS.keys()


@pytest.mark.parametrize("shape", sorted({*TOPIC_KEYS.values(), *CLUSTER_KEYS.values()}, key=repr))
def test_shapes_stay_in_the_common_subset_of_both_regex_dialects(shape: Number | Pattern) -> None:
    """RE2 has no lookaround and no backreference, and Python's ``\\d`` is Unicode."""
    if isinstance(shape, Pattern):
        re.compile(shape.regex)
        assert "\\" not in shape.regex
        assert "(?" not in shape.regex
    else:
        assert shape.minimum <= shape.maximum
