"""External Services of brokers, and the addresses that they provide.

There is one Service for each broker and external listener, and one for each such listener that
leads to any broker. A Service carries a digest of its desired state. Without it, a field that is
later left out could not be told apart from one that an API server has added.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping

from tidemark_operator.controller.state.model import ServiceAddress
from tidemark_operator.pods.identity import (
    Json,
    PodBroker,
    cluster_labels,
    cluster_selector,
    manifest_head,
    owner_reference,
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
class DesiredService:
    """Desired Service, with the settings that determine the address for clients."""

    manifest: Json
    external: ExternalListener
    own: ExternalBroker | ExternalBootstrap

    @property
    def name(self) -> str:
        """Name of the Service."""
        return str(self.manifest["metadata"]["name"])


def broker_services(pod: BrokerPod, broker: PodBroker) -> dict[str, DesiredService]:
    """Return the Services for the external listeners of one broker, by listener name."""
    found = {}
    for listener, external in _external(pod):
        own = external.of_broker(broker.node_id)
        name = f"{broker.name}-{listener.name.lower()}"
        labels = {**broker.labels, LISTENER_LABEL: listener.name}
        head = manifest_head("v1", "Service", name, broker.namespace, labels, broker.owner)
        spec = _spec(listener, external, own, broker.selector)
        # The bootstrap Services have no such field.
        if external.external_traffic_policy is not None:
            spec["externalTrafficPolicy"] = str(external.external_traffic_policy)
        found[listener.name] = _desired_service(head, spec, external, own)
    return found


def bootstrap_services(
    name: str, namespace: str, uid: str, pods: Iterable[BrokerPod]
) -> dict[str, DesiredService]:
    """Return the bootstrap Services of a Cluster, by listener name.

    If brokers have different settings for a listener, those of the last one apply.
    """
    found = {}
    for listener, external in (pair for pod in pods for pair in _external(pod)):
        # Settings for the bootstrap Service: node port, host and annotations.
        own = external.of_bootstrap()
        service = f"{name}-{listener.name.lower()}-bootstrap"
        labels = {**cluster_labels(name), LISTENER_LABEL: listener.name}
        owner = owner_reference("Cluster", name, uid)
        head = manifest_head("v1", "Service", service, namespace, labels, owner)
        spec = _spec(listener, external, own, cluster_selector(name))
        found[listener.name] = _desired_service(head, spec, external, own)
    return found


def selector_of(cluster: str, broker: str) -> str:
    """Return the selector of a broker's Services, "" for those that lead to any broker."""
    whose_ = f"{BROKER_LABEL}={broker}" if broker else f"!{BROKER_LABEL}"
    return f"{selector_of_cluster(cluster)},{whose_}"


def selector_of_cluster(cluster: str) -> str:
    """Return the selector of all external Services of a cluster."""
    return f"{CLUSTER_LABEL}={cluster},{LISTENER_LABEL}"


def _external(pod: BrokerPod) -> list[tuple[PodListener, ExternalListener]]:
    return [
        (listener, listener.external) for listener in pod.listeners if listener.external is not None
    ]


def _spec(
    listener: PodListener,
    external: ExternalListener,
    own: ExternalBroker | ExternalBootstrap,
    selector: Mapping[str, str],
) -> Json:
    """Return the spec of a Service for one external listener.

    ``own``: settings of one broker, or of the bootstrap Service. ``selector``: labels of the pods.
    """
    port: Json = {
        "name": port_name(listener),
        "port": listener.port,
        "targetPort": port_name(listener),
        "protocol": "TCP",
    }
    # Unset fields are left out, so that the API server's choice stays.
    if own.node_port is not None:
        port["nodePort"] = own.node_port
    spec: Json = {"type": str(external.type), "selector": dict(selector), "ports": [port]}
    if external.load_balancer_class is not None:
        spec["loadBalancerClass"] = external.load_balancer_class
    if external.load_balancer_source_ranges:
        spec["loadBalancerSourceRanges"] = list(external.load_balancer_source_ranges)
    return spec


