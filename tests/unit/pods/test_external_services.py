"""Services of a listener for clients outside, and the addresses that result from them."""

import dataclasses
from typing import Any

import pytest

from tests.unit.pods.pod_values import BROKER, pod
from tidemark_broker.listeners import ListenerAddress, addresses_of
from tidemark_operator.controller.state.model import ServiceAddress
from tidemark_operator.pods import configuration
from tidemark_operator.pods.external_services import (
    DesiredService,
    bootstrap_services,
    broker_services,
    external_ips,
    matches_manifest,
    service_address,
)
from tidemark_operator.pods.manifests import broker_objects
from tidemark_operator.resources.broker_pod import BrokerPod

PLAIN = {"name": "PLAINTEXT", "port": 9092, "protocol": "PLAINTEXT"}


def outside(type_: str = "NodePort", **fields: Any) -> BrokerPod:
    """Return a pod with a listener inside and one outside."""
    external = {"type": type_} | fields
    listener = {"name": "EXTERNAL", "port": 9095, "protocol": "PLAINTEXT", "external": external}
    return pod(listeners=[PLAIN, listener])


def service_of(type_: str = "NodePort", **fields: Any) -> DesiredService:
    return broker_services(outside(type_, **fields), BROKER)["EXTERNAL"]


def live(of: DesiredService, *, node_port: int = 31001, ingress: Any = None) -> dict[str, Any]:
    """Return a Service as an API server stores it."""
    manifest = of.manifest
    ports = [{"nodePort": node_port, **item} for item in manifest["spec"]["ports"]]
    spec = {**manifest["spec"], "ports": ports, "clusterIP": "10.96.0.7", "sessionAffinity": "None"}
    status = {"loadBalancer": {"ingress": ingress} if ingress else {}}
    return {**manifest, "spec": spec, "status": status}


def test_a_service_leads_to_one_broker_and_one_to_any() -> None:
    made = objects = broker_objects(outside(), BROKER).stateful_set["spec"]["template"]
    labels = objects["metadata"]["labels"]
    ports = {item["name"]: item["containerPort"] for item in made["spec"]["containers"][0]["ports"]}
    one, any_ = service_of().manifest, bootstrap_services("main", "ns", "u", [outside()])
    for manifest, name in (
        (one, "broker-1-external"),
        (any_["EXTERNAL"].manifest, "main-external-bootstrap"),
    ):
        # The selector finds the pod, and the port is one that the container opens.
        assert manifest["metadata"]["name"] == name
        assert manifest["spec"]["selector"].items() <= labels.items()
        (port,) = manifest["spec"]["ports"]
        assert ports[port["targetPort"]] == port["port"] == 9095
    assert one["spec"]["selector"]["tidemark.dev/broker"] == "broker-1"
    assert "tidemark.dev/broker" not in any_["EXTERNAL"].manifest["metadata"]["labels"]
    assert one["metadata"]["ownerReferences"] == [BROKER.owner]
    assert broker_services(pod(), BROKER) == bootstrap_services("main", "ns", "u", [pod()]) == {}


def test_an_empty_list_of_ranges_is_none() -> None:
    """An API server stores no empty list, so that the Service would differ in each minute."""
    assert service_of("LoadBalancer", loadBalancerSourceRanges=[]) == dataclasses.replace(
        service_of("LoadBalancer"),
        external=outside("LoadBalancer", loadBalancerSourceRanges=[]).listeners[1].external,
    )


