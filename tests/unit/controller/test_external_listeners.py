"""External listeners as brokers and clients receive them."""

import dataclasses
from typing import Any

import pytest

from tests.unit.controller.controller_world import ControllerWorld, broker
from tidemark.wire.control import Endpoint
from tidemark_operator.controller import snapshot
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import BrokerInfo, ServiceAddress
from tidemark_operator.controller.status import broker_status, cluster_status
from tidemark_operator.resources.broker import BrokerStatus
from tidemark_operator.resources.cluster import ClusterStatus

INSIDE = Endpoint(name="PLAINTEXT", host="broker-1.ns.svc", port=9092)
OUTSIDE = Endpoint(name="EXTERNAL", host="10.0.0.1", port=9095)
ASSIGNED = Endpoint(name="EXTERNAL", host="192.0.2.7", port=443)


def outside(node_id: int = 1, *, host: str = OUTSIDE.host, **fields: Any) -> BrokerInfo:
    """Return a broker in a pod that has registered with its node's address."""
    listeners = (INSIDE, dataclasses.replace(OUTSIDE, host=host))
    return dataclasses.replace(
        broker(node_id), listeners=listeners, external=("EXTERNAL",), **fields
    )


def advertised(state: ControllerState, node_id: int = 1) -> dict[str, tuple[str, int]]:
    """Return host and port of each listener that brokers advertise to their clients."""
    rows = {broker_.broker_id: broker_ for broker_ in snapshot.full(state).brokers}
    return {listener.name: (listener.host, listener.port) for listener in rows[node_id].listeners}


def status_of(state: ControllerState, node_id: int = 1) -> BrokerStatus:
    found = broker_status(state, state.brokers[node_id], now_ms=0).status
    return BrokerStatus.model_validate(found)


def conditions(status: BrokerStatus | ClusterStatus) -> dict[str, tuple[str, str, str]]:
    return {
        condition.type: (condition.status, condition.reason, condition.message)
        for condition in status.conditions
    }


def test_each_listener_has_its_own_address() -> None:
    state = ControllerWorld(brokers=[outside()]).state
    state.external_addresses.brokers[1] = {"EXTERNAL": ServiceAddress(port=31001)}
    assert advertised(state) == {
        "PLAINTEXT": ("broker-1.ns.svc", 9092),
        "EXTERNAL": ("10.0.0.1", 31001),
    }
    status = status_of(state)
    assert [
        (external_endpoint.host, external_endpoint.port)
        for external_endpoint in status.external_endpoints or ()
    ] == [("10.0.0.1", 31001)]
    assert conditions(status)["ExternalAddress"] == (
        "True",
        "Advertised",
        "EXTERNAL: 10.0.0.1:31001",
    )
    assert [endpoint.port for endpoint in status.endpoints] == [9092, 9095], "as registered"


def test_a_pod_on_another_node_is_announced_with_its_registration() -> None:
    state = ControllerWorld(brokers=[outside()]).state
    state.external_addresses.brokers[1] = {"EXTERNAL": ServiceAddress(port=31001)}
    # The pod is rescheduled and registers with another node's address.
    state.put_broker(outside(host="10.0.0.2"))
    assert advertised(state)["EXTERNAL"] == ("10.0.0.2", 31001)


def test_listener_without_an_address_is_omitted_and_reported() -> None:
    state = ControllerWorld(brokers=[outside()]).state
    state.external_addresses.brokers[1] = {"EXTERNAL": ServiceAddress(problem="no address yet")}
    assert advertised(state).keys() == {"PLAINTEXT"}
    found = conditions(status_of(state))
    expected = ("False", "AddressPending", "EXTERNAL: no address yet")
    assert found["ExternalAddress"] == expected
    assert found["Reconciling"][:2] == ("True", "AddressPending")
    assert found["Ready"][0] == "True", "clients inside are served"
    # The load balancer has an address now.
    state.external_addresses.brokers[1] = {
        "EXTERNAL": ServiceAddress(host=ASSIGNED.host, port=ASSIGNED.port)
    }
    assert advertised(state)["EXTERNAL"] == (ASSIGNED.host, ASSIGNED.port)
    assert conditions(status_of(state))["Reconciling"][0] == "False"


