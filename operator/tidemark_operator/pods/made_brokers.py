"""Broker objects that the operator creates for a Cluster's ``spec.brokers``.

They are recognized by their labels and have no owner: a recreated Cluster finds its brokers.
"""

from collections.abc import Mapping
from typing import Any

from tidemark_operator.controller.scaling import PlannedBroker
from tidemark_operator.pods.identity import Json, cluster_labels
from tidemark_operator.resources.names import (
    API_VERSION,
    CLUSTER_LABEL,
    MANAGED_BY_LABEL,
    OPERATOR,
    SCALING_DOWN_ANNOTATION,
)


def is_made(body: Mapping[str, Any], cluster: str) -> bool:
    """Return whether the operator has created this Broker for a Cluster of that name."""
    labels = body["metadata"].get("labels") or {}
    return labels.get(MANAGED_BY_LABEL) == OPERATOR and labels.get(CLUSTER_LABEL) == cluster


def broker_manifest(placed: PlannedBroker, template: Json, cluster: str, namespace: str) -> Json:
    """Return the Broker object of a planned broker; ``template`` is ``spec.brokers.template``."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {
            "name": placed.name,
            "namespace": namespace,
            "labels": cluster_labels(cluster),
            "annotations": {SCALING_DOWN_ANNOTATION: "true"} if placed.leaving else {},
        },
        "spec": {
            "clusterRef": {"name": cluster},
            "nodeId": placed.node_id,
            "workload": "Pod",
            "pod": template,
            **({"rack": placed.rack} if placed.rack is not None else {}),
            **({"drain": True} if placed.leaving else {}),
        },
    }


def matches_manifest(body: Mapping[str, Any], manifest: Json) -> bool:
    """Return whether a Broker has its desired state; other fields (a drain) belong to other
    writers.
    """
    annotations = body["metadata"].get("annotations") or {}
    is_leaving = SCALING_DOWN_ANNOTATION in annotations
    # A drain of a scale-down has our annotation; one without it is a person's decision.
    return is_leaving == bool(manifest["metadata"]["annotations"]) and all(
        body["spec"].get(name) == value for name, value in manifest["spec"].items()
    )
