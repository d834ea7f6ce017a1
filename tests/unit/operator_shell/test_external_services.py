"""External Services of brokers: creation, addresses, reverted edits and deletion."""

import contextlib
import copy
import dataclasses
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import ShellWorld
from tests.unit.pods.pod_values import POD
from tidemark_operator.controller.external_listeners import endpoints
from tidemark_operator.controller.status import broker_status, cluster_status
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
)
from tidemark_operator.kube.kinds import BROKER, CLUSTER, NODE, SERVICE, Json, Kind, ObjectList
from tidemark_operator.pods.identity import MANAGER
from tidemark_operator.reconcile.external_listeners import (
    CHECK_S,
    LOOK_AGAIN_S,
    NODES_CHECK_S,
    REFUSED_S,
    ExternalServices,
)
from tidemark_operator.reconcile.made_brokers import MadeBrokers

MAIN = ShellWorld.key(CLUSTER, "main")
NAME = "broker-1-external"


class ServicesApi:
    """Fake API server for Services that allocates node ports from 31000."""

    def __init__(self) -> None:
        self.services: dict[str, Json] = {}
        self.nodes: list[Json] = []
        self.refuses: dict[str, KubeError] = {}
        self.calls: list[str] = []
        self.now_s = 1000.0

    def clock(self) -> float:
        return self.now_s

    async def apply(self, kind: Kind, body: Json, **_: Any) -> Json:
        name = body["metadata"]["name"]
        self.calls.append(f"apply {name}")
        if kind is not SERVICE:
            return body
        if name in self.refuses:
            raise self.refuses[name]
        old, made = self.services.get(name), copy.deepcopy(body)
        # Server-side apply keeps the field entries of other managers.
        fields = [] if old is None else old["metadata"]["managedFields"]
        made["metadata"] |= {
            "uid": f"uid of {name}",
            "managedFields": [field for field in fields if field["manager"] != MANAGER],
        }
        for port in made["spec"]["ports"]:
            port.setdefault("nodePort", 31000 + len(self.services))
        made["status"] = {"loadBalancer": {}}
        self.services[name] = made
        return copy.deepcopy(made)

    async def list_all(
        self, kind: Kind, namespace: str, *, label_selector: str = "", name: str = ""
    ) -> ObjectList:
        self.calls.append(f"list {name or kind.plural}")
        if name:
            return ObjectList(
                [item for item in (self.services.get(name),) if item], resource_version=1
            )
        if kind is NODE:
            if NODE.kind in self.refuses:
                raise self.refuses[NODE.kind]
            return ObjectList(self.nodes, resource_version=1)
        found = [
            copy.deepcopy(service)
            for service in self.services.values()
            if all(_has(service["metadata"]["labels"], part) for part in label_selector.split(","))
        ]
        return ObjectList(found, resource_version=1)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> Json:
        self.calls.append(f"delete {name}")
        if self.services.get(name, {}).get("metadata", {}).get("uid") != uid:
            raise NotFound(404, "gone")
        return self.services.pop(name)


def _has(labels: Json, part: str) -> bool:
    name, is_equal, value = part.partition("=")
    if is_equal:
        return labels.get(name) == value
    return (name.lstrip("!") in labels) is not name.startswith("!")


def pod(type_: str = "NodePort", **fields: Any) -> Json:
    listener = {"name": "EXTERNAL", "port": 9095, "protocol": "PLAINTEXT"}
    external = {"external": {"type": type_} | fields} if type_ else {}
    return POD | {"listeners": [*POD["listeners"], listener | external]}


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    spec = {"clusterRef": {"name": "main"}, "nodeId": 1, "workload": "Pod", "pod": pod()}
    made.make(BROKER, "broker-1", spec)
    async with made.term():
        yield made


def write_status(world: ShellWorld, kind: Kind, name: str, status: Json) -> None:
    body = world.server.find(kind, name)
    assert body is not None
    written = world.server.replace_status("op", kind, {**body, "status": status})
    world.services.objects.put(written)


