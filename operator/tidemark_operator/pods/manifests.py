"""Objects that the operator keeps for a Broker in a pod, and for all brokers of a Cluster.

For a Broker: a StatefulSet with one replica, the claim of its volume, a headless Service of its
name, and its configuration. For a Cluster: a bootstrap Service, and the disruption budget that
allows the eviction of one broker at a time.

The claim is an object of its own and not a template of the StatefulSet, which could never change: a
volume grows by its claim. It has no owner, so it stays, with all data, whatever is deleted.

Pods are replaced as soon as the template changes (``RollingUpdate``). With ``Parallel``, a pod that
never became ready does not block its replacement. The writer of the template decides when that may
be (:mod:`tidemark_operator.controller.restarts`).

For ``spec.brokers`` of a Cluster: the Broker objects themselves. They are recognized by their
labels and have no owner: a recreated Cluster finds its brokers.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tidemark_operator.controller.scaling import PlannedBroker
from tidemark_operator.pods import configuration
from tidemark_operator.pods.identity import (
    Json,
    PodBroker,
    cluster_labels,
    cluster_selector,
    manifest_head,
    owner_reference,
)
from tidemark_operator.pods.template import pod_template, port_name, ports_of
from tidemark_operator.resources.broker_pod import BrokerPod
from tidemark_operator.resources.names import (
    API_VERSION,
    CLUSTER_LABEL,
    MANAGED_BY_LABEL,
    OPERATOR,
    ROLE_LABEL,
    SCALING_DOWN_ANNOTATION,
    BrokerRole,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerObjects:
    """Desired objects of a Broker in a pod; a Reader has no claim."""

    claim: Json | None
    service: Json
    config_map: Json
    stateful_set: Json


def broker_objects(pod: BrokerPod, broker: PodBroker) -> BrokerObjects:
    """Return the desired objects of one Broker."""
    return BrokerObjects(
        claim=None if broker.is_reader else _claim(pod, broker),
        service=_service(pod, broker),
        config_map={
            **_head("v1", "ConfigMap", broker),
            "data": {configuration.FILE: configuration.text(pod, broker)},
        },
        stateful_set=_stateful_set(pod, broker),
    )


def _head(api_version: str, kind: str, broker: PodBroker) -> Json:
    return manifest_head(
        api_version, kind, broker.name, broker.namespace, broker.labels, broker.owner
    )


def _claim(pod: BrokerPod, broker: PodBroker) -> Json:
    """Return the manifest of the PersistentVolumeClaim with a broker's log directory."""
    class_name = pod.storage.storage_class_name
    return {
        **manifest_head(
            "v1", "PersistentVolumeClaim", broker.claim, broker.namespace, broker.labels
        ),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            **({"storageClassName": class_name} if class_name is not None else {}),
            "resources": {"requests": {"storage": pod.storage.size}},
        },
    }


def _service(pod: BrokerPod, broker: PodBroker) -> Json:
    made = _head("v1", "Service", broker)
    made["metadata"]["labels"] = {**broker.labels, "tidemark.dev/metrics": "broker"}
    made["spec"] = {
        "clusterIP": "None",
        # Other brokers fetch from it before it is ready for clients.
        "publishNotReadyAddresses": True,
        "selector": broker.selector,
        "ports": _ports(ports_of(pod)),
    }
    return made


def _ports(numbers: dict[str, int]) -> list[Json]:
    return [
        {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
        for name, number in numbers.items()
    ]


def _stateful_set(pod: BrokerPod, broker: PodBroker) -> Json:
    return {
        **_head("apps/v1", "StatefulSet", broker),
        "spec": {
            "serviceName": broker.name,
            "replicas": 1,
            # Parallel: a pod that never became ready must not block its replacement.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "selector": {"matchLabels": broker.selector},
            "template": pod_template(pod, broker),
        },
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObjects:
    """Desired objects that the brokers in pods of one Cluster share."""

    bootstrap: Json
    budget: Json


def cluster_objects(
    name: str, namespace: str, uid: str, pods: Iterable[BrokerPod]
) -> ClusterObjects:
    """Return the bootstrap Service and the PodDisruptionBudget of a Cluster.

    ``pods``: of its brokers. The Service has one port for each listener name; if brokers have
    different numbers, the last one's applies.
    """
    ports = {port_name(listener): listener.port for pod in pods for listener in pod.listeners}
    labels, owner = cluster_labels(name), owner_reference("Cluster", name, uid)
    selector = cluster_selector(name)
    return ClusterObjects(
        bootstrap={
            **manifest_head("v1", "Service", f"{name}-bootstrap", namespace, labels, owner),
            "spec": {"selector": selector, "ports": _ports(ports)},
        },
        budget={
            **manifest_head(
                "policy/v1", "PodDisruptionBudget", f"{name}-brokers", namespace, labels, owner
            ),
            # Any number of Readers may be evicted.
            "spec": {
                "maxUnavailable": 1,
                "selector": {
                    "matchLabels": selector,
                    "matchExpressions": [{"key": ROLE_LABEL, "operator": "DoesNotExist"}],
                },
            },
        },
    )


# ------------------------------------------------------------ Broker objects


def is_made(body: Mapping[str, Any], cluster: str) -> bool:
    """Return whether the operator has created this Broker for a Cluster of that name."""
    labels = body["metadata"].get("labels") or {}
    return labels.get(MANAGED_BY_LABEL) == OPERATOR and labels.get(CLUSTER_LABEL) == cluster


def broker_manifest(placed: PlannedBroker, template: Json, cluster: str, namespace: str) -> Json:
    """Return the Broker object of a planned broker; ``template`` is its pod."""
    manifest = manifest_head(API_VERSION, "Broker", placed.name, namespace, cluster_labels(cluster))
    manifest["metadata"]["annotations"] = (
        {SCALING_DOWN_ANNOTATION: "true"} if placed.leaving else {}
    )
    manifest["spec"] = {
        "clusterRef": {"name": cluster},
        "nodeId": placed.node_id,
        "workload": "Pod",
        "pod": template,
        **({"rack": placed.rack} if placed.rack is not None else {}),
        **({"drain": True} if placed.leaving else {}),
        **({"role": BrokerRole.READER.value} if placed.is_reader else {}),
    }
    return manifest


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
