"""RecordDeletion of an export: it is created, awaited and replaced by the next one."""

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from tidemark.ids import id_text
from tidemark.log_lineage import ReadPosition
from tidemark_cli.tier.record_deletions import (
    ANNOTATION,
    KIND,
    RecordDeletions,
    name_of,
)
from tidemark_kube.client import KubeClient
from tidemark_operator.resources.record_deletion import RecordDeletion
from tidemark_pipeline.errors import DependencyUnavailable, ExportError

TOPIC_ID = uuid.uuid4()
ORDERS = {
    "metadata": {"name": "orders"},
    "spec": {"topicName": "Orders_v1"},
    "status": {"topicId": id_text(TOPIC_ID)},
}


class FakeNamespace(KubeClient):
    """Objects of one namespace, whose operator reports ``status`` for each deletion."""

    def __init__(self, status: str = "True") -> None:
        self.status = status
        self.stored: dict[str, dict[str, Any]] = {}
        self.specs: list[Any] = []

    def objects(self, kind: str) -> list[dict[str, Any]]:
        return [ORDERS]

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.stored.get(name)

    def apply(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        assert kind == KIND
        assert name not in self.stored, "its spec never changes"
        body = {
            "apiVersion": "tidemark.dev/v1alpha1",
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": "n",
                "uid": str(uuid.uuid4()),
                "annotations": dict(annotations or {}),
            },
            "spec": dict(spec),
        }
        # The operator must be able to read the object.
        RecordDeletion.parse(body)
        condition = {"type": "Succeeded", "status": self.status, "message": "as said"}
        self.stored[name] = {**body, "status": {"conditions": [condition]}}
        self.specs.append(spec)
        return body

    def delete(self, kind: str, name: str) -> None:
        self.stored.pop(name, None)


def test_export_has_one_object_for_all_its_deletions() -> None:
    kube = FakeNamespace()
    deletions = RecordDeletions(kube, "lake.db.orders")
    for offset in (10, 20):
        deletions.delete(
            "Orders_v1", str(TOPIC_ID), {1: ReadPosition(offset, 7), 0: ReadPosition(5)}
        )
    (body,) = kube.stored.values()
    assert body["metadata"]["name"] == name_of("orders", "lake.db.orders")
    assert body["metadata"]["annotations"] == {ANNOTATION: "lake.db.orders"}
    assert body["spec"]["partitions"] == [
        {"partition": 0, "beforeOffset": 5},
        {"partition": 1, "beforeOffset": 20, "leaderEpoch": 7},
    ]
    assert body["spec"]["topicRef"] == {"name": "orders"}
    assert body["spec"]["topicId"] == id_text(TOPIC_ID)


def test_more_partitions_than_an_object_may_name_are_deleted_in_turn() -> None:
    kube = FakeNamespace()
    RecordDeletions(kube, "t").delete(
        "Orders_v1", str(TOPIC_ID), dict.fromkeys(range(1500), ReadPosition(3))
    )
    # An object names 1,024 partitions at most.
    assert [len(spec["partitions"]) for spec in kube.specs] == [1024, 476]
    assert len(kube.stored) == 1


@pytest.mark.parametrize("given", [("Orders_v1", str(uuid.uuid4())), ("Orders_v1", ""), ("x", "")])
def test_a_recreated_topic_is_left_alone(given: tuple[str, str]) -> None:
    kube = FakeNamespace()
    with pytest.raises(ExportError, match="no record is deleted"):
        RecordDeletions(kube, "t").delete(*given, {0: ReadPosition(1)})
    assert kube.stored == {}


def test_an_object_of_another_owner_is_left_alone() -> None:
    kube = FakeNamespace()
    name = name_of("orders", "t")
    kube.stored[name] = {"metadata": {"name": name, "uid": "x"}}
    with pytest.raises(ExportError, match="does not belong to this export"):
        RecordDeletions(kube, "t").delete("Orders_v1", str(TOPIC_ID), {0: ReadPosition(1)})
    assert kube.specs == []


def test_failed_or_slow_deletion_is_reported() -> None:
    """A deletion that does not end is not awaited forever."""
    with pytest.raises(DependencyUnavailable, match="as said"):
        RecordDeletions(FakeNamespace("False"), "t").delete(
            "Orders_v1", str(TOPIC_ID), {0: ReadPosition(1)}
        )
    with pytest.raises(DependencyUnavailable, match="is not done yet: as said"):
        RecordDeletions(FakeNamespace("Unknown"), "t", timeout_s=0).delete(
            "Orders_v1", str(TOPIC_ID), {0: ReadPosition(1)}
        )


def test_names_are_valid_and_different() -> None:
    # Kubernetes allows names of 253 characters.
    assert len(name_of("t" * 253, "t")) <= 253
    assert name_of("orders", "a") != name_of("orders", "b")
