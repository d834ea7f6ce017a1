"""The table of configuration keys, and its use by brokers, topics and the cluster."""

import dataclasses
import re
from pathlib import Path

import pytest

from tidemark.configuration import broker_keys, table
from tidemark.configuration.key import ConfigKey
from tidemark.configuration.layers import effective, topic_defaults
from tidemark.configuration.problems import not_served, problems, served_names
from tidemark.configuration.topic_keys import COPY_PAUSED, MAX_LAG_BYTES, MAX_LAG_MS
from tidemark.configuration.values import Pattern
from tidemark_broker.log import LogConfig

GOOD = [
    ("retention.ms", "-1"),
    ("retention.ms", "9223372036854775807"),
    ("retention.bytes", "1000000000000000000"),
    ("segment.bytes", "1048576"),
    ("cleanup.policy", "delete"),
    ("cleanup.policy", "compact, delete"),
    ("min.insync.replicas", "2"),
    ("unclean.leader.election.enable", "false"),
    ("message.timestamp.type", "LogAppendTime"),
    # Not served, but these values describe the behaviour.
    ("compression.type", "producer"),
    ("preallocate", "false"),
    ("segment.jitter.ms", "0"),
]
BAD = [
    ("retention.ms", "-2", "retention.ms must be a whole number, at least -1"),
    ("retention.ms", "7d", "retention.ms must be a whole number, at least -1"),
    ("retention.ms", "9223372036854775808", "retention.ms must be a whole number, at least -1"),
    ("retention.ms", "", "retention.ms must be a whole number, at least -1"),
    ("segment.ms", "0", "segment.ms must be a whole number, at least 1"),
    ("segment.bytes", "1024", "segment.bytes must be a whole number from 1048576 to 2147483647"),
    ("max.message.bytes", "2147483648", "max.message.bytes must be a whole number from 0 to"),
    ("cleanup.policy", "compacted", "cleanup.policy must be delete, compact, or both"),
    ("unclean.leader.election.enable", "yes", "must be 'true' or 'false', in quotes"),
    ("message.timestamp.type", "Never", "message.timestamp.type must be one of CreateTime"),
    ("retension.ms", "1", "retension.ms is not a configuration key of this object"),
    ("remote.storage.enable", "true", "Set spec.tiering.enabled"),
    ("local.retention.ms", "1", "Set spec.tiering.localRetention.time"),
    ("remote.log.copy.disable", "true", "disablePolicy: Retain"),
    (
        "compression.type",
        "zstd",
        "compression.type is not served, except with the value producer: brokers",
    ),
    ("preallocate", "true", "preallocate is not served, except with the value false: files"),
    ("min.cleanable.dirty.ratio", "1.5", "must be a number from 0 to 1, in quotes"),
    (
        "leader.replication.throttled.replicas",
        "*",
        "is not served: replication quotas are not supported",
    ),
    ("file.delete.delay.ms", "1", ". Supported keys: cleanup.policy, delete.retention.ms, "),
]
#: Types of keys that no part serves: their values are described for the page.
TYPES = [
    ("compression.zstd.level", "-131072", True),
    ("compression.lz4.level", "18", False),
    ("compression.gzip.level", "-1", True),
    ("compression.gzip.level", "0", False),
    ("compression.type", "zstd", True),
    ("compression.type", "brotli", False),
    ("preallocate", "yes", False),
    ("min.cleanable.dirty.ratio", "0.5", True),
    ("min.cleanable.dirty.ratio", ".25", True),
    ("min.cleanable.dirty.ratio", "1.5", False),
    ("leader.replication.throttled.replicas", "0:1,1:2", True),
    ("leader.replication.throttled.replicas", "1", False),
    ("follower.replication.throttled.replicas", "*", True),
]
OWN = (*broker_keys.CLUSTER_KEYS, *broker_keys.BROKER_KEYS)
ROOT = Path(__file__).parents[3]
SOURCES = [
    path.read_text(encoding="utf-8")
    for folder in ("broker_image/tidemark_broker", "operator/tidemark_operator")
    for path in (ROOT / folder).rglob("*.py")
]
ALL = (*table.TOPIC.values(), *table.CLUSTER.values(), *table.BROKER.values())


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_good_value(name: str, value: str) -> None:
    assert problems({name: value}, table.TOPIC) == ()


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_bad_value(name: str, value: str, message: str) -> None:
    (problem,) = problems({name: value}, table.TOPIC)
    assert message in problem


@pytest.mark.parametrize(("name", "value", "accepted"), TYPES)
def test_values_of_keys_that_are_not_served(name: str, value: str, accepted: bool) -> None:
    assert table.TOPIC[name].type.accepts(value) is accepted