def test_refused_address_stalls_until_it_is_resolved() -> None:
    state = ControllerWorld(brokers=[outside()]).state
    state.external_addresses.brokers[1] = {
        "EXTERNAL": ServiceAddress(problem="port is taken", refused=True)
    }
    found = conditions(status_of(state))
    assert found["Stalled"] == ("True", "AddressRefused", "EXTERNAL: port is taken")
    state.external_addresses.brokers[1] = {"EXTERNAL": ServiceAddress(port=31001)}
    assert conditions(status_of(state))["Stalled"][0] == "False"


def test_cluster_internal_host_is_not_advertised_externally() -> None:
    state = ControllerWorld(brokers=[outside(host="broker-1.ns.svc")]).state
    state.external_addresses.brokers[1] = {"EXTERNAL": ServiceAddress(port=31001)}
    assert advertised(state).keys() == {"PLAINTEXT"}
    assert "PodUpToDate" in conditions(status_of(state))["ExternalAddress"][2]
    # The restarted pod registers with its node's address.
    state.put_broker(outside())
    assert advertised(state)["EXTERNAL"] == ("10.0.0.1", 31001)


def test_a_process_without_the_listener_is_waited_for() -> None:
    state = ControllerWorld(brokers=[dataclasses.replace(outside(), listeners=(INSIDE,))]).state
    state.external_addresses.brokers[1] = {"EXTERNAL": ServiceAddress(port=31001)}
    assert advertised(state).keys() == {"PLAINTEXT"}
    assert conditions(status_of(state))["ExternalAddress"][1] == "AddressPending"


def test_new_controller_pushes_the_former_addresses() -> None:
    """Otherwise each takeover would hide all brokers from external clients for a while."""
    state = ControllerWorld(brokers=[outside()]).state
    state.external_addresses.brokers[1] = {
        "EXTERNAL": ServiceAddress(host=ASSIGNED.host, port=ASSIGNED.port)
    }
    # Only the broker's status survives the takeover.
    stored = broker_status(state, state.brokers[1], now_ms=0).status
    next_world = ControllerWorld(brokers=[outside(status=stored)]).state
    assert advertised(next_world) == advertised(state)
    assert (
        broker_status(next_world, next_world.brokers[1], now_ms=9).status["conditions"]
        == stored["conditions"]
    )
    assert advertised(ControllerWorld(brokers=[outside()]).state).keys() == {"PLAINTEXT"}, (
        "never pushed before"
    )


def test_a_broker_without_external_listeners_has_no_condition_about_them() -> None:
    state = ControllerWorld(brokers=[outside()]).state
    state.external_addresses.brokers[1] = {"EXTERNAL": ServiceAddress(port=31001)}
    stored = broker_status(state, state.brokers[1], now_ms=0).status
    next_world = ControllerWorld(
        brokers=[dataclasses.replace(outside(status=stored), external=())]
    ).state
    status = status_of(next_world)
    assert "ExternalAddress" not in conditions(status)
    assert status.external_endpoints is None
    assert advertised(next_world)["EXTERNAL"] == ("10.0.0.1", 9095)


@pytest.mark.parametrize(
    ("known", "problem", "found"),
    [
        pytest.param({"10.0.0.1": "192.0.2.1"}, "", ("192.0.2.1", 31001), id="its ExternalIP"),
        pytest.param({"10.0.0.1": "10.0.0.1"}, "", ("10.0.0.1", 31001), id="has none"),
        pytest.param({"10.0.0.9": "192.0.2.9"}, "", None, id="another node"),
        pytest.param({}, "may not", None, id="may not be read"),
    ],
)
def test_nodes_are_advertised_by_external_ips_if_configured(
    known: dict[str, str], problem: str, found: tuple[str, int] | None
) -> None:
    state = ControllerWorld(brokers=[outside()]).state
    state.external_addresses.brokers[1] = {
        "EXTERNAL": ServiceAddress(port=31001, by_external_ip=True)
    }
    # Node addresses are translated by the list of Nodes.
    state.external_addresses.external_ips, state.external_addresses.nodes_problem = known, problem
    assert advertised(state).get("EXTERNAL") == found
    reason = {True: "Advertised", False: "AddressRefused" if problem else "AddressPending"}
    assert conditions(status_of(state))["ExternalAddress"][1] == reason[found is not None]


