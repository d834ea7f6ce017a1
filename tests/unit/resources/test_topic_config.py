"""Effective Kafka configuration of a Topic."""

from typing import Any

import pytest

from tidemark.configuration.layers import topic_defaults
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_operator.resources.topic import TopicSpec
from tidemark_operator.resources.topic_config import (
    copy_lag_problem,
    kafka_config,
    retention_problem,
    spec_of_kafka_config,
)


@pytest.mark.parametrize(
    ("tiering", "block"),
    [
        (Tiering(TieringState.ENABLED, 0), {"enabled": True}),
        (
            Tiering(TieringState.DISABLED, 1, DisablePolicy.DELETE),
            {"enabled": False, "disablePolicy": "Delete"},
        ),
    ],
    ids=["enabled", "disabled"],
)
def test_spec_from_kafka_config_is_lossless(tiering: Tiering, block: dict[str, object]) -> None:
    """A restored topic must get the configuration that it had before."""
    config = {
        "local.retention.bytes": "1048576",
        "local.retention.ms": "1500",
        "remote.storage.enable": str(block["enabled"]).lower(),
        "retention.ms": "-1",
        "tidemark.remote.copy.max.lag.bytes": "67108864",
        "tidemark.remote.copy.max.lag.ms": "10000",
        "tidemark.remote.copy.paused": "true",
    }
    # A key that this version does not support any more is dropped.
    made = spec_of_kafka_config({**config, "no.longer.there": "1"}, tiering)
    local = {"time": "1500ms", "size": "1048576"}
    lag = {"time": "10000ms", "size": "67108864"}
    assert made == {
        "tiering": {**block, "localRetention": local, "maxLag": lag, "paused": True},
        "config": {"retention.ms": "-1"},
    }
    counts = {"partitions": 1, "replicationFactor": 1, "clusterRef": {"name": "c"}}
    assert kafka_config(TopicSpec.model_validate({**counts, **made})) == config


def _spec(**fields: Any) -> TopicSpec:
    body = {"clusterRef": {"name": "demo"}, "partitions": 1, "replicationFactor": 1, **fields}
    return TopicSpec.model_validate(body)


def test_spec_overrides_cluster_defaults() -> None:
    spec = _spec(
        config={"retention.ms": "5000", "segment.bytes": 1048576},
        tiering={"enabled": True, "localRetention": {"time": "1s", "size": "1Mi"}},
    )
    # Defaults have the names of broker keys, where these differ.
    defaults = topic_defaults(
        {
            "log.retention.ms": "9000",
            "log.local.retention.ms": "8000",
            "log.roll.ms": "7000",
            "tidemark.remote.copy.max.lag.ms": "10000",
        }
    )
    # The fields and spec.config win; other defaults stay.
    assert kafka_config(spec, defaults) == {
        "local.retention.bytes": "1048576",
        "local.retention.ms": "1000",
        "remote.storage.enable": "true",
        "retention.ms": "5000",
        "segment.bytes": "1048576",
        "segment.ms": "7000",
        "tidemark.remote.copy.max.lag.ms": "10000",
    }


@pytest.mark.parametrize("tiering", [None, {"enabled": False, "disablePolicy": "Delete"}])
def test_untiered_topic_disables_remote_storage(tiering: dict[str, Any] | None) -> None:
    assert kafka_config(_spec(tiering=tiering)) == {"remote.storage.enable": "false"}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, None),
        ({"local.retention.ms": "1000"}, None),
        # One millisecond above Kafka's default retention of seven days.
        ({"local.retention.ms": "604800001"}, "local.retention.ms 604800001 exceeds"),
        ({"local.retention.ms": "604800001", "retention.ms": "-1"}, None),
        ({"local.retention.bytes": "10"}, None),
        ({"local.retention.bytes": "10", "retention.bytes": "9"}, "exceeds retention.bytes 9"),
        ({"local.retention.bytes": "-2", "retention.bytes": "9"}, None),
    ],
)
def test_local_retention_must_not_exceed_total_retention(
    config: dict[str, str], problem: str | None
) -> None:
    found = retention_problem(config)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, None),
        # Kafka's rules (KIP-1241): at most the local retention, which may follow the total one.
        ({"lag.ms": "604800000"}, None),
        ({"lag.ms": "604800001"}, "local retention of 604800000 (local.retention.ms)"),
        ({"lag.ms": "604800001", "retention.ms": "-1"}, None),
        ({"lag.ms": "11", "local.retention.ms": "10"}, "exceeds the local retention of 10"),
        ({"lag.ms": "-1", "local.retention.ms": "10"}, None),
        ({"lag.bytes": "10", "retention.bytes": "9"}, "exceeds the local retention of 9"),
        # A quarter of the maximum lag.
        ({"lag.ms": "2500", "max.lag.ms": "10000"}, None),
        (
            {"lag.ms": "2501", "max.lag.ms": "10000"},
            "ms 2501 delays copies for more than a quarter",
        ),
        ({"lag.ms": "-1", "max.lag.ms": "10000"}, "spec.tiering.maxLag.time"),
        ({"lag.ms": "-1", "retention.ms": "-1", "max.lag.ms": "9000"}, "without a limit delays"),
        ({"lag.ms": "2501", "lag.bytes": "0", "max.lag.ms": "10000"}, None),
        ({"lag.ms": "1", "lag.bytes": "1048577", "max.lag.bytes": "4194304"}, "maxLag.size"),
        ({"lag.ms": "0", "lag.bytes": "1048577", "max.lag.bytes": "4194304"}, None),
        ({"lag.ms": "1", "lag.bytes": "1048576", "max.lag.bytes": "4194304"}, None),
        # Without bytes the delay has no limit in bytes.
        ({"lag.ms": "1", "max.lag.bytes": "4194304"}, "remote.copy.lag.bytes without a limit"),
    ],
)
def test_delay_of_copies_must_fit_local_retention_and_maximum_lag(
    config: dict[str, str], problem: str | None
) -> None:
    prefixes = {"lag": "remote.copy.", "max": "tidemark.remote.copy."}
    found = copy_lag_problem(
        {prefixes.get(name.partition(".")[0], "") + name: value for name, value in config.items()}
    )
    assert found is None if problem is None else problem in (found or "")
