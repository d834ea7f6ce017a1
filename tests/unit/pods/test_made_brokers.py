"""Brokers created for a Cluster: their manifests, and how they are recognized."""

from typing import Any

import pytest

from tests.unit.pods.pod_values import POD
from tidemark_operator.controller.scaling import PlannedBroker
from tidemark_operator.pods.manifests import broker_manifest, is_made, matches_manifest


def manifest(*, leaving: bool = False, rack: str | None = "a") -> dict[str, Any]:
    placed = PlannedBroker(node_id=1, name="broker-1", rack=rack, leaving=leaving)
    return broker_manifest(placed, POD, "main", "ns")


def test_created_broker_is_recognized_by_its_labels() -> None:
    assert is_made(manifest(), "main")
    assert not is_made(manifest(), "other")
    assert not is_made({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}, "main")
    assert not is_made({"metadata": {}}, "main")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(manifest(), manifest(), True, id="the same"),
        pytest.param(manifest(), manifest(leaving=True), False, id="it is to go"),
        pytest.param(manifest(leaving=True), manifest(), False, id="it may stay"),
        pytest.param(manifest(leaving=True), manifest(leaving=True), True, id="it goes"),
    ],
)
def test_broker_is_written_only_for_a_change(
    before: dict[str, Any], after: dict[str, Any], expected: bool
) -> None:
    assert matches_manifest(before, after) is expected


def test_a_drain_requested_by_a_user_is_not_reverted() -> None:
    drained = manifest()
    drained["spec"]["drain"] = True
    assert matches_manifest(drained, manifest())
    changed = manifest()
    changed["spec"]["pod"] = POD | {"image": "tidemark/broker:2"}
    assert not matches_manifest(drained, changed)
