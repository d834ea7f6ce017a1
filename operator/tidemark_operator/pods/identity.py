"""Names and labels that the objects of a broker in a pod share.

Labels are Kubernetes' recommended ones. Labels that select pods never change, because a
StatefulSet's selector cannot.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tidemark_operator.resources.broker import Broker
from tidemark_operator.resources.names import (
    API_VERSION,
    BROKER_LABEL,
    CLUSTER_LABEL,
    MANAGED_BY_LABEL,
    OPERATOR,
    ROLE_LABEL,
    BrokerRole,
)

#: Part of a manifest, as JSON.
Json = dict[str, Any]

#: Field manager of the operator's own fields in server-side apply.
MANAGER = "tidemark-operator-pods"
#: Components in the labels of objects.
BROKER, EXPORT, EXECUTOR = "broker", "export", "executor"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodBroker:
    """A Broker in a pod. ``controllers``: the operators' addresses, comma-separated.

    ``is_reader``: it has no replicas, and therefore no volume.
    """

    name: str
    namespace: str
    uid: str
    node_id: int
    rack: str | None
    cluster: str
    controllers: str
    is_reader: bool = False

    @property
    def selector(self) -> dict[str, str]:
        """Labels of its pod, and of no other."""
        return {**cluster_selector(self.cluster), BROKER_LABEL: self.name}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object that is kept for it."""
        role = {ROLE_LABEL: BrokerRole.READER.value} if self.is_reader else {}
        return {**cluster_labels(self.cluster), BROKER_LABEL: self.name, **role}

    @property
    def host(self) -> str:
        """Host name of its own Service, for clients and other brokers."""
        return f"{self.name}.{self.namespace}.svc"

    @property
    def claim(self) -> str:
        """Name of its volume's claim."""
        return f"data-{self.name}-0"

    @property
    def certificate(self) -> str:
        """Name of the Secret with its certificate, which the operator manages."""
        return f"{self.name}-tls"

    @property
    def owner(self) -> Json:
        """Owner reference of dependent objects, which are deleted after the drained Broker."""
        return owner_reference("Broker", self.name, self.uid)


def identity_of(broker: Broker, controllers: str) -> PodBroker:
    """Return the identity of a Broker from the API server."""
    return PodBroker(
        name=broker.metadata.name,
        namespace=broker.metadata.namespace,
        uid=str(broker.metadata.uid),
        node_id=broker.spec.node_id,
        rack=broker.spec.rack,
        cluster=broker.spec.cluster_ref.name,
        controllers=controllers,
        is_reader=broker.spec.role is BrokerRole.READER,
    )


def manifest_head(
    api_version: str,
    kind: str,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    owner: Json | None = None,
) -> Json:
    """Return a manifest's kind and metadata; Kubernetes deletes the object with its owner."""
    owners = {} if owner is None else {"ownerReferences": [owner]}
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels), **owners}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def owner_reference(kind: str, name: str, uid: str) -> Json:
    """Return an entry of ``ownerReferences``."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
    }


def cluster_selector(cluster: str, component: str = BROKER) -> dict[str, str]:
    """Return the labels of the pods of all brokers, or of all exports, of a cluster."""
    name = f"tidemark-{component}"
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": cluster}


def cluster_labels(cluster: str, component: str = BROKER) -> dict[str, str]:
    """Return the labels of objects that are kept for the brokers, or the exports, of a cluster."""
    return {
        **cluster_selector(cluster, component),
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "tidemark",
        MANAGED_BY_LABEL: OPERATOR,
        CLUSTER_LABEL: cluster,
    }
