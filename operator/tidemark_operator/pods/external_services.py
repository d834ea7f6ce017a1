"""The Services that lead to brokers from outside the Kubernetes cluster: one for each broker and
external listener, one for each such listener that leads to any of them; and what the API server
says of where they lead from.

A Service carries a digest of what is wanted of it, or a field that is left out later could not be
told from one that an API server has added.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping

from tidemark_operator.controller.external_addresses import WayIn
from tidemark_operator.pods.identity import (
    Json,
    PodBroker,
    cluster_labels,
    cluster_selector,
    owner,
)
from tidemark_operator.pods.template import port_name
from tidemark_operator.resources.broker_pod import BrokerPod, PodListener
from tidemark_operator.resources.external_listener import (
    ExternalBootstrap,
    ExternalBroker,
    ExternalListener,
    ExternalType,
    NodeAddress,
)
from tidemark_operator.resources.names import (
    BROKER_LABEL,
    CLUSTER_LABEL,
    CONFIG_DIGEST_ANNOTATION,
    LISTENER_LABEL,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A Service as it is applied, and what of it clients are told otherwise."""

    manifest: Json
    external: ExternalListener
    own: ExternalBroker | ExternalBootstrap

    @property
    def name(self) -> str:
        """Of the Service."""
        return str(self.manifest["metadata"]["name"])


def broker_services(pod: BrokerPod, broker: PodBroker) -> dict[str, Wanted]:
    """Of one broker, by listener."""
    found = {}
    for listener, external in _external(pod):
        own = external.of_broker(broker.node_id)
        manifest = _service(
            f"{broker.name}-{listener.name.lower()}",
            broker.namespace,
            labels={**broker.labels, LISTENER_LABEL: listener.name},
            owner_=broker.owner,
            spec=_spec(listener, external, own, broker.selector),
            annotations=own.annotations,
        )
        if external.external_traffic_policy is not None:
            manifest["spec"]["externalTrafficPolicy"] = str(external.external_traffic_policy)
        found[listener.name] = _wanted(manifest, external, own)
    return found


def bootstrap_services(
    name: str, namespace: str, uid: str, pods: Iterable[BrokerPod]
) -> dict[str, Wanted]:
    """Of all brokers of a Cluster, by listener; where brokers differ, as the last one says."""
    found = {}
    for listener, external in (each for pod in pods for each in _external(pod)):
        own = external.of_bootstrap()
        manifest = _service(
            f"{name}-{listener.name.lower()}-bootstrap",
            namespace,
            labels={**cluster_labels(name), LISTENER_LABEL: listener.name},
            owner_=owner("Cluster", name, uid),
            spec=_spec(listener, external, own, cluster_selector(name)),
            annotations=own.annotations,
        )
        found[listener.name] = _wanted(manifest, external, own)
    return found


def selector_of(cluster: str, broker: str) -> str:
    """By which the Services of a broker's listeners are found; "": those that lead to any."""
    whose_ = f"{BROKER_LABEL}={broker}" if broker else f"!{BROKER_LABEL}"
    return f"{selector_of_cluster(cluster)},{whose_}"


def selector_of_cluster(cluster: str) -> str:
    """By which all of them are found."""
    return f"{CLUSTER_LABEL}={cluster},{LISTENER_LABEL}"


def _external(pod: BrokerPod) -> list[tuple[PodListener, ExternalListener]]:
    return [(each, each.external) for each in pod.listeners if each.external is not None]


def _spec(
    listener: PodListener,
    external: ExternalListener,
    own: ExternalBroker | ExternalBootstrap,
    selector: Mapping[str, str],
) -> Json:
    port: Json = {
        "name": port_name(listener),
        "port": listener.port,
        "targetPort": port_name(listener),
        "protocol": "TCP",
    }
    if own.node_port is not None:
        port["nodePort"] = own.node_port
    spec: Json = {"type": str(external.type), "selector": dict(selector), "ports": [port]}
    if external.load_balancer_class is not None:
        spec["loadBalancerClass"] = external.load_balancer_class
    if external.load_balancer_source_ranges:
        spec["loadBalancerSourceRanges"] = list(external.load_balancer_source_ranges)
    return spec