class ServicesBench:
    """Reconciler of one Broker's Services that also writes the Broker's status."""

    def __init__(self, world: ShellWorld, api: ServicesApi) -> None:
        client: Any = types.SimpleNamespace(api=api)
        self.world, self.api = world, api
        services = dataclasses.replace(world.services, client=client)
        self.kept, self.made = ExternalServices(services, api.clock), MadeBrokers(services)

    async def keep(self, after_s: float = CHECK_S) -> float | None:
        self.api.now_s += after_s
        self.api.calls.clear()
        state = self.world.services.state
        later_s = await self.kept.keep_broker(self.world.known(BROKER, "broker-1"))
        status = broker_status(state, state.brokers[1], now_ms=0).status
        write_status(self.world, BROKER, "broker-1", status)
        return later_s

    def condition(self) -> tuple[str, str] | None:
        found = {
            item["type"]: item
            for item in self.world.known(BROKER, "broker-1")["status"]["conditions"]
        }
        external = found.get("ExternalAddress")
        return None if external is None else (external["reason"], external["message"])

    def way(self) -> Any:
        return self.world.services.state.external_addresses.brokers[1]["EXTERNAL"]


@pytest.fixture
def keeper(world: ShellWorld) -> ServicesBench:
    return ServicesBench(world, ServicesApi())


async def test_unchanged_service_costs_no_write(keeper: ServicesBench) -> None:
    assert await keeper.keep() == CHECK_S
    assert keeper.api.calls == ["list services", f"list {NAME}", f"apply {NAME}"]
    assert keeper.way().port == 31000
    # Within the check interval the API server is not queried at all.
    later_s = await keeper.keep(1.0)
    assert later_s == CHECK_S - 1.0
    assert keeper.api.calls == []
    await keeper.keep()
    assert keeper.api.calls == ["list services"]


async def test_changes_by_users_are_reverted(keeper: ServicesBench) -> None:
    await keeper.keep()
    # kubectl edit replaces the selector, which the next check reverts.
    keeper.api.services[NAME]["spec"]["selector"] = {"app": "theirs"}
    await keeper.keep()
    assert keeper.api.services[NAME]["spec"]["selector"]["tidemark.dev/broker"] == "broker-1"


async def test_a_label_added_to_the_services_selector_is_removed(
    keeper: ServicesBench,
) -> None:
    """Otherwise the Service would select no pod although its spec is as desired."""
    await keeper.keep()
    keeper.api.services[NAME]["spec"]["selector"]["version"] = "blue"
    await keeper.keep()
    assert "version" not in keeper.api.services[NAME]["spec"]["selector"]


async def test_a_later_address_is_pushed_at_once(keeper: ServicesBench) -> None:
    world = keeper.world
    world.edit(BROKER, "broker-1", pod=pod("LoadBalancer"))
    assert await keeper.keep() == LOOK_AGAIN_S
    balancer = keeper.api.services[NAME]["status"]["loadBalancer"]
    # The cloud provider assigns an address, and later another one.
    balancer["ingress"] = [{"ip": "192.0.2.7"}]
    assert await keeper.keep(LOOK_AGAIN_S) == CHECK_S
    assert keeper.way().host == "192.0.2.7"
    balancer["ingress"] = [{"ip": "192.0.2.8"}]
    await keeper.keep()
    assert keeper.way().host == "192.0.2.8"


async def test_brokers_waiting_for_load_balancers_share_one_list(keeper: ServicesBench) -> None:
    """Otherwise a hundred brokers would each list every few seconds, for ever, where none is
    provided.
    """
    world, api = keeper.world, keeper.api
    spec: Json = {"clusterRef": {"name": "main"}, "workload": "Pod", "pod": pod("LoadBalancer")}
    world.edit(BROKER, "broker-1", pod=spec["pod"])
    for node in (2, 3):
        world.make(BROKER, f"broker-{node}", spec | {"nodeId": node})
    names = [f"broker-{node}" for node in (1, 2, 3)]
    for name in names:
        # Create the three Services, without an address yet.
        await keeper.kept.keep_broker(world.known(BROKER, name))
    # In each round one list serves all three brokers.
    for _ in range(2):
        api.now_s += LOOK_AGAIN_S
        api.calls.clear()
        for name in names:
            assert await keeper.kept.keep_broker(world.known(BROKER, name)) == LOOK_AGAIN_S
        assert api.calls == ["list services"]


async def test_brokers_receive_only_changes_that_concern_them(keeper: ServicesBench) -> None:
    world, state = keeper.world, keeper.world.services.state
    await world.start_broker(1)
    (registered,) = state.brokers[1].listeners[:1]
    # The broker has registered the external listener with its internal address.
    outside = dataclasses.replace(registered, name="EXTERNAL", host="10.0.0.1")
    state.put_broker(dataclasses.replace(state.brokers[1], listeners=(registered, outside)))
    # The second pass changes nothing, so it publishes nothing.
    for times in (1, 1):
        await keeper.keep()
        assert world.journal.count("published brokers") == times
    assert endpoints(state, state.brokers[1])[1].port == 31000


