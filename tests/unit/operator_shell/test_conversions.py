"""Topic objects as the core's values: the configuration that counts."""

import uuid
from typing import Any

from tidemark.configuration.layers import effective
from tidemark_broker.log import LogConfig
from tidemark_operator.kube.kinds import Json
from tidemark_operator.objects.conversions import topic_info

PAUSED = {"tidemark.dev/paused": "true"}
HELD = {"heldConfig": {"retention.ms": "1"}}


def body(
    *, annotations: dict[str, str] | None = None, status: Json | None = None, **spec: Any
) -> Json:
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {
            "name": "t",
            "namespace": "ns",
            "uid": str(uuid.UUID(int=5)),
            "generation": 2,
            "annotations": annotations or {},
        },
        "spec": {"clusterRef": {"name": "c"}, "partitions": 1, "replicationFactor": 1} | spec,
        "status": status or {},
    }


def test_a_paused_topic_has_the_configuration_that_its_status_holds() -> None:
    config = {"retention.ms": "2"}
    assert topic_info(body(config=config, status=HELD, annotations=PAUSED), {}).config == {
        "retention.ms": "1",
    }
    assert topic_info(body(config=config, status=HELD), {}).config["retention.ms"] == "2"
    assert topic_info(body(config=config, annotations=PAUSED), {}).config["retention.ms"] == "2", (
        "nothing is known of an earlier one"
    )


def test_local_retention_is_compared_with_the_total_that_holds() -> None:
    tiering = {"enabled": True, "localRetention": {"time": "2h"}}
    hour = {"log.retention.ms": "3600000"}
    assert "local.retention.ms" in topic_info(body(tiering=tiering), hour).config_problem
    assert not topic_info(body(tiering=tiering), {}).config_problem


def test_a_topic_that_is_not_tiered_has_no_local_retention() -> None:
    defaults = {"log.local.retention.ms": "7200000"}
    view = topic_info(body(config={"retention.ms": "1000"}), defaults)
    assert not view.config_problem


def test_a_key_that_is_no_longer_admitted_hinders_nobody() -> None:
    """An object may have it from before: the operator reads it, a broker passes it over."""
    config = {"compression.type": "zstd", "no.such.key": "1", "retention.ms": "5"}
    found = topic_info(body(config=config), {"log.preallocate": "true"}).config
    assert LogConfig.of(effective({}, found)) == LogConfig(retention_ms=5)
