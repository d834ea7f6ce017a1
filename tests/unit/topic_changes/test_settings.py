"""Kafka's keys in a Topic's spec, and tiering by KIP-950's and Kafka's keys."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.topic_changes.requests import settings
from tidemark.configuration.table import DYNAMIC
from tidemark_operator.topic_changes.refusal import ChangeRefusal
from tidemark_operator.topic_changes.settings import TopicSettings, changed, check_names

ON = {"enabled": True}
OFF = {"enabled": False}
RETAINED = {"enabled": False, "disablePolicy": "Retain"}
DELETED = {"enabled": False, "disablePolicy": "Delete"}

TIERING = {
    "on": (None, {"remote_storage_enable": "true"}, ON),
    "off": (ON, {"remote_storage_enable": "false"}, OFF),
    "off with the draft's policy": (
        ON,
        # remote.log.disable.policy is the key of KIP-950's draft.
        {"remote_storage_enable": "false", "remote_log_disable_policy": "delete"},
        DELETED,
    ),
    "off with Kafka's flag": (
        ON,
        # Kafka 3.9 and later have remote.log.delete.on.disable instead.
        {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"},
        DELETED,
    ),
    "Kafka's flag in advance": (
        ON,
        {"remote_log_delete_on_disable": "true"},
        {"enabled": True, "disablePolicy": "Delete"},
    ),
    "Kafka's flag reset": (
        {"enabled": True, "disablePolicy": "Delete"},
        {"remote_log_delete_on_disable": "false"},
        ON,
    ),
    # Without copying, the tier is read-only: KIP-950 calls that Retain.
    "copying ends": (ON, {"remote_log_copy_disable": "true"}, RETAINED),
    "copying ends, by all of Kafka's keys": (
        ON,
        {"remote_storage_enable": "true", "remote_log_copy_disable": "true"},
        RETAINED,
    ),
    "copying restarts": (RETAINED, {"remote_log_copy_disable": "false"}, ON),
    "copying never ended": (None, {"remote_log_copy_disable": "false"}, None),
    "deleted, and not to be copied": (DELETED, {"remote_log_copy_disable": "true"}, DELETED),
    "local time": (
        ON,
        {"local_retention_ms": "60000"},
        {"enabled": True, "localRetention": {"time": "60000ms"}},
    ),
    "local size": (
        ON,
        {"local_retention_bytes": "1000"},
        {"enabled": True, "localRetention": {"size": "1000"}},
    ),
    "maximum lag": (
        ON,
        {
            "tidemark_remote_copy_max_lag_ms": "10000",
            "tidemark_remote_copy_max_lag_bytes": "67108864",
        },
        {"enabled": True, "maxLag": {"time": "10000ms", "size": "67108864"}},
    ),
    "no maximum lag": (
        {"enabled": True, "maxLag": {"time": "10s", "size": "64Mi"}},
        {
            "tidemark_remote_copy_max_lag_ms": str(2**63 - 1),
            "tidemark_remote_copy_max_lag_bytes": None,
        },
        ON,
    ),
    "copying pauses": (
        ON,
        {"tidemark_remote_copy_paused": "true"},
        {"enabled": True, "paused": True},
    ),
    "copying resumes": (
        {"enabled": True, "paused": True},
        {"tidemark_remote_copy_paused": "false"},
        ON,
    ),
    "local limits as the topic's": (
        {"enabled": True, "localRetention": {"time": "1h", "size": "1"}},
        # -2 is Kafka's value for the same limit as in total.
        {"local_retention_ms": "-2", "local_retention_bytes": None},
        ON,
    ),
}


@pytest.mark.parametrize("case", TIERING)
def test_tiering_keys_change_the_spec(case: str) -> None:
    before, requested, after = TIERING[case]
    found = changed(TopicSettings({}, before), settings(**requested), replaces_all=False)
    assert (found.config, found.tiering) == ({}, after)


BAD: dict[str, tuple[dict[str, str], str]] = {
    "no boolean": ({"remote_storage_enable": "yes"}, "must be 'true' or 'false'"),
    "no policy": ({"remote_log_disable_policy": "keep"}, "must be one of"),
    "negative": ({"local_retention_ms": "-1"}, "Use a number, or -2"),
    "below the minimum": (
        {"tidemark_remote_copy_max_lag_ms": "999"},
        "must be a whole number, at least 1000",
    ),
    "not served": ({"compression_type": "zstd"}, "is not served, except with the value producer"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_is_reported(case: str) -> None:
    requested, message = BAD[case]
    with pytest.raises(ChangeRefusal) as refusal:
        changed(TopicSettings({}, None), settings(**requested), replaces_all=False)
    assert message in refusal.value.message


@pytest.mark.parametrize("value", ["keep", "RETAIN", "retain,delete", "", "none"])
@pytest.mark.parametrize("replaces_all", [False, True])
def test_an_unsupported_disablement_policy_is_an_invalid_request(
    value: str, replaces_all: bool
) -> None:
    """KIP-950 requires INVALID_REQUEST (section "Exceptions")."""
    requested = settings(remote_storage_enable="false", remote_log_disable_policy=value)
    with pytest.raises(ChangeRefusal, match=r"remote[.]log[.]disable[.]policy") as refusal:
        changed(TopicSettings({}, ON), requested, replaces_all=replaces_all)
    assert refusal.value.code == ErrorCode.invalid_request == 42


def test_another_bad_value_is_an_invalid_configuration() -> None:
    with pytest.raises(ChangeRefusal) as refusal:
        changed(TopicSettings({}, ON), settings(remote_storage_enable="yes"), replaces_all=False)
    assert refusal.value.code == ErrorCode.invalid_config


def test_an_omitted_field_does_not_disable_tiering() -> None:
    before = TopicSettings({"segment.ms": "5"}, ON)
    # AlterConfigs without remote.storage.enable would turn tiering off.
    with pytest.raises(ChangeRefusal, match=r"Include remote[.]storage[.]enable"):
        changed(before, settings(retention_ms="5"), replaces_all=True)
    requested: dict[str, Any] = {"retention_ms": "5", "remote_storage_enable": "true"}
    found = changed(before, settings(**requested), replaces_all=True)
    assert (found.config, found.tiering) == ({"retention.ms": "5"}, ON)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("num_partitions", "spec.config of the Cluster object"),
        ("node_id", "each broker's file"),
        ("log_retention_ms", "and retention.ms is the key of one topic"),
        ("x_y", "supported keys are in docs/reference/configuration.md"),
    ],
)
def test_foreign_key_is_refused_with_its_place(name: str, instead: str) -> None:
    with pytest.raises(ChangeRefusal, match=instead) as refusal:
        changed(TopicSettings({}, None), settings(**{name: "1"}), replaces_all=False)
    assert f"Unknown topic config name: {name.replace('_', '.')}; " in refusal.value.message


def test_topic_key_for_all_brokers_is_refused_with_its_default() -> None:
    with pytest.raises(ChangeRefusal, match=r"the default for all topics is log[.]retention[.]ms"):
        check_names(settings(retention_ms="1"), DYNAMIC, ErrorCode.invalid_request, "Not dynamic")