def _desired_service(
    head: Json, spec: Json, external: ExternalListener, own: ExternalBroker | ExternalBootstrap
) -> DesiredService:
    """Return a Service with the digest of its manifest."""
    annotations = dict(own.annotations)
    manifest = {**head, "metadata": {**head["metadata"], "annotations": annotations}, "spec": spec}
    text = json.dumps(manifest, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    annotations[CONFIG_DIGEST_ANNOTATION] = digest
    return DesiredService(manifest=manifest, external=external, own=own)


# ---------------------------------------------------------------- present Services


def is_of(live: Json, uid: str) -> bool:
    """Return whether a Service was made for the object of this uid."""
    return uid in owners((live,))


def owners(services: Iterable[Json]) -> frozenset[str]:
    """Return the uids of the Services' owners."""
    return frozenset(
        str(reference["uid"])
        for service in services
        for reference in service["metadata"].get("ownerReferences") or ()
    )


def matches_manifest(live: Json, manifest: Json) -> bool:
    """Return whether a Service has its desired state.

    It was applied like this, and was not changed since. A selector is compared exactly: one more
    label would make it select nothing.
    """
    meta, spec = manifest["metadata"], manifest["spec"]
    is_aimed = live["spec"].get("selector") == spec["selector"]
    return is_aimed and _covers(live["metadata"], meta) and _covers(live["spec"], spec)


def _covers(live: object, desired: object) -> bool:
    """Return whether everything desired is there; fields that an API server adds are ignored."""
    if isinstance(desired, dict):
        return isinstance(live, dict) and all(
            name in live and _covers(live[name], value) for name, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(live, list)
            and len(live) == len(desired)
            and all(_covers(*pair) for pair in zip(live, desired, strict=True))
        )
    return live == desired


def service_address(service: DesiredService, live: Json) -> ServiceAddress:
    """Return the address that a Service provides to clients, or why it provides none yet.

    ``live`` is the Service as the API server has it.
    """
    own, external = service.own, service.external
    if external.type is ExternalType.NODE_PORT:
        port = own.port or _node_port(live)
        # The API server or the load balancer assigns the address some time after the creation.
        if not port:
            return ServiceAddress(problem=f"Service {service.name} has no nodePort yet")
        by_external_ip = external.node_address is NodeAddress.EXTERNAL_IP and not own.host
        return ServiceAddress(host=own.host or "", port=port, by_external_ip=by_external_ip)
    host = own.host or _ingress(live)
    if not host:
        return ServiceAddress(
            problem="the load balancer has not assigned an address to Service "
            f"{service.name} yet. See kubectl describe service {service.name}"
        )
    return ServiceAddress(host=host, port=own.port or _port(live))


def _port(live: Json) -> int:
    return next((int(port["port"]) for port in live["spec"].get("ports") or ()), 0)


def _node_port(live: Json) -> int:
    return next((int(port.get("nodePort") or 0) for port in live["spec"].get("ports") or ()), 0)


def _ingress(live: Json) -> str:
    """Return the first ingress's name, or else its address: a certificate contains the name."""
    balancer = (live.get("status") or {}).get("loadBalancer") or {}
    for ingress in balancer.get("ingress") or ():
        host = ingress.get("hostname") or ingress.get("ip")
        if host:
            return str(host)
    return ""


def external_ips(nodes: Iterable[Json]) -> dict[str, str]:
    """Return each Node's ExternalIP by its InternalIPs; without one, the InternalIP itself."""
    found: dict[str, str] = {}
    for node in nodes:
        addresses = (node.get("status") or {}).get("addresses") or ()
        by_type: dict[str, list[str]] = {}
        for address in addresses:
            by_type.setdefault(str(address["type"]), []).append(str(address["address"]))
        outside = by_type.get("ExternalIP") or [""]
        found |= {inside: outside[0] or inside for inside in by_type.get("InternalIP", ())}
    return found
