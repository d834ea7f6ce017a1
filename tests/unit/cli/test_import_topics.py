"""Kafka's topics become manifests that amount to the same configuration."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark_cli.imports.topics import (
    ImportedTopic,
    ImportTarget,
    NotImported,
    duration_text,
    size_text,
    to_manifest,
)
from tidemark_operator.resources.names import PAUSED_ANNOTATION
from tidemark_operator.resources.scalars import duration_ms, quantity_bytes
from tidemark_operator.resources.topic import DeletionPolicyName, Topic
from tidemark_operator.resources.topic_config import kafka_config

TARGET = ImportTarget(cluster="c", namespace="", deletion_policy=DeletionPolicyName.ORPHAN)
TOTAL_MS, TOTAL_BYTES = 10**11, 10**13
ID = "4lTQvW1oS7-gC3B5IgwPmA"


def topic_with(**changed: Any) -> ImportedTopic:
    usual = {"source": "here", "name": "t", "partitions": 3, "replication_factor": 2, "config": {}}
    return ImportedTopic(**{**usual, **changed})


def manifest(**changed: Any) -> dict[str, Any]:
    return to_manifest(topic_with(**changed), TARGET, lambda _: False).manifest


def remarks(config: dict[str, str]) -> tuple[str, ...]:
    return to_manifest(topic_with(config=config), TARGET, lambda _: False).remarks


# The limits of total retention are above those of local retention, as a manifest requires.
PLAIN = {
    "retention.ms": st.integers(TOTAL_MS, 2**63 - 1).map(str) | st.just("-1"),
    "retention.bytes": st.integers(TOTAL_BYTES, 2**63 - 1).map(str) | st.just("-1"),
    "segment.bytes": st.integers(2**20, 2**31 - 1).map(str),
    "min.insync.replicas": st.integers(1, 5).map(str),
    "cleanup.policy": st.just("delete"),
    "unclean.leader.election.enable": st.sampled_from(["true", "false"]),
    "min.cleanable.dirty.ratio": st.decimals(0, 1, places=4).map(str),
    "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
}
TIERED = {
    "remote.storage.enable": st.sampled_from(["true", "false"]),
    "local.retention.ms": st.integers(0, TOTAL_MS).map(str),
    "local.retention.bytes": st.integers(1, TOTAL_BYTES).map(str),
}


@given(config=st.fixed_dictionaries({}, optional={**PLAIN, **TIERED}))
def test_a_manifest_amounts_to_the_configuration_that_it_comes_from(config: dict[str, str]) -> None:
    spec = Topic.parse(manifest(config=config)).spec
    assert remarks(config) == ()
    assert kafka_config(spec) == {"remote.storage.enable": "false", **config}


@given(st.integers(0, 3 * 10**12))
def test_duration_is_unchanged_by_its_text(total_ms: int) -> None:
    assert duration_ms(duration_text(total_ms)) == total_ms


@given(st.integers(0, 10**17) | st.integers(0, 10**4).map(lambda n: n * 2**30))
def test_size_is_unchanged_by_its_text(total: int) -> None:
    assert quantity_bytes(size_text(total)) == total


def test_units_are_the_largest_that_fit() -> None:
    assert [duration_text(value) for value in (0, 86_400_000, 5_400_000, 1_500)] == [
        *("0h", "24h", "90m", "1500ms")
    ]
    assert [size_text(item) for item in (0, 10 * 2**30, 1_500)] == ["0", "10Gi", "1500"]


@pytest.mark.parametrize(
    ("config", "tiering"),
    [
        ({}, None),
        ({"remote.storage.enable": "false"}, None),
        ({"remote.storage.enable": "true"}, {"enabled": True}),
        (
            {"remote.storage.enable": "true", "remote.log.copy.disable": "true"},
            {"enabled": False, "disablePolicy": "Retain"},
        ),
        (
            {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
            {"enabled": False, "disablePolicy": "Delete"},
        ),
        (
            {"remote.storage.enable": "true", "local.retention.ms": "-2"},
            {"enabled": True},
        ),
        (
            {"remote.storage.enable": "true", "local.retention.bytes": "-1"},
            {"enabled": True},
        ),
        (
            {"remote.storage.enable": "true", "local.retention.ms": "86400000"},
            {"enabled": True, "localRetention": {"time": "24h"}},
        ),
        (
            {
                "remote.storage.enable": "true",
                "tidemark.remote.copy.max.lag.ms": "10000",
                "tidemark.remote.copy.max.lag.bytes": "67108864",
                "tidemark.remote.copy.paused": "true",
            },
            {"enabled": True, "maxLag": {"time": "10s", "size": "64Mi"}, "paused": True},
        ),
        (
            {"remote.storage.enable": "true", "tidemark.remote.copy.max.lag.ms": str(2**63 - 1)},
            {"enabled": True},
        ),
    ],
)
def test_kafkas_tiering_keys_become_fields(config: dict[str, str], tiering: object) -> None:
    assert manifest(config=config)["spec"].get("tiering") == tiering
    assert "config" not in manifest(config=config)["spec"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"what.is.this": "1"}, "what.is.this is not a known topic configuration key"),
        (
            {"compression.type": "lz4"},
            "compression.type is not served, except with the value producer",
        ),
        ({"leader.replication.throttled.replicas": "0:1"}, "is not served"),
        ({"retention.ms": "a week"}, "retention.ms 'a week': it must be"),
        ({"remote.storage.enable": "maybe"}, "remote.storage.enable 'maybe': it must be"),
        ({"local.retention.ms": str(2**63 - 1)}, "is too long for spec.tiering.localRetention"),
    ],
)
def test_keys_without_a_counterpart_are_left_out_with_a_remark(
    config: dict[str, str], message: str
) -> None:
    spec = manifest(config={**config, "segment.bytes": "1048576"})["spec"]
    assert spec["config"] == {"segment.bytes": "1048576"}
    (remark,) = remarks(config)
    assert message in remark
    assert "stays unchanged in Kafka" in remark


def test_value_that_matches_the_behaviour_is_kept() -> None:
    assert manifest(config={"compression.type": "producer"})["spec"]["config"] == {
        "compression.type": "producer"
    }


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"partitions": 10_001}, "less than or equal to 10000"),
        ({"replication_factor": 0}, "greater than or equal to 1"),
        (
            {"config": {"retention.ms": "1000", "local.retention.ms": "2000"}},
            "local.retention.ms 2000 exceeds retention.ms 1000",
        ),
        (
            {"config": {"remote.storage.enable": "true", "cleanup.policy": "compact"}},
            "a compacted topic cannot be tiered",
        ),
    ],
)
def test_topics_that_no_manifest_can_describe_are_refused(
    changed: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotImported, match=why):
        to_manifest(topic_with(**changed), TARGET, lambda _: False)


def test_local_retention_below_an_inherited_total_is_not_refused() -> None:
    """Brokers may keep everything, so that Kafka's default of a week must not be assumed."""
    local = {"remote.storage.enable": "true", "local.retention.ms": str(30 * 86_400_000)}
    assert manifest(config=local)["spec"]["tiering"]["localRetention"] == {"time": "720h"}


@pytest.mark.parametrize("name", ["Orders", "a_b", "_", "a..b", "x" * 249])
def test_a_name_that_no_object_can_have_is_kept_as_topic_name(name: str) -> None:
    made = manifest(name=name)
    assert made["spec"].get("topicName", made["metadata"]["name"]) == name
    assert Topic.parse(made).topic_name == name


def test_similar_names_become_different_objects() -> None:
    names = {manifest(name=name)["metadata"]["name"] for name in ("a_b", "a.B", "A-b")}
    assert len(names) == 3


def test_manifest_is_ready_to_be_applied_with_adoption() -> None:
    made = manifest(topic_id=ID, is_paused=True, labels={"team": "a"}, annotations={"by": "b"})
    assert made["metadata"] == {
        "name": "t",
        "labels": {"team": "a"},
        "annotations": {"by": "b", ADOPT_TOPIC_ID: ID, PAUSED_ANNOTATION: "true"},
    }
    assert made["spec"]["deletionPolicy"] == "Orphan"