def _service(
    name: str,
    namespace: str,
    *,
    labels: Mapping[str, str],
    owner_: Json,
    spec: Json,
    annotations: Mapping[str, str],
) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels),
            "annotations": dict(annotations),
            "ownerReferences": [owner_],
        },
        "spec": spec,
    }


def _wanted(
    manifest: Json,
    external: ExternalListener,
    own: ExternalBroker | ExternalBootstrap,
) -> Wanted:
    text = json.dumps(manifest, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    manifest["metadata"]["annotations"][CONFIG_DIGEST_ANNOTATION] = digest
    return Wanted(manifest=manifest, external=external, own=own)


# ---------------------------------------------------------------- what is there


def is_of(live: Json, uid: str) -> bool:
    """Whether a Service was made for the object of this uid."""
    return uid in owners((live,))


def owners(services: Iterable[Json]) -> frozenset[str]:
    """The uids of those for whom Services were made."""
    return frozenset(
        str(reference["uid"])
        for each in services
        for reference in each["metadata"].get("ownerReferences") or ()
    )


def is_as_wanted(live: Json, manifest: Json) -> bool:
    """Whether a Service need not be written: it was applied like this, and nobody has changed it
    since. One more label in a selector has it lead to nobody."""
    meta, spec = manifest["metadata"], manifest["spec"]
    is_aimed = live["spec"].get("selector") == spec["selector"]
    return is_aimed and _covers(live["metadata"], meta) and _covers(live["spec"], spec)


def _covers(live: object, wanted: object) -> bool:
    """Everything that is wanted is there; what an API server adds counts for nothing."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            name in live and _covers(live[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(_covers(*pair) for pair in zip(live, wanted, strict=True))
        )
    return live == wanted


def way_in(wanted: Wanted, live: Json) -> WayIn:
    """Where a Service as the API server has it leads from."""
    own, external = wanted.own, wanted.external
    if external.type is ExternalType.NODE_PORT:
        port = own.port or _node_port(live)
        if not port:
            return WayIn(problem=f"Service {wanted.name} has no nodePort yet")
        by_external_ip = external.node_address is NodeAddress.EXTERNAL_IP and not own.host
        return WayIn(host=own.host or "", port=port, by_external_ip=by_external_ip)
    host = own.host or _ingress(live)
    if not host:
        return WayIn(
            problem="the load balancer has not assigned an address to Service "
            f"{wanted.name} yet. See kubectl describe service {wanted.name}"
        )
    return WayIn(host=host, port=own.port or _port(live))


def _port(live: Json) -> int:
    return next((int(each["port"]) for each in live["spec"].get("ports") or ()), 0)


def _node_port(live: Json) -> int:
    return next((int(each.get("nodePort") or 0) for each in live["spec"].get("ports") or ()), 0)


def _ingress(live: Json) -> str:
    """The first one's name, or address: a certificate has the name, if there is one."""
    balancer = (live.get("status") or {}).get("loadBalancer") or {}
    for each in balancer.get("ingress") or ():
        host = each.get("hostname") or each.get("ip")
        if host:
            return str(host)
    return ""


def external_ips(nodes: Iterable[Json]) -> dict[str, str]:
    """By each InternalIP of a Node its ExternalIP; where it has none, that InternalIP."""
    found: dict[str, str] = {}
    for node in nodes:
        addresses = (node.get("status") or {}).get("addresses") or ()
        by_type: dict[str, list[str]] = {}
        for each in addresses:
            by_type.setdefault(str(each["type"]), []).append(str(each["address"]))
        outside = by_type.get("ExternalIP") or [""]
        found |= {inside: outside[0] or inside for inside in by_type.get("InternalIP", ())}
    return found