async def test_only_the_unneeded_service_is_deleted(keeper: ServicesBench) -> None:
    await keeper.keep()
    # A copy with the operator's labels but without its owner reference.
    theirs = copy.deepcopy(keeper.api.services[NAME])
    theirs["metadata"] |= {"name": "theirs", "ownerReferences": []}
    keeper.api.services["theirs"] = theirs
    keeper.world.edit(BROKER, "broker-1", pod=pod(""))
    assert await keeper.keep(0) is None
    assert list(keeper.api.services) == ["theirs"]
    assert keeper.condition() is None
    await keeper.keep()
    assert keeper.api.calls == [], "a broker without a Service is not looked up again"


@pytest.mark.parametrize(
    "error",
    [Invalid(422, "taken"), ApiServerUnavailable(0, "no answer")],
    ids=["refused", "unknown"],
)
async def test_a_service_created_before_a_refusal_is_deleted_with_the_listener(
    keeper: ServicesBench, error: KubeError
) -> None:
    """The Service did not exist when the term began; if forgotten, it would admit clients until the
    term ends.
    """
    keeper.world.edit(BROKER, "broker-1", pod=pod(""))
    await keeper.keep()
    # Two external listeners: the first Service is created, then the second one fails.
    two = pod()["listeners"]
    another = {"name": "SECOND", "port": 9096, "protocol": "PLAINTEXT"}
    two.append(another | {"external": {"type": "NodePort"}})
    keeper.world.edit(BROKER, "broker-1", pod=POD | {"listeners": two})
    keeper.api.refuses["broker-1-second"] = error
    with contextlib.suppress(ApiServerUnavailable):
        await keeper.keep()
    assert list(keeper.api.services) == [NAME]
    keeper.world.edit(BROKER, "broker-1", pod=pod(""))
    await keeper.keep()
    assert not keeper.api.services


async def test_new_controller_deletes_an_unneeded_service(keeper: ServicesBench) -> None:
    await keeper.keep()
    keeper.world.edit(BROKER, "broker-1", pod=pod(""))
    # The new controller has no memory of the Service, only the API server has it.
    keeper.world.services.state.external_addresses.brokers.clear()
    next_keeper = ServicesBench(keeper.world, keeper.api)
    await next_keeper.keep()
    assert not keeper.api.services


async def test_brokers_without_any_replica_are_queried_once(keeper: ServicesBench) -> None:
    keeper.world.edit(BROKER, "broker-1", pod=pod(""))
    for calls in (["list services"], []):
        assert await keeper.keep() is None
        assert keeper.api.calls == calls


async def test_a_port_in_use_is_reported_until_another_is_requested(keeper: ServicesBench) -> None:
    taken = pod(brokers=[{"nodeId": 1, "nodePort": 30001}])
    keeper.world.edit(BROKER, "broker-1", pod=taken)
    text = f"PATCH x: HTTP 422: Service {NAME} is invalid: provided port is already allocated"
    keeper.api.refuses[NAME] = Invalid(422, text)
    # The node port is already allocated to another Service.
    assert await keeper.keep() == REFUSED_S
    reason, message = keeper.condition() or ("", "")
    assert reason == "AddressRefused"
    assert "provided port is already allocated" in message
    keeper.api.refuses.clear()
    keeper.world.edit(BROKER, "broker-1", pod=pod())
    assert await keeper.keep(0) == CHECK_S
    assert keeper.condition() != (reason, message)


