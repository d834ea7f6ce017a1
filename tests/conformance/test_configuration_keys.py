"""Our table of configuration keys against Apache Kafka's own classes: types, bounds, defaults,
broker synonyms.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kafka_programs import JAVA, kafka_jars
from tidemark.configuration import table
from tidemark.configuration.key import ConfigKey
from tidemark.configuration.values import INT32_MAX, INT64_MAX, Number

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.full]

PROGRAM = """
import java.lang.reflect.Field;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

public class Keys {
    static void print(String kind, ConfigDef keys) {
        for (ConfigDef.ConfigKey key : keys.configKeys().values())
            System.out.println(String.join("\\t", kind, key.name, key.type.toString().toLowerCase(),
                String.valueOf(key.defaultValue), String.valueOf(key.validator),
                String.valueOf(key.internalConfig)));
    }

    public static void main(String[] arguments) throws Exception {
        print("topic", LogConfig.configDefCopy());
        Class<?> broker = Class.forName("kafka.server.KafkaConfig");
        print("broker", (ConfigDef) broker.getMethod("configDef").invoke(null));
        Field groups = Class.forName("org.apache.kafka.coordinator.group.GroupConfig")
            .getDeclaredField("CONFIG_DEF");
        groups.setAccessible(true);
        print("group", (ConfigDef) groups.get(null));
        ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.forEach((name, synonyms) ->
            System.out.println("synonyms\\t" + name + "\\t" + String.join(",",
                synonyms.stream().map(synonym -> synonym.name()).toList())));
    }
}
"""
#: Topic keys of ours that Kafka 4.3 has not: KIP-950 as it was written, KIP-1241, and our own.
OURS = {
    "remote.log.disable.policy",
    "remote.copy.lag.ms",
    "remote.copy.lag.bytes",
    "tidemark.remote.copy.max.lag.ms",
    "tidemark.remote.copy.max.lag.bytes",
    "tidemark.remote.copy.paused",
    "tidemark.remote.compression",
}
#: Bounds that Kafka has not, though it means nothing by a lower value.
BOUNDS = {"retention.bytes": "null"}


class KafkaKey(NamedTuple):
    """A key as Kafka's classes print it."""

    type: str
    default: str
    bounds: str


class KafkasKeys(NamedTuple):
    """All that Kafka's classes say."""

    topic: dict[str, KafkaKey]
    broker: dict[str, KafkaKey]
    group: dict[str, KafkaKey]
    synonyms: dict[str, list[str]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> KafkasKeys:
    # A single-file program prints the ConfigDef tables: they are not in any released document.
    jars = kafka_jars()
    source = tmp_path_factory.mktemp("java") / "Keys.java"
    source.write_text(PROGRAM, encoding="utf-8")
    return _parsed(_run(jars, source))


def _run(jars: Path, source: Path) -> str:
    done = subprocess.run(
        [*JAVA, "-cp", f"{jars}/*", str(source)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _parsed(output: str) -> KafkasKeys:
    keys = KafkasKeys({}, {}, {}, {})
    for line in output.splitlines():
        kind, name, *fields = line.split("\t")
        if kind == "synonyms":
            keys.synonyms[name] = fields[0].split(",")
        elif (
            kind in ("broker", "group") or fields[3] == "false"
        ):  # Kafka's internal topic keys are not for users
            getattr(keys, kind)[name] = KafkaKey(*fields[:3])
    return keys


def _bounds(key: ConfigKey) -> str:
    """The range as Kafka prints it."""
    assert isinstance(key.type, Number)
    top = key.type.maximum
    return f"[{key.type.minimum},{'...' if top in (INT32_MAX, INT64_MAX) else f'...,{top}'}]"


def test_topic_keys_equal_kafkas(kafka: KafkasKeys) -> None:
    assert set(table.TOPIC) - OURS == set(kafka.topic)


@pytest.mark.parametrize("name", sorted(set(table.TOPIC) - OURS))
def test_topic_key_has_kafkas_type_default_and_bounds(kafka: KafkasKeys, name: str) -> None:
    ours, kafkas = table.TOPIC[name], kafka.topic[name]
    assert ours.type.name == kafkas.type
    assert ours.default == kafkas.default.strip("[]")
    # Only numbers have a range. Kafka's validators of lists and strings print no bounds.
    if isinstance(ours.type, Number):
        assert kafkas.bounds == BOUNDS.get(name, _bounds(ours))


@pytest.mark.parametrize("name", sorted(table.GROUP))
def test_group_key_has_kafkas_type_default_and_bounds(kafka: KafkasKeys, name: str) -> None:
    """Kafka has more: those of share groups and of streams groups."""
    ours, kafkas = table.GROUP[name], kafka.group[name]
    assert (ours.type.name, ours.default, _bounds(ours)) == kafkas
    assert [f"group.{name}"] == [synonym.name for synonym in ours.synonyms]


@pytest.mark.parametrize(
    "name",
    sorted(key.name for key in table.TOPIC.values() if key.synonyms and key.name not in OURS),
)
def test_synonyms_have_kafkas_order(kafka: KafkasKeys, name: str) -> None:
    """Kafka has more of some; ``log.flush.scheduler.interval.ms`` is a pause of ours."""
    ours = [synonym.name for synonym in table.TOPIC[name].synonyms]
    assert ours == kafka.synonyms[name][: len(ours)]


@pytest.mark.parametrize("name", sorted(table.BROKER))
def test_broker_default_equals_kafkas_or_names_it(kafka: KafkasKeys, name: str) -> None:
    ours, kafkas = table.BROKER[name], kafka.broker.get(name)
    # Keys of Tidemark alone, and keys whose default the operator derives.
    if kafkas is None or ours.default is None:
        return
    assert (ours.kafka_default or ours.default) == kafkas.default.strip("[]")
    assert ours.kafka_default != ours.default