def test_services_contain_the_settings_of_the_manifest() -> None:
    given = outside(
        "LoadBalancer",
        annotations={"all": "1", "own": "all"},
        externalTrafficPolicy="Local",
        loadBalancerClass="example.com/fast",
        loadBalancerSourceRanges=["192.0.2.0/24"],
        bootstrap={"nodePort": 30000, "annotations": {"own": "bootstrap"}},
        brokers=[{"nodeId": 1, "nodePort": 30001, "annotations": {"own": "one"}}],
    )
    one = broker_services(given, BROKER)["EXTERNAL"].manifest
    any_ = bootstrap_services("main", "ns", "u", [given])["EXTERNAL"].manifest
    assert one["spec"]["type"] == any_["spec"]["type"] == "LoadBalancer"
    assert one["spec"]["loadBalancerClass"] == "example.com/fast"
    assert any_["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    assert one["spec"]["externalTrafficPolicy"] == "Local"
    assert "externalTrafficPolicy" not in any_["spec"], "any node leads to any broker"
    found = [(m["spec"]["ports"][0]["nodePort"], m["metadata"]["annotations"]) for m in (one, any_)]
    assert [port for port, _ in found] == [30001, 30000]
    assert [item["own"] for _, item in found] == ["one", "bootstrap"]
    assert [item["all"] for _, item in found] == ["1", "1"]


INGRESS = [{"ip": "192.0.2.7"}]


@pytest.mark.parametrize(
    ("type_", "fields", "ingress", "found"),
    [
        pytest.param("NodePort", {}, None, ServiceAddress(port=31001), id="the node's port"),
        pytest.param(
            "NodePort",
            {"nodeAddress": "ExternalIP"},
            None,
            ServiceAddress(port=31001, by_external_ip=True),
            id="its ExternalIP",
        ),
        pytest.param(
            "NodePort",
            {"host": "b{nodeId}.example.com", "nodeAddress": "ExternalIP"},
            None,
            ServiceAddress(host="b1.example.com", port=31001),
            id="a name for each",
        ),
        pytest.param(
            "NodePort",
            {"host": "b{nodeId}.example.com", "brokers": [{"nodeId": 1, "host": "a", "port": 4}]},
            None,
            ServiceAddress(host="a", port=4),
            id="a broker of its own",
        ),
        pytest.param(
            "NodePort",
            {"brokers": [{"nodeId": 2, "host": "a", "port": 4}]},
            None,
            ServiceAddress(port=31001),
            id="another broker",
        ),
        pytest.param(
            "LoadBalancer",
            {},
            INGRESS,
            ServiceAddress(host="192.0.2.7", port=9095),
            id="an address",
        ),
        pytest.param(
            "LoadBalancer",
            {},
            [{"ip": "192.0.2.7", "hostname": "lb.example.com"}],
            ServiceAddress(host="lb.example.com", port=9095),
            id="a name before an address",
        ),
        pytest.param(
            "LoadBalancer",
            {"host": "b{nodeId}.example.com", "port": 443},
            None,
            ServiceAddress(host="b1.example.com", port=443),
            id="pushed before it exists",
        ),
    ],
)
def test_external_address_of_a_service(
    type_: str, fields: Any, ingress: Any, found: ServiceAddress
) -> None:
    of = service_of(type_, **fields)
    assert service_address(of, live(of, ingress=ingress)) == found


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("NodePort", "no nodePort yet"),
        ("LoadBalancer", "the load balancer has not assigned an address"),
    ],
)
def test_service_without_an_address_reports_why(type_: str, text: str) -> None:
    of = service_of(type_)
    found = service_address(of, live(of, node_port=0))
    assert found.problem is not None
    assert text in found.problem
    assert "broker-1-external" in found.problem


def test_added_fields_are_no_change_but_removed_ones_are() -> None:
    of = service_of("LoadBalancer", loadBalancerSourceRanges=["192.0.2.0/24"])
    stored = live(of, ingress=INGRESS)
    stored["metadata"] = stored["metadata"] | {"uid": "1", "resourceVersion": "7"}
    assert matches_manifest(stored, of.manifest)
    # The range is no longer in the manifest, and has to be removed.
    assert not matches_manifest(stored, service_of("LoadBalancer").manifest)
    edited = stored | {"spec": stored["spec"] | {"type": "ClusterIP"}}
    assert not matches_manifest(edited, of.manifest)


def test_a_broker_on_node_ports_advertises_its_nodes_address() -> None:
    template = broker_objects(outside(), BROKER).stateful_set["spec"]["template"]
    node, advertised = template["spec"]["containers"][0]["env"]
    assert node["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"
    for address in ("192.0.2.1", "2001:db8::1"):
        # The kubelet expands the variable to the address of the pod's node.
        text = advertised["value"].replace(f"$({node['name']})", address)
        assert addresses_of("advertised.listeners", text) == {
            "PLAINTEXT": ListenerAddress("broker-1.ns.svc", 9092),
            "EXTERNAL": ListenerAddress(address, 9095),
            "REPLICATION": ListenerAddress("broker-1.ns.svc", 9094),
        }
    assert "advertised.listeners" not in configuration.entries(outside(), BROKER), "one place"


def test_no_pod_is_replaced_for_a_change_that_only_clients_see() -> None:
    def template(given: BrokerPod) -> Any:
        return broker_objects(given, BROKER).stateful_set["spec"]["template"]

    listener = {"name": "EXTERNAL", "port": 9095, "protocol": "PLAINTEXT"}
    inside = pod(listeners=[PLAIN, listener])
    assert template(outside("LoadBalancer")) == template(inside)
    assert template(outside(host="b{nodeId}", annotations={"a": "b"})) == template(outside())
    assert "env" not in template(inside)["spec"]["containers"][0]


def test_a_node_without_an_external_ip_is_known_by_its_internal_one() -> None:
    def node(**addresses: str) -> dict[str, Any]:
        listed = [{"type": type_, "address": address} for type_, address in addresses.items()]
        return {"status": {"addresses": listed}}

    nodes = [
        node(InternalIP="10.0.0.1", ExternalIP="192.0.2.1", Hostname="one"),
        node(InternalIP="10.0.0.2"),
        {},
    ]
    assert external_ips(nodes) == {"10.0.0.1": "192.0.2.1", "10.0.0.2": "10.0.0.2"}