async def test_refused_change_keeps_the_advertised_address(keeper: ServicesBench) -> None:
    """An annotation that no API server accepts would cut off all external clients."""
    world, state = keeper.world, keeper.world.services.state
    world.edit(BROKER, "broker-1", pod=pod("LoadBalancer"))
    await world.start_broker(1)
    listener = dataclasses.replace(state.brokers[1].listeners[0], name="EXTERNAL", host="b")
    state.put_broker(dataclasses.replace(state.brokers[1], listeners=(listener,)))
    await keeper.keep()
    keeper.api.services[NAME]["status"]["loadBalancer"]["ingress"] = [{"ip": "192.0.2.7"}]
    # The address is advertised before the change.
    await keeper.keep()
    external = [{"name": "EXTERNAL", "host": "192.0.2.7", "port": 9095}]
    # loadBalancerClass is immutable: only a new Service can change it.
    keeper.api.refuses[NAME] = Invalid(422, "PATCH x: HTTP 422: class: may not change once set")
    world.edit(BROKER, "broker-1", pod=pod("LoadBalancer", loadBalancerClass="a/b"))
    assert await keeper.keep(0) == REFUSED_S
    reason, message = keeper.condition() or ("", "")
    assert reason == "AddressRefused"
    assert f"kubectl delete service {NAME}" in message
    # Status and metadata responses keep the address that still works.
    assert world.status(BROKER, "broker-1")["externalEndpoints"] == external
    assert [endpoint.host for endpoint in endpoints(state, state.brokers[1])] == ["192.0.2.7"]


async def test_a_service_of_another_owner_is_not_taken_over(keeper: ServicesBench) -> None:
    entry = {"manager": "another", "fieldsV1": {"f:spec": {}}}
    theirs = {"metadata": {"name": NAME, "labels": {}, "managedFields": [entry]}, "spec": {}}
    keeper.api.services[NAME] = theirs
    assert await keeper.keep() == REFUSED_S
    assert keeper.api.services[NAME] is theirs
    assert "belongs to another" in (keeper.condition() or ("", ""))[1]


async def test_service_of_a_broker_with_the_same_name_is_not_taken_over(
    keeper: ServicesBench,
) -> None:
    """The manager's name alone does not identify the operator's own Services."""
    owner = {"kind": "Broker", "name": NAME, "uid": "1"}
    labels = {"tidemark.dev/broker": NAME}
    theirs = {"metadata": {"name": NAME, "labels": labels, "ownerReferences": [owner]}, "spec": {}}
    keeper.api.services[NAME] = theirs
    assert await keeper.keep() == REFUSED_S
    assert keeper.api.services[NAME] is theirs
    assert f"belongs to Broker {NAME}" in (keeper.condition() or ("", ""))[1]


async def test_nodes_are_listed_only_on_request(keeper: ServicesBench) -> None:
    world, state = keeper.world, keeper.world.services.state
    await world.start_broker(1)
    listener = dataclasses.replace(state.brokers[1].listeners[0], name="EXTERNAL", host="10.0.0.1")
    state.put_broker(dataclasses.replace(state.brokers[1], listeners=(listener,)))
    # With the default nodeAddress, the broker's own host is advertised.
    await keeper.keep()
    assert "list nodes" not in keeper.api.calls
    world.edit(BROKER, "broker-1", pod=pod(nodeAddress="ExternalIP"))
    # ExternalIP needs the right to list Nodes, which the role may lack.
    keeper.api.refuses[NODE.kind] = Forbidden(403, "GET /nodes: HTTP 403: not yours")
    assert await keeper.keep(0) == REFUSED_S
    assert "may not list Nodes" in (keeper.condition() or ("", ""))[1]
    keeper.api.refuses.clear()
    addresses = [
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "ExternalIP", "address": "192.0.2.1"},
    ]
    keeper.api.nodes = [{"status": {"addresses": addresses}}]
    await keeper.keep(REFUSED_S)
    assert keeper.condition() == ("Advertised", "EXTERNAL: 192.0.2.1:31000")
    # Nodes change rarely, and are listed at a longer interval than Services.
    for after_s, is_listed in ((CHECK_S, False), (NODES_CHECK_S, True)):
        await keeper.keep(after_s)
        assert ("list nodes" in keeper.api.calls) is is_listed


async def test_cluster_has_an_external_bootstrap_service(keeper: ServicesBench) -> None:
    world, name = keeper.world, "main-external-bootstrap"
    await keeper.made.keep(MAIN, world.known(CLUSTER, "main"))
    assert keeper.api.services[name]["spec"]["type"] == "NodePort"
    state = world.services.state
    status = cluster_status(state, generation=1, now_ms=0).status
    write_status(world, CLUSTER, "main", status)
    assert state.external_addresses.bootstraps is not None
    # No broker has an external listener any more.
    world.edit(BROKER, "broker-1", pod=pod(""))
    await keeper.made.keep(MAIN, world.known(CLUSTER, "main"))
    assert name not in keeper.api.services
