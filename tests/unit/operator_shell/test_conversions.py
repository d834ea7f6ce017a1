"""Topic objects as the core's values: the configuration that counts."""

import uuid
from typing import Any

import pytest

from tidemark.configuration.layers import effective
from tidemark_broker.log import LogConfig
from tidemark_operator.kube.kinds import Json
from tidemark_operator.objects.conversions import cluster_info, topic_info

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


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [({}, "true"), ({"tidemark.dev/sweep-paused": "true"}, "false")],
    ids=["not-paused", "paused"],
)
def test_an_annotation_of_the_cluster_pauses_sweeping(
    annotations: dict[str, str], expected: str
) -> None:
    cluster = body(annotations=annotations) | {
        "kind": "Cluster",
        "spec": {"config": {"tidemark.remote.sweep.enable": "true"}},
    }
    found = cluster_info(cluster, remote_storage="", storage_problem="")
    assert found.config == {"tidemark.remote.sweep.enable": expected}


def test_local_retention_is_compared_with_effective_total_retention() -> None:
    tiering = {"enabled": True, "localRetention": {"time": "2h"}}
    hour = {"log.retention.ms": "3600000"}
    # Two hours locally exceed one hour in total.
    assert "local.retention.ms" in topic_info(body(tiering=tiering), hour).config_problem
    assert not topic_info(body(tiering=tiering), {}).config_problem


COMPACTING = {"log.cleanup.policy": "compact"}
TIERED = {"enabled": True}


def test_a_default_of_compaction_does_not_make_a_tiered_topic_a_compacted_one() -> None:
    """Admission validates the Topic alone, without the cluster's defaults."""
    # The topic is already tiered: turning to compact would make its remote records unreadable.
    status = {"tiering": {"state": "Enabled", "epoch": 0}}
    view = topic_info(body(tiering=TIERED, status=status), COMPACTING)
    assert (view.config["cleanup.policy"], view.tiering_spec.enabled) == ("delete", True)
    assert view.config_reason == "Compacted"
    assert "log.cleanup.policy" in view.config_problem


def test_a_topic_that_a_default_compacts_is_not_tiered() -> None:
    """With delete as its policy, records expire that compaction would retain."""
    emptied = {"tiering": {"state": "Disabled", "epoch": 1, "remoteSegments": 0}}
    for status in ({}, emptied):
        view = topic_info(body(tiering=TIERED, status=status), COMPACTING)
        assert (view.config["cleanup.policy"], view.tiering_spec.enabled) == ("compact", False)
        assert view.config["remote.storage.enable"] == "false"
        assert view.config_reason == "Compacted"
    # Neither a topic without tiering nor one with its own policy has a problem.
    untiered = topic_info(body(status=emptied), COMPACTING)
    assert (untiered.config["cleanup.policy"], untiered.config_problem) == ("compact", "")
    own = topic_info(body(tiering=TIERED, config={"cleanup.policy": "delete"}), COMPACTING)
    assert (own.tiering_spec.enabled, own.config_problem) == (True, "")


def test_a_topic_that_is_not_tiered_has_no_local_retention() -> None:
    defaults = {"log.local.retention.ms": "7200000"}
    view = topic_info(body(config={"retention.ms": "1000"}), defaults)
    assert not view.config_problem


def test_a_key_that_is_no_longer_admitted_blocks_no_other() -> None:
    """Objects of earlier versions may contain such keys: brokers ignore them."""
    config = {"compression.type": "zstd", "no.such.key": "1", "retention.ms": "5"}
    found = topic_info(body(config=config), {"log.preallocate": "true"}).config
    assert LogConfig.of(effective({}, found)) == LogConfig(retention_ms=5)
