"""Listeners and authorization of Strimzi's ``Kafka`` objects as values of the Helm chart.

Brokers of a Tidemark cluster are new, so their values are an example to edit, not a manifest to
apply. What has no equivalent becomes a remark.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_cli.imports.documents import Document
from tidemark_cli.imports.strimzi import field_map, supported_metadata
from tidemark_cli.imports.topics import NotImported
from tidemark_operator.resources.broker_pod import METRICS_PORT, REPLICATION_PORT
from tidemark_operator.resources.external_listener import NODE_ID, ExternalType, NodeAddress

#: As the schema of a listener allows.
_NAME_LENGTH_MAX = 13
_EXTERNAL_TYPES = {
    "nodeport": ExternalType.NODE_PORT,
    "loadbalancer": ExternalType.LOAD_BALANCER,
}
_INTERNAL_TYPES = ("internal", "cluster-ip")
#: Fields of ``configuration`` of an external listener, with the names that they have here.
_EXTERNAL_FIELDS = {
    "loadBalancerSourceRanges": "loadBalancerSourceRanges",
    "externalTrafficPolicy": "externalTrafficPolicy",
    "class": "loadBalancerClass",
    "advertisedHostTemplate": "host",
}
#: SASL mechanism of a listener's authentication; "" for those without SASL.
_MECHANISMS = {None: "", "tls": "", "scram-sha-512": "SCRAM-SHA-512", "oauth": "OAUTHBEARER"}


@dataclass(frozen=True, slots=True)
class EquivalentValues:
    """Values of the chart for a Kafka object, with remarks about what they do not contain."""

    source: str
    values: dict[str, Any]
    remarks: tuple[str, ...]


def equivalent_values(document: Document) -> EquivalentValues:
    """Return the chart's values with the listeners and the authorization of a Kafka object.

    Raises :class:`NotImported`.
    """
    supported_metadata(document)
    kafka = field_map(field_map(document.body, "spec"), "kafka", "spec.")
    given = kafka.get("listeners")
    if not isinstance(given, list) or not all(isinstance(item, Mapping) for item in given):
        raise NotImported("its listeners are not a list")
    # null removes the chart's default listener, unless one of Strimzi's has its name.
    listeners: dict[str, Any] = {"PLAINTEXT": None}
    config: dict[str, str] = {}
    remarks: list[str] = []
    for item in given:
        try:
            name, listener, entries, said = _listener(item)
        except NotImported as error:
            said = [f"left out: {error}"]
        else:
            listeners[name] = listener
            config |= entries
        remarks += (f"listener {item.get('name')}: {remark}" for remark in said)
    pods: dict[str, Any] = {"listeners": listeners}
    pods |= _free_ports({item["port"] for item in listeners.values() if item})
    if config:
        pods["config"] = config
    values: dict[str, Any] = {"brokerPods": pods}
    authorization = field_map(kafka, "authorization")
    if authorization.get("type") == "simple":
        values["cluster"] = {"spec": {"authorization": _authorization(authorization)}}
    elif authorization:
        remarks.append(
            f"authorization {authorization.get('type')} has no equivalent: declare ACLs in Users"
        )
    return EquivalentValues(document.source, values, tuple(remarks))


def _listener(
    item: Mapping[str, Any],
) -> tuple[str, dict[str, Any], dict[str, str], list[str]]:
    """Return name, values, configuration and remarks of a listener.

    Raises :class:`NotImported` if it has no equivalent.
    """
    name, port, type_ = _name(item), item.get("port"), item.get("type")
    if not isinstance(port, int) or isinstance(port, bool):
        raise NotImported(f"port {port!r} is not an integer")
    external_type = _EXTERNAL_TYPES.get(str(type_))
    if external_type is None and type_ not in _INTERNAL_TYPES:
        raise NotImported(
            f"type {type_} has no equivalent. Use external.type LoadBalancer, or a TLS passthrough "
            "of your own that leads to each broker's Service under external.host"
        )
    kind = field_map(item, "authentication").get("type")
    if kind not in _MECHANISMS:
        raise NotImported(
            f"authentication {kind} has no equivalent. Use SCRAM, PLAIN, tokens or certificates"
        )
    configuration = field_map(item, "configuration")
    remarks: list[str] = []

    # Protocol, certificate and clients' credentials.
    mechanism, has_tls = _MECHANISMS[kind], item.get("tls") is True
    protocol = f"{'SASL_' if mechanism else ''}{'SSL' if has_tls else 'PLAINTEXT'}"
    listener: dict[str, Any] = {"port": port, "protocol": protocol}
    prefix = f"listener.name.{name.lower()}."
    entries: dict[str, str] = {}
    if has_tls:
        listener["tlsSecret"], remark = _certificate(item, configuration)
        remarks.append(remark)
    if kind == "tls":
        entries[f"{prefix}ssl.client.auth"] = "required"
        remarks.append("ca.crt of its Secret has to contain the authorities of the clients")
    if mechanism:
        entries[f"{prefix}sasl.enabled.mechanisms"] = mechanism
    if kind == "oauth":
        remarks.append(
            "set sasl.oauthbearer.jwks.endpoint.url (jwksEndpointUri) and "
            "sasl.oauthbearer.expected.issuer (validIssuerUri) in brokerPods.config"
        )

    # Access from outside Kubernetes.
    left_out = set(configuration) - {"brokerCertChainAndKey"}
    if external_type is not None:
        listener["external"], converted = _external(external_type, configuration)
        left_out -= converted
    if "brokers" in left_out:
        remarks.append(
            "configuration.brokers is left out, as new brokers have the node ids 1, 2, 3. Set "
            "external.brokers"
        )
    others = sorted(left_out - {"brokers"})
    if others:
        remarks.append(f"left out: {', '.join(f'configuration.{field}' for field in others)}")
    if "networkPolicyPeers" in item:
        values = "clientsFrom" if external_type is None else "externalFrom"
        remarks.append(f"networkPolicyPeers becomes networkPolicy.{values} of the chart")
    return name, listener, entries, remarks


def _name(listener: Mapping[str, Any]) -> str:
    """Return the name of a listener, in the capitals that Tidemark requires."""
    name = str(listener.get("name", "")).upper()
    if not re.fullmatch("[A-Z0-9]+", name):
        raise NotImported(f"the name {listener.get('name')!r} is not supported")
    return (name if name[0].isalpha() else f"L{name}")[:_NAME_LENGTH_MAX]


def _certificate(item: Mapping[str, Any], configuration: Mapping[str, Any]) -> tuple[str, str]:
    """Return the Secret with a listener's certificate, and what to do for it."""
    own = configuration.get("brokerCertChainAndKey")
    secret = own.get("secretName") if isinstance(own, Mapping) else None
    if not secret:
        secret = f"{item.get('name')}-listener"
        return secret, (
            f"Strimzi's cluster CA issued its certificate. Create the Secret {secret} with tls.crt "
            "and tls.key for the new brokers' names"
        )
    return str(secret), (
        f"create the Secret {secret} with tls.crt and tls.key. The certificate has to include the "
        "new brokers' names"
    )