# ------------------------------------------------------------------ the Cluster


def cluster_of(state: ControllerState) -> ClusterStatus:
    return ClusterStatus.model_validate(cluster_status(state, generation=1, now_ms=0).status)


def test_the_clusters_status_has_the_bootstrap_address() -> None:
    brokers = [outside(node, host=f"10.0.0.{node % 3}") for node in (1, 2, 3, 4)]
    brokers.append(outside(5, host="10.0.0.9", fenced=True))
    state = ControllerWorld(brokers=brokers).state
    state.external_addresses.brokers = {
        broker_.node_id: {"EXTERNAL": ServiceAddress(port=31000)} for broker_ in brokers
    }
    state.external_addresses.bootstraps = {"EXTERNAL": ServiceAddress(port=30000)}
    status = cluster_of(state)
    (listener,) = status.external_listeners or ()
    # Node ports work on every node: at most three live brokers' nodes are listed.
    servers = "10.0.0.0:30000,10.0.0.1:30000,10.0.0.2:30000"
    assert (listener.name, listener.bootstrap_servers) == ("EXTERNAL", servers)
    assert conditions(status)["ExternalAddress"][:2] == ("True", "Advertised")
    state.external_addresses.bootstraps = {
        "EXTERNAL": ServiceAddress(host="2001:db8::1", port=9095)
    }
    (listener,) = cluster_of(state).external_listeners or ()
    assert listener.bootstrap_servers == "[2001:db8::1]:9095"


def test_the_cluster_names_brokers_without_current_users_and_refusals_first() -> None:
    state = ControllerWorld(brokers=[outside(1), outside(2)]).state
    state.external_addresses.bootstraps = {"EXTERNAL": ServiceAddress(host="b", port=1)}
    state.external_addresses.brokers = {
        1: {"EXTERNAL": ServiceAddress(port=1)},
        2: {"EXTERNAL": ServiceAddress(problem="later")},
    }
    found = conditions(cluster_of(state))
    expected = ("False", "AddressPending", "broker 2, EXTERNAL: later")
    assert found["ExternalAddress"] == expected
    assert found["Reconciling"][:2] == ("True", "AddressPending")
    # A refusal needs an action, so it is reported before pending addresses.
    state.external_addresses.brokers[1] = {
        "EXTERNAL": ServiceAddress(problem="taken", refused=True)
    }
    found = conditions(cluster_of(state))
    assert found["Stalled"] == ("True", "AddressRefused", "broker 1, EXTERNAL: taken")


def test_bootstrap_address_stays_while_a_change_is_refused() -> None:
    state = ControllerWorld(brokers=[outside()]).state
    state.external_addresses.brokers[1] = {"EXTERNAL": ServiceAddress(port=31000)}
    state.external_addresses.bootstraps = {
        "EXTERNAL": ServiceAddress(host="b", port=1, problem="no such class", refused=True)
    }
    status = cluster_of(state)
    (listener,) = status.external_listeners or ()
    assert listener.bootstrap_servers == "b:1"
    assert conditions(status)["Stalled"] == ("True", "AddressRefused", "EXTERNAL: no such class")


def test_cluster_without_external_listeners_has_no_condition() -> None:
    state = ControllerWorld(brokers=[broker(1)]).state
    before = conditions(cluster_of(state))
    state.external_addresses.bootstraps = {}
    assert conditions(cluster_of(state)) == before
    assert "ExternalAddress" not in before