def test_every_problem_is_reported() -> None:
    assert len(problems({"a": "1", "flush.ms": "-1", "preallocate": "true"}, table.TOPIC)) == 3


def test_a_served_topic_key_is_read_by_the_log_and_nothing_else_is() -> None:
    """Otherwise a key would be admitted without effect, or be read and never admitted."""
    read = {field.name.replace("_", ".") for field in dataclasses.fields(LogConfig) if field.init}
    by_field = {
        "local.retention.ms",
        "local.retention.bytes",
        "remote.storage.enable",
        MAX_LAG_MS,
        MAX_LAG_BYTES,
        COPY_PAUSED,
    }
    assert read == {*served_names(table.TOPIC), *by_field}


@pytest.mark.parametrize("key", OWN, ids=lambda key: key.name)
def test_a_key_that_is_no_default_of_topics_is_read(key: ConfigKey) -> None:
    """The sources contain the key's name, or the constant with its name."""
    constants = [name for name, value in vars(broker_keys).items() if value == key.name]
    spelled = [f'"{key.name}"', *constants]
    assert any(word in text for text in SOURCES for word in spelled)


@pytest.mark.parametrize("key", ALL, ids=lambda key: key.name)
def test_a_default_is_a_value_of_its_type(key: ConfigKey) -> None:
    if key.default is not None:
        assert key.type.accepts(key.default), key.default
        assert key.default_value is not None or not key.served
    assert not key.only or key.type.accepts(key.only)
    assert key.meaning or not key.served


def test_a_default_of_the_cluster_reaches_the_topic_key_that_it_is_for() -> None:
    for name, key in table.CLUSTER_DEFAULTS.items():
        assert topic_defaults({name: "5"}) == {key.name: "5"}
        assert table.CLUSTER[name].type is key.type
    assert topic_defaults({"enable.under.replicated.topic.creation": "true"}) == {}


def test_what_is_not_served_for_a_topic_is_not_served_for_the_cluster() -> None:
    assert set(not_served(table.CLUSTER)) == {
        key.synonyms[0].name for key in not_served(table.TOPIC).values() if key.synonyms
    }


@pytest.mark.parametrize("name", served_names(table.TOPIC))
def test_every_default_in_a_brokers_file_is_obeyed(name: str) -> None:
    for synonym in table.TOPIC[name].synonyms:
        found = effective({synonym.name: "-1"})
        assert found == {name: "-1"}


def test_a_topic_overrides_the_cluster_and_the_cluster_the_broker() -> None:
    merged = effective(
        {"log.retention.hours": "2", "log.segment.bytes": "1000", "min.insync.replicas": "1"},
        {"log.retention.ms": "500", "min.insync.replicas": "2"},
        {"segment.bytes": "2000", "node.id": "1"},
    )
    assert merged == {"retention.ms": "500", "segment.bytes": "2000", "min.insync.replicas": "2"}
    # Units are converted, and -1 is unlimited in every unit.
    assert effective({"log.retention.hours": "2"})["retention.ms"] == "7200000"
    assert effective({"log.retention.hours": "-1"})["retention.ms"] == "-1"
    # As in Kafka, the smaller unit takes precedence.
    assert effective({"log.retention.ms": "5", "log.retention.hours": "2"}) == {"retention.ms": "5"}
    with pytest.raises(ValueError, match=r"invalid value log\.roll\.hours='x'"):
        effective({"log.roll.hours": "x"})


def test_keys_of_a_brokers_file_that_nothing_reads_are_named() -> None:
    names = ("node.id", "log.retention.hours", "retention.ms", "log.preallocate", "nod.id")
    assert table.unread_in_broker_file(names) == ("log.preallocate", "nod.id")


@pytest.mark.parametrize("key", ALL, ids=lambda key: key.name)
def test_types_stay_in_the_common_subset_of_both_regex_dialects(key: ConfigKey) -> None:
    """RE2 has no lookaround and no backreference, and Python's ``\\d`` is Unicode."""
    if isinstance(key.type, Pattern):
        re.compile(key.type.regex)
        assert "\\" not in key.type.regex
        assert "(?" not in key.type.regex
    else:
        assert key.type.minimum <= key.type.maximum


def test_every_key_that_a_broker_reads_is_in_the_table() -> None:
    """Another key would end the broker with a KeyError, but only when it is first read."""
    pattern = re.compile(
        r"(?:\.integer|\.seconds|integer_of|_text_of)\(\s*(?:\w+,\s*)?\"([^\"]+)\""
    )
    read = {name for text in SOURCES for name in pattern.findall(text)}
    # The pattern must still find the calls that read keys.
    assert len(read) > 15
    assert read - set(table.BROKER) == set()