def _external(
    type_: ExternalType, configuration: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """Return how a listener is reached from outside Kubernetes, and the fields that it includes."""
    external: dict[str, Any] = {"type": str(type_)}
    converted = set()
    for field, ours in _EXTERNAL_FIELDS.items():
        value = configuration.get(field)
        fits = type_ is ExternalType.LOAD_BALANCER or not ours.startswith("loadBalancer")
        # Strimzi's other variable is the name of a pod, which is another one here.
        if value is not None and fits and (ours != "host" or _is_host_template(str(value))):
            external[ours] = value
            converted.add(field)
    address = configuration.get("preferredNodePortAddressType")
    if address in list(NodeAddress) and type_ is ExternalType.NODE_PORT:
        external["nodeAddress"] = address
        converted.add("preferredNodePortAddressType")
    bootstrap = configuration.get("bootstrap")
    if isinstance(bootstrap, Mapping) and set(bootstrap) <= {"nodePort", "annotations"}:
        external["bootstrap"] = dict(bootstrap)
        converted.add("bootstrap")
    return external, converted


def _is_host_template(value: str) -> bool:
    return NODE_ID in value and "{" not in value.replace(NODE_ID, "")


def _free_ports(taken: set[int]) -> dict[str, int]:
    """Return other ports for brokers' own listeners where the defaults are taken by clients."""
    found: dict[str, int] = {}
    for field, default in (("replicationPort", REPLICATION_PORT), ("metricsPort", METRICS_PORT)):
        if default in taken:
            free = next(port for port in range(default + 1, 65536) if port not in taken)
            found[field] = free
            taken = taken | {free}
    return found


def _authorization(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the authorization of a Cluster."""
    users = given.get("superUsers")
    named = {"superUsers": [str(user) for user in users]} if isinstance(users, list) else {}
    return {"type": "simple", **named}
